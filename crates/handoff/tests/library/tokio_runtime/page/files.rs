use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use handoff::Driver;
use handoff::tokio::{TcpListener, TcpStream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::spawn_local;

/// Sends each connection the file of the directory that it names in a line.
pub async fn serve(
    driver: Driver,
    mut listener: TcpListener,
    directory: PathBuf,
) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let (driver, directory) = (driver.clone(), directory.clone());
        spawn_local(async move {
            if let Err(error) = send_one(&driver, stream, &directory).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn send_one(driver: &Driver, stream: TcpStream, directory: &Path) -> io::Result<()> {
    let mut line = String::new();
    let mut stream = BufReader::new(stream);
    (&mut stream).take(256).read_line(&mut line).await?;
    // Without directories before it, so that it stays in ours.
    let name = Path::new(line.trim_end()).file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let file = File::open(directory.join(name))?;
    let end = file.metadata()?.len();

    let mut stream = stream.into_inner();
    let carried = stream.socket().send_file(&driver.file(file)?, 0..end).await;
    carried.result?;
    stream.shutdown().await
}
