//! The far end of a row: a thread of ours that does what is ordered, with the kernel's cipher where it can.
//!
//! Contracts:
//!
//! 1. The thread does nothing but the ordered number of pieces, and counts what is done.
//! 2. Dropping the handle ends the connection and the thread.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

use handoff::{Buffer, Driver, Region, Socket, tls::Ciphering};
use handoff_testbed::Namespace;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::identity::Identity;
use crate::{
    network::{TIMEOUT, arrivals::Arrivals},
    processor::Waits,
};

/// What the thread does for each piece.
pub(super) enum Part {
    /// Accepts TLS on this connection, and receives bytes.
    Sink(TcpStream),
    /// Begins TLS on this connection, and sends bytes.
    Source(TcpStream),
    /// Accepts TLS on this connection, and sends each piece back.
    Echo(TcpStream),
    /// Begins TLS on this connection, and asks for the file of this name.
    Asks(TcpStream, u64),
    /// Connects to this address out of this namespace, makes a handshake and leaves.
    Connects(Namespace, (Ipv4Addr, u16)),
    /// Accepts a connection, makes a handshake, and waits for the other end to leave.
    Accepts(TcpListener),
}

/// The thread's handle.
pub(super) struct Far {
    arrivals: Arc<Arrivals>,
    orders: Option<Sender<u64>>,
    ordered: u64,
    /// What makes the thread end, whatever it waits for.
    held: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

fn line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Far {
    /// Starts the thread on these processors. A piece has this many bytes.
    ///
    /// # Errors
    ///
    /// If no thread can be started, in one line.
    pub(super) fn new(
        part: Part,
        piece: u64,
        identity: &Arc<Identity>,
        processors: CpuSet,
    ) -> Result<Self, String> {
        let (orders, ordered) = channel();
        let arrivals = Arc::new(Arrivals::default());
        let held: Option<io::Result<OwnedFd>> = match &part {
            Part::Sink(stream)
            | Part::Source(stream)
            | Part::Echo(stream)
            | Part::Asks(stream, _) => Some(stream.try_clone().map(Into::into)),
            Part::Accepts(listener) => Some(listener.try_clone().map(Into::into)),
            Part::Connects(..) => None,
        };
        let held = held.transpose().map_err(line)?;
        let (its, identity) = (Arc::clone(&arrivals), Arc::clone(identity));
        let at_work = Work { orders: ordered, arrivals: its, piece };
        let thread = thread::Builder::new().name("bench-tls-far".into()).spawn(move || {
            at_work.arrivals.join();
            let prepared = sched_setaffinity(None, &processors).map_err(line);
            let ended = prepared.and_then(|()| at_work.run(part, &identity));
            at_work.arrivals.end(match ended {
                Ok(()) => "the far end has ended".to_owned(),
                Err(error) => format!("the far end failed: {error}"),
            });
        });
        let thread = Some(thread.map_err(line)?);
        Ok(Self { arrivals, orders: Some(orders), ordered: 0, held, thread })
    }

    /// Orders so many pieces of this many units in all: bytes, or pieces where nobody cares for bytes.
    pub(super) fn order(&mut self, pieces: u64, units: u64) {
        self.ordered += units;
        if let Some(orders) = &self.orders {
            // Who has ended says why when it is asked for the units.
            let _ = orders.send(pieces);
        }
    }

    /// Whether all that was ordered is done, or never will be.
    pub(super) fn is_through(&self) -> bool {
        self.arrivals.total() >= self.ordered || self.arrivals.ended().is_some()
    }

    /// Returns when all that was ordered is done.
    ///
    /// # Errors
    ///
    /// Why it is not, in one line.
    pub(super) fn await_all(&self) -> Result<(), String> {
        self.arrivals.await_total(self.ordered)
    }

    /// The units done so far.
    pub(super) fn done(&self) -> u64 {
        self.arrivals.total()
    }

    /// How long the thread has run, and how long it was kept waiting so far.
    pub(super) fn waits(&self) -> Waits {
        self.arrivals.waits()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(held) = &self.held {
            // The peer may have ended the connection first.
            let _ = rustix::net::shutdown(held, rustix::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            // The thread's panic was reported on stderr.
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Work {
    orders: Receiver<u64>,
    arrivals: Arc<Arrivals>,
    piece: u64,
}

impl Work {
    fn run(&self, part: Part, identity: &Identity) -> Result<(), String> {
        let driver = Driver::new().map_err(line)?;
        let accepted = |stream: TcpStream| -> Result<Socket, String> {
            let acceptor = identity.acceptor(Ciphering::Auto)?;
            let socket = driver.socket(stream).map_err(line)?;
            let accepting = driver.timeout(TIMEOUT, acceptor.accept(socket));
            Ok(driver.block_on(accepting).map_err(line)?.map_err(line)?.map_err(line)?.0)
        };
        let connected = |stream: TcpStream| -> Result<Socket, String> {
            let connector = identity.connector(Ciphering::Auto)?;
            let socket = driver.socket(stream).map_err(line)?;
            let connecting = driver.timeout(TIMEOUT, connector.connect(socket, Identity::name()));
            Ok(driver.block_on(connecting).map_err(line)?.map_err(line)?.map_err(line)?.0)
        };
        match part {
            Part::Sink(stream) => self.takes(&driver, &accepted(stream)?),
            Part::Source(stream) => self.sends(&driver, &connected(stream)?),
            Part::Echo(stream) => self.echoes(&driver, &accepted(stream)?),
            Part::Asks(stream, name) => self.asks(&driver, &connected(stream)?, name),
            Part::Connects(namespace, address) => {
                let _inside = namespace.enter_thread().map_err(line)?;
                self.each(|| {
                    let socket = connected(TcpStream::connect(address).map_err(line)?)?;
                    socket.shutdown(Shutdown::Write).map_err(line)?;
                    self.arrivals.add(1);
                    Ok(())
                })
            }
            Part::Accepts(listener) => self.each(|| {
                let socket = accepted(listener.accept().map_err(line)?.0)?;
                self.arrivals.add(1);
                // A client of openssl just leaves.
                let end = socket.receive_into(Buffer::from(vec![0])).map_err(line)?;
                driver.block_on(end).map_err(line)?.map_err(line)?;
                Ok(())
            }),
        }
    }

    /// Works for each piece.
    fn each(&self, mut work: impl FnMut() -> Result<(), String>) -> Result<(), String> {
        while let Ok(pieces) = self.orders.recv() {
            for _ in 0..pieces {
                work()?;
            }
        }
        Ok(())
    }

    /// Memory of the driver's for one piece.
    fn buffer(&self, driver: &Driver) -> Result<Buffer, String> {
        let len = self.piece as usize;
        let mut region = Region::anonymous(len).map_err(line)?;
        // Without a ring it goes unregistered.
        let _ = driver.register(&region);
        region.take(len).ok_or_else(|| "no memory".to_owned())
    }

    fn takes(&self, driver: &Driver, socket: &Socket) -> Result<(), String> {
        let mut buffer = Some(self.buffer(driver)?);
        self.each(|| {
            buffer = Some(receive(driver, socket, buffer.take().expect("is back"))?);
            self.arrivals.add(self.piece);
            Ok(())
        })
    }

    fn sends(&self, driver: &Driver, socket: &Socket) -> Result<(), String> {
        let mut buffer = Some(self.buffer(driver)?);
        self.each(|| {
            buffer = Some(send(driver, socket, buffer.take().expect("is back"))?);
            self.arrivals.add(self.piece);
            Ok(())
        })
    }

    fn echoes(&self, driver: &Driver, socket: &Socket) -> Result<(), String> {
        let mut buffer = Some(self.buffer(driver)?);
        self.each(|| {
            let received = receive(driver, socket, buffer.take().expect("is back"))?;
            buffer = Some(send(driver, socket, received)?);
            self.arrivals.add(1);
            Ok(())
        })
    }

    fn asks(&self, driver: &Driver, socket: &Socket, name: u64) -> Result<(), String> {
        const ENOUGH_FOR_A_HEAD: usize = 16 << 10;
        let request = format!("GET /{name} HTTP/1.1\r\nHost: bench.invalid\r\n\r\n").into_bytes();
        let mut buffer = Some(self.buffer(driver)?);
        self.each(|| {
            send(driver, socket, Buffer::from(request.clone()))?;
            let (mut head, mut body) = (Vec::new(), None);
            while body.is_none_or(|body: u64| body < self.piece) {
                let mut room = buffer.take().expect("is back");
                let left = self.piece - body.unwrap_or(0);
                // Not a byte of the next answer.
                room.set_len(if body.is_some() {
                    left as usize
                } else {
                    room.capacity().min(ENOUGH_FOR_A_HEAD)
                });
                let received = socket.receive_into(room).map_err(line)?;
                let received = driver.block_on(received).map_err(line)?.map_err(line)?;
                let count = received.result.map_err(line)?;
                if count == 0 {
                    return Err("the server has ended the connection".to_owned());
                }
                match &mut body {
                    Some(body) => *body += count as u64,
                    None => {
                        head.extend_from_slice(&received.buffer[..count]);
                        body = body_begun(&head, self.piece)?;
                    }
                }
                buffer = Some(received.buffer);
            }
            self.arrivals.add(self.piece);
            Ok(())
        })
    }
}

/// How much of its body came with a head; `None` if the head is not whole.
///
/// # Errors
///
/// An answer that has no such body, in one line.
fn body_begun(head: &[u8], wanted: u64) -> Result<Option<u64>, String> {
    let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") else { return Ok(None) };
    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
    let mut lines = text.lines();
    let status = lines.next().unwrap_or_default();
    let len = lines.find_map(|it| it.strip_prefix("content-length:")?.trim().parse::<u64>().ok());
    match status.contains(" 200 ") && len == Some(wanted) {
        true => Ok(Some((head.len() - end - 4) as u64)),
        false => Err(format!("it answers {status:?} with {len:?} bytes")),
    }
}

/// Fills the buffer.
///
/// # Errors
///
/// One line with the error, or that the stream ended.
pub(super) fn receive(
    driver: &Driver,
    socket: &Socket,
    mut buffer: Buffer,
) -> Result<Buffer, String> {
    buffer.set_len(buffer.capacity());
    let received = driver.block_on(socket.receive_exact(buffer).map_err(line)?);
    let received = received.map_err(line)?.map_err(line)?;
    received.result.map_err(line)?;
    Ok(received.buffer)
}

/// Sends the buffer.
///
/// # Errors
///
/// One line with the error.
fn send(driver: &Driver, socket: &Socket, buffer: Buffer) -> Result<Buffer, String> {
    let sending = socket.send(buffer).map_err(line)?;
    let sent = driver.block_on(async { sending.await }).map_err(line)?.map_err(line)?;
    sent.sent.map_err(line)?;
    Ok(sent.buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_begins_behind_its_head() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
        assert_eq!(body_begun(head, 10), Ok(Some(3)));
        assert_eq!(body_begun(&head[..30], 10), Ok(None));
        assert!(body_begun(head, 11).is_err());
        assert!(body_begun(b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n", 10).is_err());
    }
}
