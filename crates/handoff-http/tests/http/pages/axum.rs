use std::net::TcpListener;

use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use axum::{Extension, Router};
use handoff::{Driver, Region};
use handoff_http::{LentBody, Limits, Server};

/// Serves until `stop` ends.
pub fn serve(listener: TcpListener, stop: impl Future<Output = ()>) -> handoff::Result<()> {
    let driver = Driver::new()?;
    let mut region = Region::anonymous(1 << 20)?;
    let mut page = region.take(1 << 20).expect("a new region has room");
    page.fill(b'.');
    let page = LentBody::from(page.freeze());
    let bytes = Bytes::from(vec![b'-'; 1 << 20]);

    let router = Router::new()
        .route("/page", get(async || Extension(page))) // a frozen buffer: lent
        .route("/bytes", get(async || bytes)) // lent as they are
        .route("/hello", get(async || "hello")) // small: copied
        .route("/echo", post(async |body: Body| body)); // as it comes
    let server = Server::new(&driver, Limits::default());
    driver.block_on(server.serve(driver.listen(listener)?, router, stop))
}
