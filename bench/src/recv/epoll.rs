//! The baseline: epoll_wait(2), level-triggered, and recv(2) into one reused buffer.

use std::{
    io::{self, ErrorKind, Read as _},
    net::TcpStream,
    os::fd::OwnedFd,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};

use super::reception::Receive;
use crate::network::{
    TIMEOUT,
    far::{FarEnd, Network},
    pattern::Stream,
};

/// Bytes of the buffer: small enough for a cache, large enough for few calls.
pub(super) const BUFFER: usize = 256 << 10;

pub(super) struct Epoll {
    socket: TcpStream,
    poll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
    /// Whether the last read filled the buffer, so that more may be there.
    filled: bool,
    received: u64,
}

impl Epoll {
    /// Makes a new connection that this engine receives from.
    pub(super) fn new(network: &impl Network) -> Result<(Self, Box<dyn FarEnd>), String> {
        let (socket, sender) = network.connect(None)?;
        let open = || -> io::Result<OwnedFd> {
            socket.set_nonblocking(true)?;
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&poll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            Ok(poll)
        };
        let poll = open().map_err(|error| format!("no epoll: {error}"))?;
        let (events, buffer) = (Vec::with_capacity(1), vec![0; BUFFER]);
        Ok((Self { socket, poll, events, buffer, filled: false, received: 0 }, sender))
    }
}

impl Epoll {
    /// Waits until the socket is readable or a signal comes.
    fn wait(&mut self) -> Result<(), String> {
        let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.poll, room, Some(&timeout)) {
            Ok(_) if self.events.is_empty() => Err(format!("nothing arrived for {TIMEOUT:?}")),
            // A signal ends the wait with nothing readable; the caller looks at the signal's flag.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("epoll_wait failed: {errno}")),
        }
    }
}

impl Receive for Epoll {
    /// Takes at most one buffer: with a faster sender, a loop would never end.
    fn receive(&mut self, stream: &mut Stream) -> Result<(), String> {
        if !std::mem::take(&mut self.filled) {
            self.wait()?;
        }
        match self.socket.read(&mut self.buffer) {
            Ok(0) => return Err("the connection has ended".into()),
            Ok(length) => {
                stream.take(&self.buffer[..length]);
                self.received += length as u64;
                self.filled = length == BUFFER;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("recv failed: {error}")),
        }
        Ok(())
    }

    fn copied(&self) -> Option<u64> {
        Some(self.received)
    }
}
