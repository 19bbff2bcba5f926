//! The runtimes that a server runs on.

use std::net::TcpListener;

use axum::Router;
use axum::routing::get;
use handoff::{Driver, Executor, RingUse};
use handoff_http::{Limits, Server};

use crate::serving::RINGS;

/// Asks for two pages, on a thread of its own; then `told` is dropped.
fn ask(listener: &TcpListener, told: std::os::unix::net::UnixStream) {
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(address).expect("connects");
        let get = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let close = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        stream.write_all(&[&get[..], close].concat()).expect("sends");
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("receives");
        assert_eq!(all.matches("\r\n\r\nhello").count(), 2, "{all}");
        drop(told);
    });
}

async fn serve(driver: Driver, listener: TcpListener, stop: std::os::unix::net::UnixStream) {
    let listener = driver.listen(listener).expect("listens");
    let router: Router = Router::new().route("/", get(async || "hello"));
    let stop = driver.file(stop).expect("attaches");
    let stopped = async {
        // Closed, it is readable.
        let _ = stop.readable().expect("has room").await;
    };
    let server = Server::new(&driver, Limits::default());
    server.serve(listener, router, stopped).await;
    assert_eq!(server.served().requests, 2);
}

fn pieces(ring: RingUse) -> (Driver, TcpListener, std::os::unix::net::UnixStream) {
    let driver = Driver::builder().ring(ring).build().expect("a driver");
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let (told, stop) = std::os::unix::net::UnixStream::pair().expect("a pair");
    ask(&listener, told);
    (driver, listener, stop)
}

#[test]
fn an_executor_of_the_library() {
    for ring in RINGS {
        let (driver, listener, stop) = pieces(ring);
        let executor = Executor::new(&driver);
        let task = executor.spawn(serve(driver, listener, stop));
        executor.run(task).expect("runs");
    }
}

#[test]
fn tokio_on_one_thread() {
    for ring in RINGS {
        let (driver, listener, stop) = pieces(ring);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("a runtime"), async {
            let driving = tokio::task::spawn_local(handoff::tokio::drive(driver.clone()));
            serve(driver, listener, stop).await;
            driving.abort();
        });
    }
}
