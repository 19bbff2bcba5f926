//! A socket, or an rx queue of a NIC, to a file: writes spans from where they arrived.
//!
//! `receive-spans ADDRESS:PORT FILE [IFACE QUEUE]`
//!
//! With a queue of a NIC nothing is copied on the way; `handoff nic prepare` sets one aside, and steers the
//! connection there.

use std::error::Error;
use std::fs::File;
use std::net::TcpListener;

use handoff::{Driver, Intake, Region, RxBinding};

const MEMORY: usize = 8 << 20;
const CHUNK: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, path, queue) = match arguments.as_slice() {
        [address, path] => (address, path, None),
        [address, path, device, queue] => (address, path, Some((device, queue.parse()?))),
        _ => return Err("usage: receive-spans ADDRESS:PORT FILE [IFACE QUEUE]".into()),
    };
    let listener = TcpListener::bind(address.as_str())?;
    println!("listening on {}", listener.local_addr()?);
    let (stream, _) = listener.accept()?;

    let driver = Driver::builder().zero_copy_receive(queue.is_some()).build()?;
    let memory = Region::anonymous(MEMORY)?;
    let bound;
    let intake: Intake = match queue {
        Some((device, queue)) => {
            bound = driver.rx_queue(memory, &RxBinding::new(device, queue)?)?;
            (&bound).into()
        }
        None => (&driver.pool(memory, CHUNK)?).into(),
    };
    let file = driver.file(File::create(path)?)?;
    let mut receiver = driver.socket(stream)?.receive(intake)?;

    let mut written = 0;
    driver.block_on(async {
        while let Some(span) = receiver.next_span().await {
            // Dropping a span gives its memory back; here the write owns it until then.
            let write = file.write_at(span?, written).map_err(|refused| refused.error)?;
            written += write.await?.result? as u64;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;
    let (engine, reason) = receiver.engine();
    println!("{written} bytes received by {engine} ({reason}): {:?}", receiver.tally());
    Ok(())
}
