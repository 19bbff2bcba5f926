//! Connects with options that are set before the first packet: from an address, and so that a peer that has gone is
//! noticed in time. Says what the kernel made of them. `socket-options HOST:PORT FROM`

use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use handoff::{Buffer, Driver, SocketOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, from] = arguments.as_slice() else {
        return Err("usage: socket-options HOST:PORT FROM".into());
    };
    let target = target.to_socket_addrs()?.next().ok_or("no such host")?;
    let mut options = SocketOptions::default();
    options.bind = Some(SocketAddr::new(from.parse()?, 0));
    options.nodelay = Some(true);
    options.send_buffer = Some(256 << 10);
    // A peer that takes nothing gives lent buffers back after this time.
    options.user_timeout = Some(Duration::from_secs(20));
    options.keepalive_idle = Some(Duration::from_secs(60));
    options.keepalive_interval = Some(Duration::from_secs(5));

    let driver = Driver::new()?;
    driver.block_on(async {
        let socket = driver.connect_with(target, &options)?.await?;
        println!("from {}: {:?}", socket.local_addr()?, socket.options()?);
        let greeting = Buffer::from(b"hello\n".to_vec());
        println!("{} bytes sent", socket.send(greeting)?.await?.sent?);
        Ok::<_, Box<dyn Error>>(())
    })?
}
