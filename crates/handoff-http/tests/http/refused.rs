//! Bytes that are no request, or could be taken for two, get that answer and end the connection.

use axum::Router;
use axum::routing::any;
use handoff_http::Limits;

use crate::serving::{RINGS, Serving};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

fn refused_by(serving: &Serving, request: &[u8], status: u16) {
    let shown = String::from_utf8_lossy(&request[..request.len().min(200)]).into_owned();
    let mut client = serving.connect();
    client.try_send(request);
    client.try_send(SMUGGLED.as_bytes());
    let answer = client.answer();
    assert_eq!(answer.status, status, "{shown:?}: {}", answer.text());
    assert!(answer.is_last(), "{shown:?}");
    assert!(answer.text().starts_with(&status.to_string()), "{shown:?}: {}", answer.text());
    // Later bytes are not read as a request.
    client.ends();
}

#[test]
fn each_with_its_status() {
    let limits = Limits { body: 1000, fields: 10, head: 4096, target: 500, ..Limits::default() };
    for ring in RINGS {
        let router = Router::new().fallback(any(async |body: axum::body::Bytes| body));
        let serving = Serving::start(ring, limits.clone(), router);
        let long = "x".repeat(600);
        let head = |fields: &str| format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let chunked = |body: &str| head("Transfer-Encoding: chunked\r\n") + body;
        let cases: Vec<(String, u16)> = [
            // Lengths that contradict each other, or are given twice.
            (head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400),
            (head("Content-Length: 5\r\nContent-Length: 5\r\n") + "12345", 400),
            (head("Content-Length: 5\r\nContent-Length: 6\r\n") + "123456", 400),
            (head("Content-Length: 5, 5\r\n") + "12345", 400),
            (head("Content-Length: +5\r\n") + "12345", 400),
            (head("Content-Length: -1\r\n"), 400),
            (head("Content-Length: 0x5\r\n") + "12345", 400),
            (head("Content-Length:\r\n"), 400),
            (head("Content-Length: 5 5\r\n") + "12345", 400),
            (head("Content-Length: 99999999999999999999999\r\n"), 413),
            (head("Content-Length: 1001\r\n"), 413),
            (head("Transfer-Encoding: gzip\r\n"), 400),
            (head("Transfer-Encoding: identity\r\n"), 400),
            (head("Transfer-Encoding: chunked, gzip\r\n"), 400),
            (head("Transfer-Encoding: chunked, chunked\r\n"), 400),
            (head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400),
            (head("Transfer-Encoding: chunked,\r\n"), 400),
            (head("Transfer-Encoding: \x0bchunked\r\n"), 400),
            (head("Transfer-Encoding: gzip, chunked\r\n"), 501),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), 400),
            // Lines.
            (head("A: b\r\n folded\r\n"), 400),
            (head("A: b\r\n\tfolded\r\n"), 400),
            (head("A : b\r\n"), 400),
            (head(" A: b\r\n"), 400),
            (head("A\r\n"), 400),
            (head(": b\r\n"), 400),
            (head("A\0: b\r\n"), 400),
            (head("A: b\0c\r\n"), 400),
            (head("A: b\rC: d\r\n"), 400),
            (head("A: b\nC: d\r\n"), 400),
            ("GET / HTTP/1.1\nHost: h\n\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: h\r\n\n".to_owned(), 400),
            ("\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            // Request lines.
            ("GET  / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET /\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1 \r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET /\u{fc} HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET relative HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET * HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("G\u{7f}T / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET / HTTQ/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("\u{16}\u{3}\u{1}\u{2}".to_owned(), 400),
            ("GET / HTTP/2.0\r\nHost: h\r\n\r\n".to_owned(), 505),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505),
            ("CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n".to_owned(), 501),
            ("CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("CONNECT h HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("CONNECT h: HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("CONNECT h:65536 HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("CONNECT a@h:80 HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            // Hosts.
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: a:+1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: a[::1]\r\n\r\n".to_owned(), 400),
            ("GET http://a:1.2/ HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET http://[::1].:80/ HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET http://:80/ HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            // Limits.
            (format!("GET /{long} HTTP/1.1\r\nHost: h\r\n\r\n"), 414),
            (format!("GET /{} ", long.repeat(20)), 414),
            (head(&"A: b\r\n".repeat(10)), 431),
            (head(&format!("A: {}\r\n", long.repeat(10))), 431),
            ("\r\n".repeat(40), 400),
            (head("Expect: the worst\r\nContent-Length: 1\r\n") + "x", 417),
            // Chunks.
            (chunked("x\r\n"), 400),
            (chunked("\r\n"), 400),
            (chunked("-1\r\n"), 400),
            (chunked("+1\r\nx\r\n"), 400),
            (chunked("0x1\r\nx\r\n"), 400),
            (chunked(" 1\r\nx\r\n"), 400),
            (chunked("1 \r\nx\r\n"), 400),
            (chunked("1\nx\r\n"), 400),
            (chunked("1\r\nxy\r\n"), 400),
            (chunked("1\r\nx\n"), 400),
            (chunked("1;a\rb\r\nx\r\n"), 400),
            (chunked("1;\u{1}\r\nx\r\n"), 400),
            (chunked("1\r;a\r\nx\r\n0\r\n\r\n"), 400),
            (chunked("1\u{c};a\r\nx\r\n0\r\n\r\n"), 400),
            (chunked(&format!("1;{long}\r\nx\r\n")), 400),
            (chunked(&format!("1;{}\r\nx\r\n", &long[..200]).repeat(100)), 400),
            (chunked("10000000000000001\r\nx\r\n"), 400),
            (chunked("ffffffffffffffff\r\nx\r\n"), 413),
            (chunked("1\r\nx\r\nffffffffffffffff\r\nx\r\n"), 413),
            (chunked("3e9\r\n"), 413),
            (chunked("1\r\nx\r\n0\r\nA : b\r\n\r\n"), 400),
            (chunked("1\r\nx\r\n0\r\nA: b\n\r\n"), 400),
            (chunked(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(11))), 431),
        ]
        .into();
        let all = cases.len() as u64;
        for (request, status) in cases {
            refused_by(&serving, request.as_bytes(), status);
        }
        let served = serving.stop();
        assert_eq!((served.refused, served.cut_short, served.failed), (all, 0, 0), "{served:?}");
    }
}

#[test]
fn a_length_that_is_not_used_up_is_no_request() {
    let router = Router::new().fallback(any(async || "unread"));
    let serving = Serving::start(RINGS[0], Limits::default(), router);
    let mut client = serving.connect();
    let body = "GET /inner HTTP/1.1\r\nHost: h\r\n\r\n";
    let request =
        format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for _ in 0..3 {
        client.send(request.as_bytes());
        assert_eq!(client.answer().text(), "unread");
    }
    client.end();
    client.ends();
    assert_eq!(serving.stop().requests, 3);
}
