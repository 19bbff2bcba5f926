use std::net::SocketAddr;
use std::thread::available_parallelism;

use handoff::tokio::{TcpListener, per_core};
use tokio::io::AsyncWriteExt;

pub fn greet_on_all_processors(address: SocketAddr) -> std::io::Result<()> {
    let threads = available_parallelism()?.get();
    let served = per_core(threads, |driver| async move {
        let mut listener = TcpListener::bind_shared(&driver, address)?;
        loop {
            let (mut stream, _peer) = listener.accept().await?;
            stream.write_all(b"hello\n").await?;
        }
    })?;
    served.into_iter().collect()
}
