//! Bodies of requests: every form, at every split, and clients that break the form.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use handoff::{Driver, RingUse};
use handoff_http::{BodyError, Limits, RequestBody};
use http::{Request, Response};
use http_body_util::BodyExt as _;

use crate::serving::{Of, RINGS, Serving, TIMEOUT, content, until_full};

/// Answers with the body and what came behind it.
fn echo(ring: RingUse, limits: Limits) -> Serving {
    Serving::start_service(ring, limits, || {
        Of(async |request: Request<RequestBody>| match request.into_body().collect().await {
            Ok(collected) => {
                let trailers = collected.trailers().map_or(String::new(), |it| format!("{it:?}"));
                let mut body = collected.to_bytes().to_vec();
                body.extend(trailers.into_bytes());
                Response::new(http_body_util::Full::from(body))
            }
            Err(error) => Response::new(error.to_string().into()),
        })
    })
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn in_chunks(body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut request = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n".to_vec();
    let (mut rest, mut sizes) = (body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(*sizes.next().expect("cycles")));
        request.extend(format!("{:X};extension=\"a b\"\r\n", chunk.len()).into_bytes());
        request.extend([chunk, b"\r\n"].concat());
        rest = after;
    }
    request.extend(b"000\r\nx-sum: 7\r\n\r\n");
    request
}

#[test]
fn bodies_come_at_every_split() {
    let body = b"hello, world";
    for ring in RINGS {
        let serving = echo(ring, Limits::default());
        for (request, told) in [
            (with_length(body), "hello, world"),
            (in_chunks(body, &[5, 1, 6]), "hello, world{\"x-sum\": \"7\"}"),
        ] {
            let mut client = serving.connect();
            for at in 1..request.len() {
                client.send(&request[..at]);
                std::thread::sleep(Duration::from_millis(1));
                // The next request comes together with the rest.
                client.send(&[&request[at..], &request].concat());
                assert_eq!(client.answer().text(), told, "{at}");
                assert_eq!(client.answer().text(), told, "{at}");
            }
        }
    }
}

#[test]
fn bodies_come_in_every_length() {
    for ring in RINGS {
        let serving = echo(ring, Limits { body: 4 << 20, ..Limits::default() });
        let mut client = serving.connect();
        for len in [0, 1, 4_095, 4_096, 4_097, 70_000, 1 << 20, 4 << 20] {
            let body = content(len);
            client.send(&with_length(&body));
            assert!(client.answer().body == body, "{len}");
            let mut sender = client.stream.try_clone().expect("clones");
            let request = in_chunks(&body, &[1, 1_000, 70_000]);
            let sending = std::thread::spawn(move || {
                std::io::Write::write_all(&mut sender, &request).expect("sends");
            });
            assert!(client.answer().body.starts_with(&body), "{len}");
            sending.join().expect("ends");
        }
        assert_eq!(serving.stop().refused, 0);
    }
}

#[test]
fn a_body_goes_back_while_it_comes() {
    const LEN: usize = 8 << 20;
    for ring in RINGS {
        let router = Router::new().fallback(any(async |body: Body| body));
        let limits = Limits { body: LEN as u64, ..Limits::default() };
        let serving = Serving::start(ring, limits, router);
        let mut client = serving.connect();
        let mut sender = client.stream.try_clone().expect("clones");
        let sending = std::thread::spawn(move || {
            std::io::Write::write_all(&mut sender, &with_length(&content(LEN))).expect("sends");
        });
        // More than all buffers on the way have room for: a service that does not read slows its client.
        until_full(std::slice::from_ref(&client));
        assert!(client.answer().body == content(LEN));
        sending.join().expect("ends");
    }
}

