use std::fs::File;

use futures_util::StreamExt;
use handoff::tokio::TcpStream;
use handoff::{Driver, Region, Result};

/// Writes everything that a peer sends to a file; returns the number of bytes.
pub async fn receive(driver: &Driver, stream: TcpStream, target: File) -> Result<u64> {
    let target = driver.file(target)?;
    let pool = driver.pool(Region::anonymous(1 << 20)?, 1 << 16)?;
    let mut spans = stream.socket().receive(&pool)?;
    let mut written = 0;
    while let Some(span) = spans.next().await {
        let writing = target.write_at(span?, written).map_err(|refused| refused.error)?;
        // The span goes back to the pool when the write is over.
        written += writing.await?.result? as u64;
    }
    Ok(written)
}
