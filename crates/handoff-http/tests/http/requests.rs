//! Requests in all forms, and connections that go on.

use axum::Router;
use axum::extract::Request;
use axum::routing::{any, get};
use handoff_http::{Limits, Peer};

use crate::serving::{RINGS, Serving};

/// Answers with what it understood.
fn mirror() -> Router {
    let tell = async |request: Request| {
        assert!(request.extensions().get::<Peer>().is_some());
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let value = request.headers().get("x-said").map(|it| it.to_str().expect("text").to_owned());
        format!("{method} {uri} {}", value.unwrap_or_default())
    };
    Router::new().route("/bytes", get("hello")).fallback(any(tell))
}

#[test]
fn a_request_comes_in_pieces() {
    let request = b"GET /a?b=c HTTP/1.1\r\nHost: here\r\nX-Said: \t two words \r\n\r\n";
    for ring in RINGS {
        let serving = Serving::start(ring, Limits::default(), mirror());
        let mut client = serving.connect();
        for at in 0..request.len() {
            client.send(&request[..at]);
            // It should usually come alone.
            std::thread::sleep(std::time::Duration::from_millis(1));
            client.send(&request[at..]);
            let answer = client.answer();
            assert_eq!((answer.status, answer.text()), (200, "GET /a?b=c two words"), "{at}");
            assert!(!answer.is_last());
        }
        assert_eq!(serving.stop().requests, request.len() as u64);
    }
}

#[test]
fn the_host_of_an_absolute_target_counts() {
    let host = async |request: Request| {
        let hosts = request.headers().get_all("host").iter().map(|it| it.to_str().expect("text"));
        hosts.collect::<Vec<_>>().join("; ")
    };
    for ring in RINGS {
        let router = Router::new().fallback(any(host));
        let serving = Serving::start(ring, Limits::default(), router);
        for (request, host) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "a"),
            ("GET http://b:81/ HTTP/1.1\r\nHost: a\r\n\r\n", "b:81"),
            ("GET http://b/ HTTP/1.0\r\n\r\n", "b"),
        ] {
            assert_eq!(serving.ask(request.as_bytes()).text(), host, "{request}");
        }
        let refused = serving.ask(b"GET http://u@b/ HTTP/1.1\r\nHost: b\r\n\r\n");
        assert_eq!(refused.status, 400);
    }
}

#[test]
fn requests_come_joined_and_are_answered_in_order() {
    for ring in RINGS {
        let serving = Serving::start(ring, Limits::default(), mirror());
        let requests: Vec<u8> = (0..300)
            .flat_map(|number| {
                format!(
                    "POST /{number} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\r\n\
                     GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n"
                )
                .into_bytes()
            })
            .collect();
        // In pieces of all lengths.
        for piece in [1 << 20, 1000, 333, 97] {
            let mut client = serving.connect();
            for bytes in requests.chunks(piece) {
                client.send(bytes);
            }
            for number in 0..300 {
                assert_eq!(client.answer().text(), format!("POST /{number} "));
                assert_eq!(client.answer().text(), format!("GET /{number} "));
            }
            client.end();
            client.ends();
        }
        assert_eq!(serving.stop().cut_short, 0);
    }
}

#[test]
fn a_connection_goes_on_as_both_sides_say() {
    for ring in RINGS {
        let serving = Serving::start(ring, Limits::default(), mirror());
        for (request, last) in [
            (&b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..], false),
            (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", false),
            (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: te, Close\r\n\r\n", true),
            (b"GET / HTTP/1.0\r\n\r\n", true),
            (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false),
            (b"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", true),
        ] {
            let mut client = serving.connect();
            client.send(request);
            let answer = client.answer();
            assert_eq!((answer.status, answer.is_last()), (200, last), "{answer:?}");
            if last {
                client.ends();
                continue;
            }
            client.send(b"GET /again HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(client.answer().text(), "GET /again ");
        }
    }
}

#[test]
fn targets_have_three_forms() {
    let serving = Serving::start(RINGS[0], Limits::default(), mirror());
    for (line, told) in [
        ("GET //x/../y HTTP/1.1", "GET //x/../y "),
        ("GET http://other:81/z HTTP/1.1", "GET http://other:81/z "),
        ("OPTIONS * HTTP/1.1", "OPTIONS * "),
        ("BREW /pot HTTP/1.1", "BREW /pot "),
    ] {
        // Empty lines before a request are ignored.
        let answer = serving.ask(format!("\r\n\r\n{line}\r\nHost: h\r\n\r\n").as_bytes());
        assert_eq!((answer.status, answer.text()), (200, told));
    }
}

#[test]
fn a_head_alone_has_the_fields_of_the_whole() {
    for ring in RINGS {
        let serving = Serving::start(ring, Limits::default(), mirror());
        let mut client = serving.connect();
        for _ in 0..3 {
            client.send(b"HEAD /bytes HTTP/1.1\r\nHost: h\r\n\r\n");
            let answer = client.head();
            assert_eq!((answer.status, answer.field("content-length")), (200, Some("5")));
            assert!(answer.field("date").is_some_and(|date| date.ends_with(" GMT")));
            client.send(b"GET /bytes HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(client.answer().text(), "hello");
        }
    }
}
