//! A framed protocol: a message is its length, in four bytes, and then that many bytes. The program receives
//! header and payload each into its place, and sends the message back.
//!
//! `framed-messages ADDRESS:PORT` serves one connection, to its end.

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use handoff::{Driver, Region, Socket};

const LONGEST: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: framed-messages ADDRESS:PORT")?;
    let driver = Driver::new()?;
    let mut listener = driver.listen(TcpListener::bind(address)?)?;
    println!("listening on {}", listener.local_addr()?);
    driver.block_on(async {
        let (socket, peer) = listener.accept().await?;
        println!("{} messages from {}", serve(&driver, &socket).await?, peer.ip());
        Ok(())
    })?
}

async fn serve(driver: &Driver, socket: &Socket) -> Result<u64, Box<dyn Error>> {
    let mut region = Region::anonymous(4096 + LONGEST)?;
    if let Err(error) = driver.register(&region) {
        eprintln!("not registered: {error}");
    }
    let mut header = region.take(4).ok_or("no room")?;
    let mut payload = region.take(LONGEST).ok_or("no room")?;
    for messages in 0.. {
        let received = socket.receive_exact(header)?.await?;
        match received.result {
            // The stream ended between two messages.
            Err(handoff::Error::StreamEnded { received: 0, .. }) => return Ok(messages),
            result => result?,
        };
        header = received.buffer;
        let len = u32::from_le_bytes(header[..].try_into()?) as usize;
        if len > LONGEST {
            return Err(format!("a message of {len} bytes is too long").into());
        }
        payload.set_len(len);
        let received = driver.cancel_after(TIMEOUT, socket.receive_exact(payload)?).await?;
        received.result?;
        let sent = socket.message(received.buffer).header(&header).send()?.await?;
        sent.sent?;
        payload = sent.buffer;
    }
    unreachable!("messages are fewer than numbers")
}
