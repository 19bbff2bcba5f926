//! Memory of your own kind to a socket: lines of an arena, lent where they are. `lend-arena HOST:PORT < FILE`

use std::error::Error;
use std::io::Read;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use handoff::{Driver, IoBuf};

/// A line, which keeps the arena that it is part of.
struct Line(Arc<Vec<u8>>, Range<usize>);

// SAFETY: the arena keeps its bytes where they are, and nobody writes them while lines share it.
unsafe impl IoBuf for Line {
    fn stable_ptr(&mut self) -> NonNull<u8> {
        NonNull::from(&self.0[self.1.clone()]).cast()
    }

    fn stable_len(&self) -> usize {
        self.1.len()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let target = std::env::args().nth(1).ok_or("usage: lend-arena HOST:PORT < FILE")?;
    let mut arena = Vec::new();
    std::io::stdin().read_to_end(&mut arena)?;
    let (arena, mut sent) = (Arc::new(arena), 0);
    let driver = Driver::new()?;
    let socket = driver.socket(std::net::TcpStream::connect(target)?)?;
    driver.block_on(async {
        for line in arena.split_inclusive(|byte| *byte == b'\n') {
            let line = Line(Arc::clone(&arena), sent..sent + line.len());
            sent += socket.send(line).map_err(|refused| refused.error)?.await?.sent?;
        }
        println!("{sent} bytes sent from an arena of {}", arena.len());
        Ok::<_, Box<dyn Error>>(())
    })?
}
