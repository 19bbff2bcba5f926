//! One connection that sends a given number of requests, and discards the answers.
//!
//! Contracts:
//!
//! 1. The first answer must have status 200 and the expected length; otherwise it is an error. All other
//!    answers have the same length.
//! 2. Answers are not copied to user memory (MSG_TRUNC of tcp(7)).

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use handoff_testbed::Namespace;
use rustix::net::{RecvFlags, recv};

use super::testbed::Testbed;
use crate::network::{TIMEOUT, drain::take};

const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// Bytes that are enough for any server's head.
const LONGEST_HEAD: usize = 1 << 10;

/// The client, at the far end.
pub(super) struct Asking {
    namespace: Namespace,
    address: (Ipv4Addr, u16),
}

impl Asking {
    pub(super) fn new(testbed: &Testbed, address: (Ipv4Addr, u16)) -> Self {
        let namespace = testbed.network().connecting().namespace().clone();
        Self { namespace, address }
    }

    /// Requests the file of `size` bytes, `times` times, as soon as somebody listens at the address. Returns
    /// the bytes of an answer's head. It stops trying to connect when the server is `gone`.
    ///
    /// # Errors
    ///
    /// One line that says what is wrong with an answer.
    pub(super) fn ask(&self, size: u64, times: u64, gone: &AtomicBool) -> Result<u64, String> {
        let mut stream = self.connect(gone)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(line)?;
        let request = format!("GET /{size} HTTP/1.1\r\nHost: bench\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(line)?;
        let head = take_head(&mut stream, size)?;
        discard(&stream, size).map_err(line)?;
        for _ in 1..times {
            stream.write_all(request.as_bytes()).map_err(line)?;
            discard(&stream, head + size).map_err(line)?;
        }
        Ok(head)
    }

    fn connect(&self, gone: &AtomicBool) -> Result<TcpStream, String> {
        let begin = Instant::now();
        loop {
            let connected = self.namespace.run(|| TcpStream::connect(self.address));
            match connected.map_err(|error| error.to_string())? {
                Ok(stream) => return Ok(stream),
                Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => {
                    return Err(format!("no connection: {error}"));
                }
                Err(_) if gone.load(Ordering::Relaxed) => return Err("it is gone".to_owned()),
                Err(_) if begin.elapsed() > TIMEOUT => {
                    return Err(format!("it does not listen for {TIMEOUT:?}"));
                }
                Err(_) => thread::sleep(BETWEEN_TRIES),
            }
        }
    }
}

fn line(error: io::Error) -> String {
    format!("the server does not answer: {error}")
}

/// Reads a head and nothing behind it. Returns its length in bytes.
fn take_head(stream: &mut TcpStream, size: u64) -> Result<u64, String> {
    let mut space = [0; LONGEST_HEAD];
    let begin = Instant::now();
    let len = loop {
        let (seen, _) =
            recv(&*stream, &mut space, RecvFlags::PEEK).map_err(|it| line(it.into()))?;
        if let Some(at) = space[..seen].windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if seen == 0 || seen == LONGEST_HEAD || begin.elapsed() > TIMEOUT {
            return Err("the server sends no head of an answer".to_owned());
        }
        thread::yield_now();
    };
    stream.read_exact(&mut space[..len]).map_err(line)?;
    let head = String::from_utf8_lossy(&space[..len]).to_lowercase();
    let length = format!("content-length: {size}");
    let status = head.lines().next().unwrap_or_default();
    if !status.starts_with("http/1.1 200") {
        return Err(format!("the server answers '{status}'"));
    }
    match head.lines().any(|field| field == length) {
        true => Ok(len as u64),
        false => Err(format!("the server's answer has no '{length}'")),
    }
}

fn discard(stream: &TcpStream, mut left: u64) -> io::Result<()> {
    while left > 0 {
        let most = left.min(1 << 20) as usize;
        match take(stream, most)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            taken => left -= taken,
        }
    }
    Ok(())
}
