//! User memory to a socket in bulk: fills pieces of registered memory and pushes them into a lane.
//!
//! `send-bulk HOST:PORT < FILE`

use std::error::Error;
use std::io::Read;
use std::net::TcpStream;

use handoff::{Driver, Region, Tally, Wait};

const PIECE: usize = 256 << 10;
const PIECES: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).ok_or("usage: send-bulk HOST:PORT < FILE")?;
    let driver = Driver::new()?;
    let mut region = Region::anonymous(PIECES * PIECE)?;
    driver.register(&region)?;
    let socket = driver.socket(TcpStream::connect(target)?)?;
    let lane = socket.lane(&region, PIECES)?;
    let (mut free, mut input) = (region.chunks(PIECE), std::io::stdin().lock());
    let (mut tally, mut at_end) = (Tally::default(), false);
    while !at_end || !lane.is_empty() {
        while let Some(mut buffer) = free.pop().filter(|_| !at_end) {
            buffer.set_len(PIECE);
            let filled = input.read(&mut buffer)?;
            buffer.set_len(filled);
            at_end = filled == 0;
            lane.push(buffer).map_err(|refused| refused.error)?;
        }
        driver.turn(Wait::Event)?;
        while let Some(finished) = lane.take() {
            finished.sent?;
            tally += finished.receipt.tally;
            free.push(finished.buffer);
        }
    }
    println!("{} bytes sent: {:?}", tally.total(), tally);
    Ok(())
}
