//! Serves a disk in memory over NBD, one thread a connection: `serve_memory unix:PATH|ADDRESS:PORT BYTES`.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread;

use handoff_nbd::request::{Extent, Operation, Request};
use handoff_nbd::server::{
    Answer, Event, Expect, Export, Exports, Limits, Listed, Negotiation, Policy, Refused, Requests,
    Step,
};
use handoff_nbd::target::BlockSizes;
use handoff_nbd::wire::{StateFlags, TransmissionFlags};

/// A disk; what is only zeroes in pieces of this size counts as a hole.
pub(crate) type Disk = Mutex<Vec<u8>>;
const PIECE: usize = 4096;

/// The table of exports: one disk, `memory`, which is also the default.
struct Table(u64);

impl Exports for Table {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: "memory".into(), description: "a disk in memory".into() }]
    }

    fn find(&self, name: &str) -> Result<Export, Refused> {
        if !["", "memory"].contains(&name) {
            return Err(Refused::Unknown);
        }
        Ok(Export {
            name: "memory".into(),
            description: "a disk in memory".into(),
            size: self.0,
            flags: TransmissionFlags::all()
                - TransmissionFlags::READ_ONLY
                - TransmissionFlags::ROTATIONAL,
            block: BlockSizes::default(),
            needs_block_sizes: false,
            has_allocation: true,
        })
    }
}

/// Serves a connection until its client has done.
pub(crate) fn serve(stream: &mut (impl Read + Write), disk: &Disk) -> io::Result<()> {
    let table = Table(disk.lock().expect("no thread panicked").len() as u64);
    let (mut negotiation, greeting) = Negotiation::new(Policy::default(), Limits::default());
    stream.write_all(&greeting)?;
    let mut buffer = vec![0; 1 << 16];
    let (mut from, mut to) = (0, 0);
    let agreed = loop {
        let (taken, step) =
            negotiation.next(&buffer[from..to], &table).map_err(io::Error::other)?;
        from += taken;
        match step {
            Step::More => (from, to) = (0, stream.read(&mut buffer)?),
            Step::Send(bytes) => stream.write_all(&bytes)?,
            Step::Session(_) => stream.write_all(&negotiation.admit(1))?,
            Step::Abort(bytes) => return stream.write_all(&bytes),
            Step::Ready(bytes, agreed) => {
                stream.write_all(&bytes)?;
                break agreed;
            }
            Step::StartTls(_) | Step::Waiting => return Err(io::Error::other("no step follows")),
        }
        if from == 0 && to == 0 {
            return Ok(());
        }
    };
    let mut requests = Requests::new(agreed.target);
    let mut write = None;
    loop {
        let (taken, event) = requests.next(&buffer[from..to]).map_err(io::Error::other)?;
        let bytes = &buffer[from..from + taken];
        from += taken;
        let mut disk = disk.lock().expect("no thread panicked");
        match event {
            Some(Event::Request(request, answer)) if request.payload() > 0 => {
                write = Some((request, answer));
            }
            Some(Event::Request(request, answer)) => carry_out(stream, request, answer, &mut disk)?,
            Some(Event::Refused(refusal, answer)) => {
                stream.write_all(&answer.fail(refusal.error, refusal.text))?;
            }
            Some(Event::Payload(at)) => {
                let start = write.as_ref().map_or(0, |(request, _): &(Request, _)| request.offset);
                disk[(start + at) as usize..][..taken].copy_from_slice(bytes);
            }
            Some(Event::Disconnect) => return Ok(()),
            None => match (requests.expect(), &write) {
                // Payload that is not here yet goes straight to its place.
                (Expect::Payload(left), Some((request, _))) => {
                    let start = request.offset + request.length - left;
                    stream.read_exact(&mut disk[start as usize..][..left as usize])?;
                    requests.received(left);
                }
                _ => {
                    drop(disk);
                    (from, to) = (0, stream.read(&mut buffer)?);
                    if to == 0 {
                        return Ok(());
                    }
                }
            },
        }
        if write.is_some() && !matches!(requests.expect(), Expect::Payload(_)) {
            let (_, answer) = write.take().expect("is there");
            stream.write_all(&answer.done().map_err(io::Error::other)?)?;
        }
    }
}

/// Carries out what has no payload of the client, and answers.
fn carry_out(
    stream: &mut impl Write,
    request: Request,
    mut answer: Answer,
    disk: &mut [u8],
) -> io::Result<()> {
    let (start, len) = (request.offset as usize, request.length as usize);
    let bytes = &mut disk[start..][..len];
    match request.operation {
        Operation::Read { .. } if answer.takes_parts() => {
            for (part, is_hole) in parts(bytes) {
                let part = &bytes[part];
                if is_hole {
                    stream.write_all(&answer.hole(part.len() as u64).map_err(io::Error::other)?)?;
                } else {
                    stream.write_all(&answer.data(part.len() as u64).map_err(io::Error::other)?)?;
                    stream.write_all(part)?;
                }
            }
        }
        Operation::Read { .. } => {
            stream.write_all(&answer.last_data().map_err(io::Error::other)?)?;
            return stream.write_all(bytes);
        }
        Operation::BlockStatus { one } => {
            let both = StateFlags::HOLE | StateFlags::ZERO;
            let extents = parts(bytes).into_iter().map(|(part, is_hole)| Extent {
                length: part.len() as u64,
                state: if is_hole { both } else { StateFlags::empty() },
            });
            let extents: Vec<_> = extents.take(if one { 1 } else { usize::MAX }).collect();
            return stream.write_all(&answer.status(1, &extents).map_err(io::Error::other)?);
        }
        Operation::Trim | Operation::WriteZeroes { .. } => bytes.fill(0),
        Operation::Flush | Operation::Cache | Operation::Write => {}
    }
    stream.write_all(&answer.done().map_err(io::Error::other)?)
}

/// Holes and what is none, in turns.
fn parts(bytes: &[u8]) -> Vec<(std::ops::Range<usize>, bool)> {
    let mut parts: Vec<(std::ops::Range<usize>, bool)> = Vec::new();
    for piece in bytes.chunks(PIECE) {
        let is_hole = piece.iter().all(|byte| *byte == 0);
        let end = parts.last().map_or(0, |(part, _)| part.end);
        match parts.last_mut() {
            Some((part, before)) if *before == is_hole => part.end += piece.len(),
            _ => parts.push((end..end + piece.len(), is_hole)),
        }
    }
    parts
}

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, address, size] = &arguments[..] else {
        return Err(io::Error::other("give unix:PATH or ADDRESS:PORT, and a number of bytes"));
    };
    let disk: Arc<Disk> = Arc::new(Mutex::new(vec![0; size.parse().map_err(io::Error::other)?]));
    let end = |result: io::Result<()>| result.unwrap_or_else(|error| eprintln!("{error}"));
    if let Some(path) = address.strip_prefix("unix:") {
        for stream in UnixListener::bind(path)?.incoming() {
            let (mut stream, disk) = (stream?, disk.clone());
            thread::spawn(move || end(serve(&mut stream, &disk)));
        }
    } else {
        for stream in TcpListener::bind(address.as_str())?.incoming() {
            let (mut stream, disk) = (stream?, disk.clone());
            stream.set_nodelay(true)?;
            thread::spawn(move || end(serve(&mut stream, &disk)));
        }
    }
    Ok(())
}
