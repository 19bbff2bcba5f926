//! A file to a socket: lends the page cache's own pages to the send where the kernel can (`kmod/getbuf`),
//! else takes the next best way, and says what was passed over.
//!
//! `send-file FILE HOST:PORT`

use std::error::Error;
use std::fs::File;
use std::net::TcpStream;

use handoff::{Driver, Route, RouteSink, RouteSource};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, target] = arguments.as_slice() else {
        return Err("usage: send-file FILE HOST:PORT".into());
    };
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let driver = Driver::new()?;
    let source = RouteSource::File(driver.file(file)?, 0..length);
    let sink = RouteSink::Socket(driver.socket(TcpStream::connect(target)?)?);
    let mut route = Route::new(&driver, source, sink);
    let carried = driver.block_on(route.run())?;
    for (engine, reason) in route.passed_over() {
        println!("not by {engine}: {reason}");
    }
    println!("{} bytes by {}, sent as {:?}", carried.bytes, carried.engine, carried.given);
    Ok(carried.result?)
}
