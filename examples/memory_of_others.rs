//! A NIC receives into memory of another process: one process has the memory and reads it, the other receives and
//! reports where the bytes are. Nothing is copied between them.
//!
//! `memory-of-others ADDRESS:PORT FILE IFACE QUEUE` receives one connection to its end, and writes what the owner of
//! the memory saw there to FILE. `handoff nic prepare IFACE --port PORT` sets a queue aside, and steers the port
//! there from the first packet on: packets that come another way cannot be copied into this memory.
//!
//! Here the memory is a memfd. It stands for that of a GPU or a storage card, whose driver gives a dma-buf,
//! too.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write, stdin};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use handoff::{DmaBuf, Driver, RxBinding, SharedRegion};

const MEMORY: usize = 16 << 20;
const CHUNK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["receive", memory, address, device, queue] => receive(memory, address, device, queue),
        [address, path, device, queue] => own(address, path, device, queue),
        _ => Err("usage: memory-of-others ADDRESS:PORT FILE IFACE QUEUE".into()),
    }
}

/// The process that has the memory. It starts the other one, which reports each span in a line, and tells it when the
/// bytes were seen.
fn own(address: &str, path: &str, device: &str, queue: &str) -> Result<(), Box<dyn Error>> {
    let mut memory = SharedRegion::memfd(MEMORY)?;
    let name = format!("/proc/{}/fd/{}", std::process::id(), memory.as_fd().as_raw_fd());
    let mut receiver = Command::new(std::env::current_exe()?)
        .args(["receive", &name, address, device, queue])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut seen = receiver.stdin.take().ok_or("no pipe")?;
    let told = BufReader::new(receiver.stdout.take().ok_or("no pipe")?);
    let memory = memory.take(MEMORY).ok_or("no memory")?;
    let mut file = File::create(path)?;
    let mut bytes = [0; CHUNK];
    for line in told.lines() {
        let line = line?;
        let place = line.strip_prefix("at ").and_then(|place| place.split_once(' '));
        let Some((offset, len)) = place else {
            println!("{line}");
            continue;
        };
        let (offset, len): (usize, usize) = (offset.parse()?, len.parse()?);
        // A device would compute on the bytes in place. Others may write this memory, so there is no slice.
        memory.view().read(offset, &mut bytes[..len]);
        file.write_all(&bytes[..len])?;
        writeln!(seen)?;
    }
    if !receiver.wait()?.success() {
        return Err("the receiver failed".into());
    }
    Ok(())
}

/// The process that receives. It cannot look at the bytes.
fn receive(memory: &str, address: &str, device: &str, queue: &str) -> Result<(), Box<dyn Error>> {
    let memory = OpenOptions::new().read(true).write(true).open(memory)?;
    let dma_buf = DmaBuf::of_memfd(memory)?;
    let driver = Driver::builder().zero_copy_receive(true).build()?;
    let queue = driver.dma_buf_queue(dma_buf, &RxBinding::new(device, queue.parse()?)?)?;
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let mut receiver = driver.socket(listener.accept()?.0)?.receive_to_dma_buf(&queue)?;
    let mut seen = stdin().lines();
    driver.block_on(async {
        while let Some(span) = receiver.next_span().await {
            let span = span?;
            println!("at {} {}", span.offset(), span.len());
            // Dropping the span gives the place back to the NIC, so not before the owner is done with it.
            seen.next().ok_or("the owner of the memory is gone")??;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;
    let (engine, _) = receiver.engine();
    println!("received by {engine}: {:?}", receiver.tally());
    Ok(())
}
