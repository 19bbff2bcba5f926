//! Answers: bodies of every kind, and services that break their promises.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::response::IntoResponse as _;
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream::{self, StreamExt as _};
use handoff::{Buffer, Driver, Frozen, RingUse};
use handoff_http::{LentBody, Limits};
use http::header::{CONTENT_LENGTH, ETAG};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use rustix::net::sockopt;

use crate::serving::{RINGS, Serving, content};

const LENGTHS: [usize; 8] = [0, 1, 5_000, 16_384, 65_535, 65_536, 300_000, 3_000_001];

fn file(len: usize) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&content(len)).expect("writes");
    file
}

fn frozen(len: usize) -> Frozen {
    Buffer::from(content(len)).freeze()
}

fn pieces(len: usize) -> Body {
    let all = Bytes::from(content(len));
    let pieces = (0..len)
        .step_by(40_000)
        .map(move |at| Ok::<_, std::io::Error>(all.slice(at..len.min(at + 40_000))));
    Body::from_stream(stream::iter(pieces))
}

fn kinds() -> Router {
    let body = |Path((kind, len)): Path<(String, usize)>| async move {
        match kind.as_str() {
            "bytes" => content(len).into_response(),
            "pieces" => pieces(len).into_response(),
            "frozen" => Extension(LentBody::from(frozen(len))).into_response(),
            "file" => Extension(LentBody::file(file(len), 0..len as u64)).into_response(),
            "range" => {
                let file = Arc::new(file(len + 20));
                Extension(LentBody::file(file, 7..7 + len as u64)).into_response()
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    };
    Router::new()
        .route("/{kind}/{len}", get(body))
        .route("/nothing", get(StatusCode::NO_CONTENT))
        .route("/unchanged", get(StatusCode::NOT_MODIFIED))
}

#[test]
fn bodies_of_every_kind_and_length() {
    for ring in RINGS {
        let serving = Serving::start(ring, Limits::default(), kinds());
        let mut client = serving.connect();
        let mut bytes = 0;
        for kind in ["bytes", "pieces", "frozen", "file", "range"] {
            for len in LENGTHS {
                client.send(format!("GET /{kind}/{len} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
                let answer = client.answer();
                let expected = match kind {
                    "range" => content(len + 20)[7..7 + len].to_vec(),
                    _ => content(len),
                };
                assert!(answer.body == expected, "{kind} {len} {:?}", answer.fields);
                let told = answer.field("content-length").map(str::to_owned);
                let length = (kind != "pieces").then(|| len.to_string());
                assert_eq!(told, length, "{kind} {len}");
                bytes += len as u64;

                client.send(format!("HEAD /{kind}/{len} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
                let answer = client.head();
                assert_eq!(answer.status, 200);
                if kind != "pieces" {
                    assert_eq!(answer.field("content-length"), Some(len.to_string().as_str()));
                }

                let answer = serving.ask(format!("GET /{kind}/{len} HTTP/1.0\r\n\r\n").as_bytes());
                assert!(answer.body == expected, "{kind} {len} in HTTP/1.0");
                assert_eq!(answer.field("transfer-encoding"), None);
                bytes += len as u64;
            }
        }
        for (path, status) in [("nothing", 204), ("unchanged", 304)] {
            client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            let answer = client.answer();
            assert_eq!((answer.status, answer.field("content-length")), (status, None));
        }
        client.end();
        client.ends();
        let served = serving.stop();
        assert_eq!((served.cut_short, served.failed, served.open), (0, 0, 0), "{served:?}");
        let heads = served.sent.total() - bytes;
        assert!((10_000..100_000).contains(&heads), "{served:?}, {bytes} of bodies");
    }
}

#[test]
fn what_was_lent_is_free_again() {
    for ring in RINGS {
        let lent = frozen(2 << 20);
        let router = Router::new().route("/", {
            let lent = lent.clone();
            get(move || std::future::ready(Extension(LentBody::from(lent.clone()))))
        });
        let serving = Serving::start(ring, Limits::default(), router);
        let mut clients: Vec<_> = (0..5).map(|_| serving.connect()).collect();
        for client in &mut clients {
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        for client in &mut clients {
            assert!(client.answer().body == content(2 << 20));
        }
        // A client that leaves in the middle.
        let mut leaving = serving.connect();
        leaving.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        leaving.interim();
        drop((leaving, clients));
        serving.stop();
        assert!(lent.try_unfreeze().is_ok(), "somebody has it still");
    }
}

/// A body of frames.
fn frames(frames: Vec<Result<Frame<Bytes>, std::io::Error>>) -> Body {
    Body::new(StreamBody::new(stream::iter(frames)))
}

fn data(text: &'static str) -> Result<Frame<Bytes>, std::io::Error> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

#[test]
fn trailers_go_to_who_takes_them() {
    let router = Router::new().route(
        "/",
        get(async || {
            let mut fields = HeaderMap::new();
            fields.insert("x-sum", HeaderValue::from_static("9"));
            fields.insert(CONTENT_LENGTH, HeaderValue::from_static("9"));
            frames(vec![data("abc"), data(""), Ok(Frame::trailers(fields))])
        }),
    );
    let serving = Serving::start(RINGS[0], Limits::default(), router);
    let answer = serving.ask(b"GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n\r\n");
    assert_eq!((answer.text(), answer.trailers.len()), ("abc", 1), "{answer:?}");
    assert_eq!(answer.trailers[0], ("X-Sum".to_owned(), "9".to_owned()));
    let answer = serving.ask(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!((answer.text(), answer.trailers.len()), ("abc", 0));
    let answer = serving.ask(b"GET / HTTP/1.0\r\nTE: trailers\r\n\r\n");
    assert_eq!((answer.text(), answer.trailers.len()), ("abc", 0));
}

#[test]
fn fields_have_the_names_that_their_specifications_write() {
    let router = Router::new().route(
        "/",
        get(async || {
            let mut fields = HeaderMap::new();
            for name in ["etag", "www-authenticate", "cache-control", "x-request-id"] {
                fields.insert(name, HeaderValue::from_static("a"));
            }
            let trailers = HeaderMap::from_iter([(ETAG, HeaderValue::from_static("a"))]);
            (fields, frames(vec![data("abc"), Ok(Frame::trailers(trailers))]))
        }),
    );
    let serving = Serving::start(RINGS[0], Limits::default(), router);
    let names = |request: &str| {
        let mut client = serving.connect();
        client.send(format!("{request}\r\n\r\n").as_bytes());
        client.end();
        let answer = String::from_utf8(client.rest()).expect("text");
        let fields = answer.lines().filter_map(|line| line.split_once(": "));
        fields.map(|(name, _)| name.to_owned()).collect::<Vec<_>>().join(" ")
    };
    let told = "Date ETag WWW-Authenticate Cache-Control X-Request-Id";
    let chunked = names("GET / HTTP/1.1\r\nHost: h\r\nTE: trailers");
    assert_eq!(chunked, format!("{told} Transfer-Encoding ETag"));
    assert_eq!(names("GET / HTTP/1.0"), format!("{told} Connection"));
    let missing = names("GET /nothing HTTP/1.0\r\nConnection: keep-alive");
    assert_eq!(missing, "Date Content-Length Connection");
}

/// Starts a server of these answers, by path.
fn breaking(ring: RingUse) -> Serving {
    let with_length = |len: &'static str, body: Body| {
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static(len));
        response
    };
    let failing = || vec![data("abc"), Err(std::io::Error::other("the disk is gone"))];
    let router = Router::new()
        .route("/right", get(async move || with_length("3", frames(vec![data("abc")]))))
        .route("/short", get(async move || with_length("5", frames(vec![data("abc")]))))
        .route("/long", get(async move || with_length("2", frames(vec![data("abc")]))))
        .route("/fails", get(async move || frames(failing())))
        .route(
            "/panics-late",
            get(async || {
                let frames = stream::iter([true, false]).map(|first| {
                    assert!(first, "as the test wants it");
                    data("abc")
                });
                Body::new(StreamBody::new(frames))
            }),
        )
        .route("/panics", get(async || -> &'static str { panic!("as the test wants it") }))
        .route("/switches", get(StatusCode::SWITCHING_PROTOCOLS));
    Serving::start(ring, Limits::default(), router)
}

#[test]
fn a_body_without_a_length_breaks_off_by_a_reset() {
    use std::io::{ErrorKind, Read as _};
    for ring in RINGS {
        let serving = breaking(ring);
        for path in ["fails", "panics-late"] {
            let mut client = serving.connect();
            client.send(format!("GET /{path} HTTP/1.0\r\n\r\n").as_bytes());
            let end = client.stream.read_to_end(&mut Vec::new());
            assert_eq!(
                end.map_err(|error| error.kind()),
                Err(ErrorKind::ConnectionReset),
                "{path}"
            );
        }
        serving.stop();
    }
}

/// All of it is with the kernel or on its way there when the client takes no more.
#[test]
fn a_body_without_a_length_that_stalls_at_its_end_breaks_off_by_a_reset() {
    use std::io::{ErrorKind, Read as _};
    for ring in RINGS {
        let router = Router::new().route(
            "/",
            get(async || {
                let whole = Ok::<_, std::io::Error>(Frame::data(Bytes::from(content(1 << 20))));
                Body::new(StreamBody::new(stream::iter([whole])))
            }),
        );
        let limits = Limits { stall: Duration::from_millis(300), ..Limits::default() };
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        // Connections inherit it.
        sockopt::set_socket_send_buffer_size(&listener, 64 << 10).expect("set");
        let driver = Driver::builder().ring(ring);
        let serving = Serving::start_at(listener, driver, limits, move || router);
        let mut client = serving.connect();
        sockopt::set_socket_recv_buffer_size(&client.stream, 16 << 10).expect("set");
        client.send(b"GET / HTTP/1.0\r\n\r\n");
        serving.until(|served| served.cut_short == 1);
        let end = client.stream.read_to_end(&mut Vec::new());
        assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        serving.stop();
    }
}

#[test]
fn an_answer_that_breaks_off_ends_its_connection_alone() {
    for ring in RINGS {
        let serving = breaking(ring);
        let mut other = serving.connect();
        let mut cut = 0;
        for (path, whole) in [
            ("right", Some(&b"abc"[..])),
            ("short", None),
            ("long", None),
            ("fails", None),
            ("panics-late", None),
        ] {
            let mut client = serving.connect();
            client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            match whole {
                Some(whole) => assert_eq!(client.answer().body, whole),
                None => {
                    cut += 1;
                    let rest = client.rest();
                    let text = String::from_utf8_lossy(&rest);
                    assert!(!text.ends_with("0\r\n\r\n"), "{path}: {text}");
                    assert!(!text.ends_with("\r\n\r\nab"), "{path}: {text}");
                }
            }
            other.send(b"GET /right HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(other.answer().text(), "abc");
        }
        assert_eq!(serving.stop().cut_short, cut);
    }
}

#[test]
fn a_service_that_fails_is_a_500() {
    for ring in RINGS {
        let serving = breaking(ring);
        let mut other = serving.connect();
        for path in ["panics", "switches"] {
            let mut client = serving.connect();
            client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            let answer = client.answer();
            assert_eq!((answer.status, answer.is_last()), (500, true), "{path}");
            client.ends();
            other.send(b"GET /right HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(other.answer().text(), "abc");
        }
        assert_eq!(serving.stop().failed, 2);
    }
}

#[test]
fn a_file_that_shrinks_ends_the_answer() {
    const LEN: usize = 32 << 20;
    for ring in RINGS {
        let shrinking = Arc::new(file(LEN));
        let router = Router::new().route("/", {
            let shrinking = Arc::clone(&shrinking);
            get(async move || Extension(LentBody::file(shrinking, 0..LEN as u64)))
        });
        let serving = Serving::start(ring, Limits::default(), router);
        let mut client = serving.connect();
        client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.head().field("content-length"), Some(LEN.to_string().as_str()));
        // More bytes remain than sockets and pipes hold. (Those hold the file's own pages; the last one would end
        // in zeros where the file ends within it.)
        shrinking.set_len(LEN as u64 / 2).expect("shrinks");
        let rest = client.rest();
        assert!(rest.len() <= LEN / 2, "{} bytes came", rest.len());
        assert!(rest == content(LEN)[..rest.len()], "what came is none of the file");
        // And one that is too short from the start.
        shrinking.set_len(100).expect("shrinks");
        for len in [101, 70_000, LEN] {
            let lying = Router::new().route("/", {
                let shrinking = Arc::clone(&shrinking);
                get(async move || Extension(LentBody::file(shrinking, 0..len as u64)))
            });
            let serving = Serving::start(ring, Limits::default(), lying);
            let mut client = serving.connect();
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
            let rest = client.rest();
            assert!(rest.len() < 500, "{len}: {} bytes came", rest.len());
            assert_eq!(serving.stop().cut_short, 1);
        }
        assert_eq!(serving.stop().cut_short, 1);
    }
}

/// Says when it is dropped, and whether its file was closed by then.
struct Guard(Weak<File>, Arc<AtomicU32>);

impl Drop for Guard {
    fn drop(&mut self) {
        assert_eq!(self.0.strong_count(), 0, "the file is still open");
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_guard_goes_behind_its_file() {
    for ring in RINGS {
        let dropped = Arc::new(AtomicU32::new(0));
        let router = Router::new().route("/{len}", {
            let dropped = Arc::clone(&dropped);
            get(async move |Path(len): Path<usize>| {
                let file = Arc::new(file(len));
                let guard = Guard(Arc::downgrade(&file), dropped);
                Extension(LentBody::file(file, 0..len as u64).guarded_by(guard))
            })
        });
        let serving = Serving::start(ring, Limits::default(), router);
        let mut client = serving.connect();
        for (count, len) in (1..).zip([100, 300_000]) {
            client.send(format!("GET /{len} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            assert_eq!(client.answer().body, content(len));
            while dropped.load(Ordering::Relaxed) < count {
                std::thread::yield_now();
            }
        }
        // An answer without its body, and one that ends early.
        client.send(b"HEAD /100 HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send(b"GET /30000000 HTTP/1.1\r\nHost: h\r\n\r\n");
        client.head();
        client.head();
        drop(client);
        while dropped.load(Ordering::Relaxed) < 4 {
            std::thread::yield_now();
        }
    }
}
