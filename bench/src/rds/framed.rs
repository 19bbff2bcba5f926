//! The baseline: messages over TCP, each behind its length. One write has both.

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::TcpStream,
};

use super::{
    exchange::{Returned, Way},
    far::{Far, Post},
    job::{Job, Op},
};
use crate::network::{TIMEOUT, testbed::Testbed};

/// Bytes of the length before each message.
const HEAD: usize = 4;
/// Bytes of the read buffer. The rest of a longer message is read directly into its place.
const BUFFER: usize = 64 << 10;

/// A connection that carries messages.
struct Framed {
    stream: TcpStream,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    message: Vec<u8>,
}

impl Framed {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let buffer = vec![0; BUFFER];
        Ok(Self { stream, buffer, begin: 0, end: 0, message: Vec::new() })
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let head = (message.len() as u32).to_be_bytes();
        let both = [IoSlice::new(&head), IoSlice::new(message)];
        let written = again(|| self.stream.write_vectored(&both))?;
        match written.checked_sub(HEAD) {
            Some(written) => self.stream.write_all(&message[written..]),
            None => {
                self.stream.write_all(&head[written..])?;
                self.stream.write_all(message)
            }
        }
    }

    /// Whether the buffer has this many bytes, so that no call is needed for them.
    fn has(&self, bytes: usize) -> bool {
        self.end - self.begin >= bytes
    }

    /// The length of the next message in bytes; `None` at the end of the stream.
    fn head(&mut self) -> io::Result<Option<usize>> {
        while !self.has(HEAD) {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            match again(|| self.stream.read(&mut self.buffer[self.end..]))? {
                0 => return Ok(None),
                read => self.end += read,
            }
        }
        let head = self.buffer[self.begin..].first_chunk().expect("is there");
        self.begin += HEAD;
        Ok(Some(u32::from_be_bytes(*head) as usize))
    }

    /// The next message; `None` at the end of the stream.
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(len) = self.head()? else { return Ok(None) };
        self.message.resize(len, 0);
        let here = len.min(self.end - self.begin);
        self.message[..here].copy_from_slice(&self.buffer[self.begin..self.begin + here]);
        self.begin += here;
        self.stream.read_exact(&mut self.message[here..])?;
        Ok(Some(&self.message))
    }
}

/// Repeats an interrupted call. On a socket with a time-out, the kernel does not restart it after a signal or a
/// ring's work.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

pub(super) struct Tcp {
    connections: Vec<Framed>,
    message: Vec<u8>,
    copied: u64,
}

impl Tcp {
    /// Makes the connections, and a thread at the far end of each.
    pub(super) fn new(testbed: &Testbed, job: Job) -> Result<(Self, Far), String> {
        let failed = |error: io::Error| format!("no connection: {error}");
        let (mut far, mut connections) = (Far::new()?, Vec::new());
        for _ in job.ports() {
            let (near, distant) = testbed.connection()?;
            near.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
            near.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
            connections.push(Framed::new(near).map_err(failed)?);
            let serve = move |framed, post: &Post| {
                let served = match job.op {
                    Op::Ask => answer(framed),
                    Op::Stream => take_in(framed, |bytes| post.arrivals.add(bytes)),
                };
                served.map_err(|error| format!("the far end failed: {error}"))
            };
            far.start(testbed, move || Framed::new(distant).map_err(failed), serve)?;
        }
        Ok((Self { connections, message: vec![7; job.bytes], copied: 0 }, far))
    }
}

fn answer(mut framed: Framed) -> io::Result<()> {
    while framed.receive()?.is_some() {
        let message = std::mem::take(&mut framed.message);
        framed.send(&message)?;
        framed.message = message;
    }
    Ok(())
}

fn take_in(mut framed: Framed, mut tell: impl FnMut(u64)) -> io::Result<()> {
    let mut untold = 0;
    while let Some(message) = framed.receive()? {
        untold += message.len() as u64;
        if !framed.has(HEAD) {
            tell(std::mem::take(&mut untold));
        }
    }
    Ok(())
}

impl Way for Tcp {
    fn stream(&mut self, over: &dyn Fn() -> bool) -> Result<u64, String> {
        /// Messages between two looks at the clock.
        const LOOK: usize = 16;

        let mut sent = 0;
        while !over() {
            for at in (0..self.connections.len()).cycle().take(LOOK) {
                let sent_now = self.connections[at].send(&self.message);
                sent_now.map_err(|error| format!("write: {error}"))?;
                sent += 1;
            }
        }
        self.copied += sent * self.message.len() as u64;
        Ok(sent)
    }

    fn ask(&mut self) -> Result<(), String> {
        let connection = &mut self.connections[0];
        let exchanged = connection.send(&self.message).and_then(|()| connection.receive());
        match exchanged.map_err(|error| format!("TCP: {error}"))? {
            Some(answer) if answer.len() == self.message.len() => {
                self.copied += answer.len() as u64;
                Ok(())
            }
            Some(answer) => Err(format!("an answer of {} bytes", answer.len())),
            None => Err("the connection has ended".to_owned()),
        }
    }

    fn returned(&self) -> Returned {
        Returned { copied: Some(self.copied), reaped: None }
    }
}
