//! An axum program whose answers are lent: a page in memory, and files.
//!
//! `http ADDRESS:PORT DIRECTORY`; `handoff serve` does more for files.

use std::error::Error;
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use handoff::{Driver, Region};
use handoff_http::{LentBody, Limits, Server};

/// A file of the directory, from the page cache's own pages.
async fn file(State(directory): State<PathBuf>, Path(name): Path<String>) -> Response {
    // The name is one segment of a path.
    if name.starts_with('.') || name.contains('/') {
        return StatusCode::NOT_FOUND.into_response();
    }
    let path = directory.join(name);
    // Opening a pipe would wait for its other end, and with it all connections.
    if !path.is_file() {
        return StatusCode::NOT_FOUND.into_response();
    }
    match File::open(path).and_then(|file| Ok((file.metadata()?.len(), file))) {
        Ok((len, file)) => Extension(LentBody::file(file, 0..len)).into_response(),
        Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, directory] = arguments.as_slice() else {
        return Err("usage: http ADDRESS:PORT DIRECTORY".into());
    };
    let driver = Driver::new()?;
    // Registered, its pages are pinned once and not for each answer.
    let mut region = Region::anonymous(1 << 20)?;
    if let Err(error) = driver.register(&region) {
        eprintln!("unregistered: {error}");
    }
    let mut page = region.take(1 << 20).ok_or("the region has room for the page")?;
    page.fill(b'.');
    let page = LentBody::from(page.freeze());

    let router = Router::new()
        .route("/page", get(async move || Extension(page)))
        .route("/files/{name}", get(file))
        .route("/echo", post(async |body: axum::body::Bytes| body))
        .with_state(PathBuf::from(directory));
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let server = Server::new(&driver, Limits::default());
    driver.block_on(server.serve(driver.listen(listener)?, router, std::future::pending()))?;
    Ok(())
}
