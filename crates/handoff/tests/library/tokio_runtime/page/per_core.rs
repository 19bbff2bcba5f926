use std::net::SocketAddr;
use std::thread::available_parallelism;

use handoff::tokio::{TcpListener, per_core};
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_local;

pub fn greet_on_all_processors(address: SocketAddr) -> handoff::Result<()> {
    let threads = available_parallelism().map_or(1, |threads| threads.get());
    let served = per_core(threads, |driver| async move {
        let mut listener = TcpListener::bind_shared(&driver, address)?;
        loop {
            let (mut stream, _peer) = listener.accept().await?;
            // A peer that resets its connection ends only this task.
            spawn_local(async move { stream.write_all(b"hello\n").await });
        }
    })?;
    served.into_iter().collect()
}
