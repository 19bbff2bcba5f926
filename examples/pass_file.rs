//! Passes an open file by a Unix socket: `pass-file NAME FILE`; `pass-file NAME` waits for it and prints what is in it.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;

use handoff::{Buffer, Driver, UnixAddress, UnixKind};

async fn receive(driver: &Driver, name: &UnixAddress) -> Result<(), Box<dyn Error>> {
    let mut listener = driver.listen_unix(name, UnixKind::Seqpacket)?;
    println!("waiting at {name}");
    let (socket, _) = listener.accept().await?;
    let message = socket.receive_message(Buffer::from(vec![0; 4096]), 1)?.await?;
    println!("user {} sent {} bytes", socket.peer_credentials()?.uid, message.result?);
    for file in message.descriptors {
        std::io::copy(&mut File::from(file), &mut std::io::stdout())?;
    }
    Ok(())
}

async fn pass(driver: &Driver, name: &UnixAddress, path: String) -> Result<(), Box<dyn Error>> {
    let file = File::open(&path)?;
    let socket = driver.connect_unix(name, UnixKind::Seqpacket)?.await?;
    let descriptors = [file.as_fd()];
    let message = socket.message(Buffer::from(path.into_bytes())).descriptors(&descriptors);
    message.send()?.await?.sent?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("NAME is unix:/path or unix:@name")?.parse()?;
    let driver = Driver::new()?;
    match arguments.next() {
        Some(path) => driver.block_on(pass(&driver, &name, path))?,
        None => driver.block_on(receive(&driver, &name))?,
    }
}
