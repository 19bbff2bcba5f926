use std::net::SocketAddr;

use handoff::tokio::TcpListener;
use tokio::task::spawn_local;

pub fn echo(address: SocketAddr) -> handoff::Result<()> {
    handoff::tokio::run(|driver| async move {
        let mut listener = TcpListener::bind(&driver, address)?;
        loop {
            let (stream, _peer) = listener.accept().await?;
            spawn_local(async move {
                let (mut reading, mut writing) = stream.into_split();
                tokio::io::copy(&mut reading, &mut writing).await
            });
        }
    })?
}
