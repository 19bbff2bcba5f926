//! User memory to a socket: lends pieces of registered memory to the kernel, and refills each once it is
//! back.
//!
//! `send-memory HOST:PORT < FILE`

use std::collections::VecDeque;
use std::error::Error;
use std::io::Read;
use std::net::TcpStream;

use handoff::{Driver, Region, Tally};

const PIECE: usize = 256 << 10;
const PIECES: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).ok_or("usage: send-memory HOST:PORT < FILE")?;
    let driver = Driver::new()?;
    let mut region = Region::anonymous(PIECES * PIECE)?;
    // Without this, the kernel would look the pages up at each send.
    driver.register(&region)?;
    let mut free = region.chunks(PIECE);
    let socket = driver.socket(TcpStream::connect(target)?)?;

    let mut input = std::io::stdin().lock();
    let mut tally = Tally::default();
    driver.block_on(async {
        let mut on_loan = VecDeque::new();
        loop {
            // The oldest comes back first, nearly always.
            let mut buffer = match free.pop() {
                Some(buffer) => buffer,
                None => {
                    let (sent, loan): (handoff::Sent, handoff::OnLoan<_>) =
                        on_loan.pop_front().ok_or("no memory")?;
                    sent.await?;
                    let returned = loan.await?;
                    tally += returned.receipt.tally;
                    returned.buffer
                }
            };
            buffer.set_len(buffer.capacity());
            let filled = input.read(&mut buffer)?;
            if filled == 0 {
                break;
            }
            buffer.set_len(filled);
            // Everything goes out in order, behind earlier sends; a refused one would come back with the
            // error.
            let sending = socket.send(buffer).map_err(|refused| refused.error)?;
            on_loan.push_back(sending.split());
        }
        for (sent, loan) in on_loan {
            sent.await?;
            tally += loan.await?.receipt.tally;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;
    println!("{} bytes sent: {:?}", tally.total(), tally);
    Ok(())
}
