//! A peer that is neither the kernel nor our engine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use handoff_rds::wire::{
    FLAG_CONGESTION_MAP, FLAG_RETRANSMITTED, HEADER_LEN, Header, MAP_LEN, MAX_LANES, PORT,
    PROBE_PORT,
};
use handoff_testbed::Pair;
use socket2::{Domain, Type};

use crate::hosts::until;

/// The port of its sockets, and of those that it sends to.
pub(crate) const SOCKET: u16 = 4000;

/// Speaks as kernels do with one lane.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) sequence: u64,
    /// What TCP had acknowledged at the beginning.
    base: u64,
}

impl Peer {
    /// Connects from a port that tells of lane 0.
    pub(crate) fn connect(pair: &Pair, sequence: u64) -> Self {
        Self::connect_lane(pair, 0, sequence)
    }

    pub(crate) fn connect_lane(pair: &Pair, lane: u16, sequence: u64) -> Self {
        let stream = pair.left.namespace().run(|| {
            let ports = (40_000 + lane..50_000).step_by(MAX_LANES.into());
            let free = { ports }.find_map(|port| {
                let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
                socket.bind(&SocketAddr::from((pair.left.v4(), port)).into()).ok()?;
                socket.connect(&SocketAddr::from((pair.right.v4(), PORT)).into()).ok()?;
                Some(TcpStream::from(socket))
            });
            free.expect("connects")
        });
        Self { stream: stream.expect("enters"), sequence, base: 0 }
    }

    /// Is connected to by an engine.
    pub(crate) fn accept(listener: &TcpListener, sequence: u64) -> Self {
        Self { stream: listener.accept().expect("is connected to").0, sequence, base: 0 }
    }

    /// Waits until TCP has acknowledged everything, which is then counted as delivered.
    pub(crate) fn await_acknowledgements(&self) {
        until("acknowledged", || {
            let mut waiting: libc::c_int = 0;
            // SAFETY: the request writes an int.
            let answer =
                unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
            assert_eq!(answer, 0);
            waiting == 0
        });
    }

    /// Sends the map that a connection begins with, and waits until it is acknowledged.
    pub(crate) fn begin(&mut self) {
        self.send_map();
        self.await_acknowledgements();
        self.base = handoff_sys::tcp::bytes_acked(self.stream.as_fd()).expect("is TCP");
    }

    /// Bytes behind [`Peer::begin`] that TCP has acknowledged, also after the connection's end.
    pub(crate) fn acknowledged(&self) -> u64 {
        handoff_sys::tcp::bytes_acked(self.stream.as_fd()).expect("is TCP") - self.base
    }

    /// Sends a message: one with a number up to `again` was sent before.
    pub(crate) fn try_send(&mut self, payload: &[u8], again: u64) -> std::io::Result<()> {
        let header = self.next();
        let flags = if header.sequence <= again { FLAG_RETRANSMITTED } else { 0 };
        self.try_write(Header { flags, ..header }, payload)
    }

    fn write(&mut self, header: Header, payload: &[u8]) {
        self.try_write(header, payload).expect("is taken");
    }

    fn try_write(&mut self, header: Header, payload: &[u8]) -> std::io::Result<()> {
        let len = payload.len() as u32;
        let frame = [&Header { len, ..header }.to_bytes()[..], payload].concat();
        self.stream.write_all(&frame)
    }

    pub(crate) fn send_map(&mut self) {
        self.write(Header { flags: FLAG_CONGESTION_MAP, ..Header::default() }, &[0; MAP_LEN]);
    }

    /// The header of the next message.
    pub(crate) fn next(&mut self) -> Header {
        self.sequence += 1;
        let sequence = self.sequence;
        Header { sequence, source: SOCKET, destination: SOCKET, ..Header::default() }
    }

    pub(crate) fn send(&mut self, payload: &[u8]) {
        let header = self.next();
        self.write(header, payload);
    }

    /// Reads up to a message, and has pings answered.
    pub(crate) fn await_message(&mut self) {
        while self.read() != SOCKET {}
    }

    /// Reads up to a ping, and answers it.
    pub(crate) fn await_ping(&mut self) {
        while self.read() != 0 {}
    }

    /// Reads a frame that is no map; where it goes to. A ping is answered.
    fn read(&mut self) -> u16 {
        loop {
            // Acknowledges what comes with the next that it sends, or in its time.
            rustix::net::sockopt::set_tcp_quickack(&self.stream, false).expect("is TCP");
            let mut header = [0; HEADER_LEN];
            self.stream.read_exact(&mut header).expect("comes");
            let header = Header::parse(&header);
            self.stream.read_exact(&mut vec![0; header.len as usize]).expect("comes");
            if header.flags & FLAG_CONGESTION_MAP != 0 {
                continue;
            }
            if header.destination == 0 {
                self.sequence += 1;
                let pong = Header { sequence: self.sequence, ..Header::default() };
                assert_eq!(header.source, PROBE_PORT);
                self.write(Header { destination: PROBE_PORT, ..pong }, &[]);
            }
            return header.destination;
        }
    }
}
