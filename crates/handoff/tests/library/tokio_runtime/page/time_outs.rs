use std::io;
use std::time::Duration;

use handoff::tokio::TcpStream;
use handoff::{Buffer, Driver, Result};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// Reads what a peer sends, or gives up. What comes later is still there for the next read.
pub async fn read(stream: &mut TcpStream, patience: Duration) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(1 << 14);
    match timeout(patience, stream.read_buf(&mut bytes)).await {
        Ok(read) => read.map(|_| Some(bytes)),
        Err(_elapsed) => Ok(None),
    }
}

/// Sends a buffer, or ends the send after a time: `Error::Canceled` says how many bytes went.
pub async fn send(
    driver: &Driver,
    stream: &TcpStream,
    buffer: Buffer,
    patience: Duration,
) -> Result<usize> {
    let sending = stream.socket().send(buffer).map_err(|refused| refused.error)?;
    // The buffer goes back to its pool when the kernel lets go of what the peer has not read.
    let (sent, _on_loan) = sending.split();
    driver.cancel_after(patience, sent).await
}