#[test]
fn a_client_is_told_that_its_body_is_wanted() {
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n";
    for ring in RINGS {
        let serving = echo(ring, Limits::default());
        let mut client = serving.connect();
        for _ in 0..3 {
            client.send(head);
            assert_eq!(client.interim(), 100);
            client.send(b"abc");
            assert_eq!(client.answer().text(), "abc");
            // A client that does not wait gets no 100.
            client.send(&[&head[..], b"abc"].concat());
            assert_eq!(client.answer().text(), "abc");
        }
        // HTTP/1.0 has no such thing.
        client.send(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(client.answer().text(), "x");

        let unread = Router::new().fallback(any(async || "no"));
        let serving = Serving::start(ring, Limits::default(), unread);
        let mut client = serving.connect();
        client.send(head);
        let answer = client.answer();
        assert_eq!((answer.text(), answer.is_last()), ("no", true));
        client.ends();
    }
}

#[test]
fn slow_clients_are_told_so() {
    let quick = Duration::from_millis(200);
    let limits = Limits { head_time: quick, body_time: quick, ..Limits::default() };
    for ring in RINGS {
        let serving = echo(ring, limits.clone());
        for begin in [
            &b"GET / HT"[..],
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n123",
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
        ] {
            let mut client = serving.connect();
            client.send(begin);
            let answer = client.answer();
            assert_eq!((answer.status, answer.is_last()), (408, true), "{}", answer.text());
            client.ends();
        }
        // A byte now and then does not save a head.
        let mut client = serving.connect();
        client.send(b"GET / HTTP/1.1\r\nHost: a-long-name");
        client.stream.set_read_timeout(Some(quick / 10)).expect("can wait");
        let goes_on = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        while client.stream.peek(&mut [0]).is_err_and(goes_on) {
            client.try_send(b"e");
        }
        client.stream.set_read_timeout(Some(TIMEOUT)).expect("can wait");
        assert_eq!(client.answer().status, 408);
        assert_eq!(serving.stop().refused, 4);
    }
}

#[test]
fn what_nobody_reads_of_a_body_is_passed_over_if_it_is_little() {
    for ring in RINGS {
        let router = Router::new().fallback(any(async || "done"));
        let serving = Serving::start(ring, Limits::default(), router);
        let mut client = serving.connect();
        for len in [10, 5_000, 64 << 10] {
            client.send(&with_length(&content(len)));
            let answer = client.answer();
            assert_eq!((answer.text(), answer.is_last()), ("done", false));
            client.send(&in_chunks(&content(len), &[1000]));
            assert_eq!(client.answer().text(), "done");
        }
        client.try_send(&with_length(&content(1 << 20)));
        assert_eq!(client.answer().text(), "done");
        client.ends();
    }
}

#[test]
fn a_service_learns_that_its_client_has_left() {
    for ring in RINGS {
        let (tell, told) = std::sync::mpsc::channel();
        let serving = Serving::start_service(ring, Limits::default(), move || {
            Of(move |request: Request<RequestBody>| {
                let tell = tell.clone();
                // On another thread, which outlives the connection.
                std::thread::spawn(move || {
                    let driver = Driver::new().expect("a driver");
                    let collected = driver.block_on(request.into_body().collect()).expect("runs");
                    tell.send(collected.map(|_| ())).expect("somebody waits");
                });
                std::future::pending::<Response<String>>()
            })
        });
        let mut client = serving.connect();
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n123");
        serving.until(|served| served.requests == 1);
        drop(client);
        let told = told.recv_timeout(TIMEOUT).expect("it is told");
        assert_eq!(told, Err(BodyError::Disconnected));
        assert_eq!(serving.stop().cut_short, 1);
    }
}

#[test]
fn a_reset_behind_a_body_that_nobody_reads_is_noticed() {
    struct Tell(std::sync::mpsc::Sender<()>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.send(()).expect("somebody waits");
        }
    }

    for ring in RINGS {
        // The service keeps the body, or has dropped it.
        for keeps in [true, false] {
            let (tell, told) = std::sync::mpsc::channel();
            let serving = Serving::start_service(ring, Limits::default(), move || {
                Of(move |request: Request<RequestBody>| {
                    let (tell, kept) = (Tell(tell.clone()), keeps.then_some(request));
                    async move {
                        std::future::pending::<()>().await;
                        drop((tell, kept));
                        Response::new(String::new())
                    }
                })
            });
            let mut client = serving.connect();
            client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n");
            client.send(&content(20_000));
            serving.until(|served| served.requests == 1);
            rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO))
                .expect("may reset");
            drop(client);
            told.recv_timeout(TIMEOUT).expect("the service's future is dropped");
            assert_eq!(serving.stop().cut_short, 1);
        }
    }
}
