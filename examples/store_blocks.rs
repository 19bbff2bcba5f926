//! A block server, as in storage systems: a message is a header of 16 bytes, and blocks of 4 KiB, which go to the
//! disk from where they were received.
//!
//! `store-blocks ADDRESS:PORT FILE [IFACE QUEUE]` serves one connection, to its end. FILE must exist, and may be a
//! disk. With a queue of a NIC nothing is copied on the way; `handoff nic prepare` sets one aside, and steers the
//! connection there.
//!
//! A NIC puts packets where pages begin, so blocks lie in pieces. A disk takes pieces whose addresses and lengths are
//! multiples of what its DMA asks for, 4 bytes as a rule. That is why the header has 16 bytes, and not 15.

use std::error::Error;
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;

use handoff::{Buffer, Driver, File, Intake, Receiver, Region, RxBinding, Span};

const MEMORY: usize = 8 << 20;
const CHUNK: usize = 64 << 10;
const BLOCK: usize = 4096;
const MOST_BLOCKS: u32 = 16;
/// `O_DIRECT` of x86-64.
const DIRECT: i32 = 0o40000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, path, queue) = match arguments.as_slice() {
        [address, path] => (address, path, None),
        [address, path, device, queue] => (address, path, Some((device, queue.parse()?))),
        _ => return Err("usage: store-blocks ADDRESS:PORT FILE [IFACE QUEUE]".into()),
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(DIRECT);
    let driver = Driver::builder().zero_copy_receive(queue.is_some()).build()?;
    let file = driver.file(options.open(path).map_err(|error| format!("{path}: {error}"))?)?;
    let memory = Region::anonymous(MEMORY)?;
    let bound;
    let intake: Intake = match queue {
        Some((device, queue)) => {
            bound = driver.rx_queue(memory, &RxBinding::new(device, queue)?)?;
            driver.register(&bound)?;
            (&bound).into()
        }
        None => (&driver.pool(memory, CHUNK)?).into(),
    };
    let listener = TcpListener::bind(address.as_str())?;
    println!("listening on {}", listener.local_addr()?);
    let (stream, _) = listener.accept()?;
    let socket = driver.socket(stream)?;
    let mut store = Store {
        unit: file.alignment().map_or(BLOCK, |alignment| alignment.memory),
        file,
        aligned: Region::anonymous(MOST_BLOCKS as usize * BLOCK)?
            .take(MOST_BLOCKS as usize * BLOCK),
        copied: 0,
    };
    let mut bytes = Bytes { receiver: socket.receive(intake)?, rest: None };
    let mut blocks = 0;
    driver.block_on(async {
        while let Some(header) = bytes.header().await? {
            let first = u64::from_le_bytes(header[..8].try_into()?);
            let count = u32::from_le_bytes(header[8..12].try_into()?);
            if count == 0 || count > MOST_BLOCKS || header[12..] != [0; 4] {
                return Err(format!("no message has {count} blocks").into());
            }
            let offset = first.checked_mul(BLOCK as u64).ok_or("no disk has such a block")?;
            let pieces = bytes.pieces(count as usize * BLOCK).await?;
            store.write(pieces, offset).await?;
            blocks += u64::from(count);
            socket.send(Buffer::from(header.to_vec()))?.await?.sent?;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;
    let (engine, _) = bytes.receiver.engine();
    let received = bytes.receiver.tally().copied;
    println!(
        "{blocks} blocks by {engine}: {received} bytes copied to memory, {} in it",
        store.copied
    );
    Ok(())
}

/// The received bytes of a connection.
struct Bytes {
    receiver: Receiver,
    rest: Option<Span>,
}

impl Bytes {
    /// At most so many bytes in one piece; `None` at the end.
    async fn piece(&mut self, most: usize) -> Result<Option<Span>, Box<dyn Error>> {
        let mut span = match self.rest.take() {
            Some(rest) => rest,
            None => match self.receiver.next_span().await {
                Some(span) => span?,
                None => return Ok(None),
            },
        };
        if span.len() > most {
            let piece = span.split_to(most);
            self.rest = Some(span);
            return Ok(Some(piece));
        }
        Ok(Some(span))
    }

    /// The next header; `None` when the stream has ended between two messages.
    async fn header(&mut self) -> Result<Option<[u8; 16]>, Box<dyn Error>> {
        let mut header = [0; 16];
        let mut got = 0;
        while got < header.len() {
            match self.piece(header.len() - got).await? {
                Some(piece) => {
                    header[got..got + piece.len()].copy_from_slice(&piece);
                    got += piece.len();
                }
                None if got == 0 => return Ok(None),
                None => return Err("the stream ended in a header".into()),
            }
        }
        Ok(Some(header))
    }

    /// So many bytes, in unmoved pieces.
    async fn pieces(&mut self, len: usize) -> Result<Vec<Span>, Box<dyn Error>> {
        let mut pieces = Vec::new();
        let mut left = len;
        while left > 0 {
            let piece = self.piece(left).await?.ok_or("the stream ended in a block")?;
            left -= piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

/// The disk.
struct Store {
    file: File,
    /// The alignment of pieces.
    unit: usize,
    /// For blocks that are not aligned.
    aligned: Option<Buffer>,
    copied: u64,
}

impl Store {
    async fn write(&mut self, pieces: Vec<Span>, offset: u64) -> Result<(), Box<dyn Error>> {
        let fits = |piece: &Span| {
            piece.as_ptr().addr().is_multiple_of(self.unit) && piece.len().is_multiple_of(self.unit)
        };
        if pieces.iter().all(fits) {
            // One request for all of them. It owns the spans, and afterwards the NIC gets their memory
            // again.
            self.file.write_at(pieces, offset)?.await?.result?;
            return Ok(());
        }
        let mut buffer = self.aligned.take().ok_or("no memory")?;
        let mut at = 0;
        buffer.set_len(buffer.capacity());
        for piece in pieces {
            buffer[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        buffer.set_len(at);
        self.copied += at as u64;
        let written = self.file.write_at(buffer, offset)?.await?;
        self.aligned = Some(written.buffer);
        written.result?;
        Ok(())
    }
}
