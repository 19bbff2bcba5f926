//! Answers each request with its body, and one without a body with the name of its host: `echo_bodies ADDRESS:PORT`.
//!
//! `scripts/peers` runs other people's tests of HTTP on it.

use std::error::Error;
use std::future::pending;
use std::net::TcpListener;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::routing::any;
use handoff::Driver;
use handoff_http::{Limits, Server};

/// In small letters, without a port, and without the dot behind the root.
fn host(fields: &HeaderMap) -> String {
    let authority = fields.get(HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    authority.map_or(String::new(), |it| it.host().trim_end_matches('.').to_ascii_lowercase())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address] = &arguments[..] else { return Err("usage: echo_bodies ADDRESS:PORT".into()) };
    let echo = async |fields: HeaderMap, body: Bytes| match body.is_empty() {
        true => Bytes::from(host(&fields)),
        false => body,
    };
    let driver = Driver::new()?;
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let listener = driver.listen(listener)?;
    let server = Server::new(&driver, Limits::default());
    driver.block_on(server.serve(listener, Router::new().fallback(any(echo)), pending()))?;
    Ok(())
}
