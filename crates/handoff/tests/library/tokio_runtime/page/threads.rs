use futures_util::StreamExt;
use handoff::tokio::DriverThreads;
use handoff::{BufferPool, Region};
use tokio::net::TcpListener;

/// Runs on tokio's multi-thread runtime.
pub async fn echo(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
    let threads = DriverThreads::new(2)?;
    let pool = BufferPool::new(Region::anonymous(16 << 20)?, 1 << 16)?;
    loop {
        let (connection, _peer) = listener.accept().await?;
        let (threads, pool) = (threads.clone(), pool.clone());
        tokio::spawn(async move {
            let socket = threads.socket(connection.into_std()?).await?;
            let mut arriving = socket.receive(&pool, 4);
            while let Some(buffer) = arriving.next().await {
                socket.send(buffer?).await?.sent?;
            }
            Ok::<_, std::io::Error>(())
        });
    }
}
