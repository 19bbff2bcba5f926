//! Reads an export into a file, over NBD: `read_export unix:PATH|ADDRESS:PORT EXPORT FILE`. Holes stay holes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use handoff_nbd::client::{
    Agreed, Event, Expect, Limits, Negotiation, NegotiationError, Replies, Step, Wish, abort,
};
use handoff_nbd::request::{Operation, Request};

/// Requests under way at a time, and the most bytes of one.
const DEPTH: u64 = 4;
const LENGTH: u64 = 1 << 18;

/// Negotiates, and returns what was agreed.
pub(crate) fn negotiate(stream: &mut (impl Read + Write), wish: Wish) -> io::Result<Agreed> {
    let mut negotiation = Negotiation::new(wish, Limits::default());
    let mut byte = [0; 1];
    let mut came = 0;
    loop {
        // By the byte, so that nothing behind the negotiation is taken.
        let step = match negotiation.next(&byte[..came]) {
            Ok((_, step)) => step,
            Err(error) => {
                if matches!(error, NegotiationError::Refused { .. }) {
                    stream.write_all(&abort())?;
                }
                return Err(io::Error::other(error));
            }
        };
        came = 0;
        match step {
            Step::More => {
                stream.read_exact(&mut byte)?;
                came = 1;
            }
            Step::Send(bytes) => stream.write_all(&bytes)?,
            Step::Ready(agreed) => return Ok(*agreed),
            _ => return Err(io::Error::other("the server has done with us")),
        }
    }
}

/// Reads the whole export, with several requests under way; `write` gets the bytes and their places. Returns how many
/// bytes were told to be zeroes.
pub(crate) fn read_all(
    stream: &mut (impl Read + Write),
    agreed: &Agreed,
    mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<u64> {
    let mut replies = Replies::new(agreed, DEPTH as u32);
    let most = LENGTH.min(u64::from(agreed.target.block.maximum));
    let (mut next, mut open, mut zeroes) = (0, Vec::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    let mut came = 0;
    while next < agreed.target.size || !open.is_empty() {
        while next < agreed.target.size && (open.len() as u64) < DEPTH {
            let length = most.min(agreed.target.size - next);
            let operation = Operation::Read { unfragmented: false };
            let request = Request { operation, offset: next, length, fua: false };
            let (cookie, head) = replies.issue(request).map_err(io::Error::other)?;
            stream.write_all(&head)?;
            open.push((cookie, next));
            next += length;
        }
        let (taken, event) = replies.next(&buffer[..came]).map_err(io::Error::other)?;
        assert_eq!(taken, came, "no more was read than was expected");
        let place = |cookie| open.iter().find(|(other, _)| *other == cookie).map_or(0, |it| it.1);
        match event {
            Some(Event::Payload { cookie, at }) => write(&buffer[..came], place(cookie) + at)?,
            Some(Event::Zeroes { len, .. }) => zeroes += len,
            Some(Event::Done { cookie, result }) => {
                result.map_err(io::Error::other)?;
                open.retain(|(other, _)| *other != cookie);
            }
            Some(Event::Data { .. } | Event::Status { .. }) => {}
            None => {
                let want = match replies.expect() {
                    Expect::Machine(want) => want,
                    Expect::Payload { left, .. } => left.min(buffer.len() as u64) as usize,
                };
                stream.read_exact(&mut buffer[..want])?;
                came = want;
                continue;
            }
        }
        came = 0;
    }
    stream.write_all(&replies.disconnect())?;
    Ok(zeroes)
}

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, address, export, file] = &arguments[..] else {
        return Err(io::Error::other("give unix:PATH or ADDRESS:PORT, an export and a file"));
    };
    match address.strip_prefix("unix:") {
        Some(path) => copy(UnixStream::connect(path)?, export, file),
        None => copy(TcpStream::connect(address.as_str())?, export, file),
    }
}

fn copy(mut stream: impl Read + Write, export: &str, path: &str) -> io::Result<()> {
    let agreed = negotiate(&mut stream, Wish::export(export))?;
    let file = File::create(path)?;
    file.set_len(agreed.target.size)?;
    let zeroes = read_all(&mut stream, &agreed, |bytes, at| file.write_all_at(bytes, at))?;
    println!(
        "{} bytes by {:?}, {zeroes} told as zeroes",
        agreed.target.size, agreed.target.framing
    );
    Ok(())
}
