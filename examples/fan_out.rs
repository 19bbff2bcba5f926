//! The same bytes to many: reads pieces of a file into a pool, and sends each to all connected peers.
//!
//! `fan-out ADDRESS:PORT READERS < FILE`

use std::error::Error;
use std::io::Read;
use std::net::TcpListener;

use handoff::{BufferPool, Driver, Region, Sent};

const PIECE: usize = 64 << 10;
const PIECES: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: fan-out ADDRESS:PORT READERS < FILE";
    let mut arguments = std::env::args().skip(1);
    let listener = TcpListener::bind(arguments.next().ok_or(usage)?)?;
    let readers: usize = arguments.next().ok_or(usage)?.parse()?;
    println!("listening on {}", listener.local_addr()?);

    let driver = Driver::new()?;
    let pool = BufferPool::new(Region::anonymous(PIECES * PIECE)?, PIECE)?;
    if driver.ring_unavailable().is_none() {
        driver.register(&pool)?;
    }
    let accepted = std::iter::repeat_with(|| listener.accept()).take(readers);
    let sockets = accepted
        .map(|accepted| Ok(driver.socket(accepted?.0)?))
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    driver.block_on(async {
        let mut input = std::io::stdin().lock();
        let mut last: Vec<Sent> = Vec::new();
        loop {
            // It waits here while the slowest reader has all pieces.
            let mut piece = pool.get().await;
            let filled = input.read(&mut piece)?;
            if filled == 0 {
                break;
            }
            piece.set_len(filled);
            let piece = piece.freeze();
            last.clear();
            for socket in &sockets {
                let sending = socket.send(piece.clone()).map_err(|refused| refused.error)?;
                // The piece goes back to the pool with the last of its loans.
                last.push(sending.split().0);
            }
        }
        for sent in last {
            sent.await?;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;
    let sent = sockets.iter().map(|socket| socket.send_stats().messages).sum::<u64>();
    println!("{sent} pieces sent to {readers}");
    Ok(())
}
