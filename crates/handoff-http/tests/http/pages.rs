//! The programs of the documentation's pages do what the pages say.

#![allow(unreachable_pub, reason = "the programs are as a reader has them")]

mod axum;
mod on_tokio;
mod service;

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;

use crate::serving::{RINGS, Serving, content};

/// Whether a page has a program, word for word.
fn shows(page: &str, program: &str) -> bool {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let page = std::fs::read_to_string(page).expect("is there");
    page.contains(&format!("```rust\n{program}```\n"))
}

/// Where a program listens, with a client on its own thread that asks for these paths and then stops it.
fn visited(paths: &'static [(&str, usize)]) -> (TcpListener, impl Future<Output = ()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound");
    let (tell, told) = futures_util::future::abortable(std::future::pending::<()>());
    std::thread::spawn(move || {
        for (request, len) in paths {
            let mut client = crate::serving::Client::to(address);
            client.send(format!("{request} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            assert_eq!(client.answer().body.len(), *len, "{request}");
        }
        told.abort();
    });
    (listener, async {
        // Aborting ends it.
        let _ = tell.await;
    })
}

#[test]
fn axum_on_the_library() {
    assert!(shows("embedding.md", include_str!("pages/axum.rs")));
    let (listener, stop) = visited(&[
        ("GET /page", 1 << 20),
        ("GET /bytes", 1 << 20),
        ("GET /hello", 5),
        ("POST /echo", 0),
    ]);
    axum::serve(listener, stop).expect("it ends well");
}

#[test]
fn axum_in_tokio() {
    assert!(shows("http.md", include_str!("pages/on_tokio.rs")));
    let (listener, stop) = visited(&[("GET /", 5)]);
    let router = ::axum::Router::new().route("/", ::axum::routing::get("hello"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let local = tokio::task::LocalSet::new();
    let served = on_tokio::serve(listener, router, stop);
    local.block_on(&runtime.expect("a runtime"), served).expect("it ends well");
}

#[test]
fn a_service_of_ones_own() {
    assert!(shows("http.md", include_str!("pages/service.rs")));
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&content(100_000)).expect("writes");
    let service = service::OneFile(std::sync::Arc::new(file));
    let serving = Serving::start_service(RINGS[0], handoff_http::Limits::default(), || service);
    assert!(serving.ask(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").body == content(100_000));
}
