//! A socket to a socket: sends on what one connection receives, in both directions, from the memory that it
//! arrived in where the kernel lends that.
//!
//! `relay-stream ADDRESS:PORT HOST:PORT`; `handoff relay` is the complete program.

use std::error::Error;
use std::net::{Shutdown, TcpListener, TcpStream};

use futures_util::future::join;
use handoff::{Carried, Driver, Route, RouteSink, RouteSource};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, target] = arguments.as_slice() else {
        return Err("usage: relay-stream ADDRESS:PORT HOST:PORT".into());
    };
    let listener = TcpListener::bind(address.as_str())?;
    println!("listening on {}", listener.local_addr()?);
    let (near, _) = listener.accept()?;
    let far = TcpStream::connect(target)?;

    let driver = Driver::new()?;
    let there = carry(&driver, &near, &far)?;
    let back = carry(&driver, &far, &near)?;
    let (there, back) = driver.block_on(join(there, back))?;
    for (way, carried) in [("there", there?), ("back", back?)] {
        println!("{way}: {} bytes by {}", carried.bytes, carried.engine);
    }
    Ok(())
}

/// One direction, to its end, which is passed on.
fn carry(
    driver: &Driver,
    from: &TcpStream,
    to: &TcpStream,
) -> Result<impl Future<Output = Result<Carried, Box<dyn Error>>>, Box<dyn Error>> {
    let source = RouteSource::Stream(driver.socket(from.try_clone()?)?, None);
    let sink = RouteSink::Socket(driver.socket(to.try_clone()?)?);
    let mut route = Route::new(driver, source, sink);
    let to = to.try_clone()?;
    Ok(async move {
        let mut carried = route.run().await;
        std::mem::replace(&mut carried.result, Ok(()))?;
        to.shutdown(Shutdown::Write)?;
        Ok(carried)
    })
}
