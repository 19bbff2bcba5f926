//! A driver of the protocol over TCP, as plain as it can be, in the client's role.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use handoff::Tally;
use handoff_rds::protocol::{Body, ConnectionId, Expect, Host, Limits, Message, MessageId, Output};
use handoff_rds::wire::{CongestionMap, HEADER_LEN, MAP_LEN, PORT};
use handoff_testbed::PairEnd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Type};

use crate::peers::Timeout;

pub(crate) struct Driver {
    pub(crate) host: Host<Vec<u8>, Vec<u8>>,
    end: PairEnd,
    streams: BTreeMap<ConnectionId, Stream>,
    begin: Instant,
    next_port: u16,
    /// Of which the host wants to know when what is unread is taken in.
    awaited: Option<ConnectionId>,
    /// By which connection the newest map came, when, and the ports that it calls congested.
    last_map: Option<(ConnectionId, Instant, Vec<u16>)>,
    maps_sent: u64,
}

struct Stream {
    tcp: TcpStream,
    unsent: Vec<u8>,
    unread: Vec<u8>,
    /// Bytes given to TCP.
    sent: u64,
    /// The sending side is to be shut down once everything is written.
    finishing: bool,
}

impl Driver {
    pub(crate) fn new(end: &PairEnd, generation: u32, limits: Limits) -> Self {
        Self {
            host: Host::new(end.v4().into(), generation, limits),
            end: end.clone(),
            streams: BTreeMap::new(),
            begin: Instant::now(),
            next_port: 20_000,
            awaited: None,
            last_map: None,
            maps_sent: 0,
        }
    }

    pub(crate) fn message(
        from: u16,
        to: SocketAddr,
        payload: Vec<u8>,
        cookie: u32,
    ) -> Message<Vec<u8>> {
        let len = payload.len();
        Message { from, to: to.ip(), port: to.port(), payload, len, cookie }
    }

    pub(crate) fn connections(&self) -> usize {
        self.streams.len()
    }

    /// How many maps were begun.
    pub(crate) fn maps_sent(&self) -> u64 {
        self.maps_sent
    }

    /// The newest map that came, for a failure's message.
    pub(crate) fn last_map(&self) -> String {
        match &self.last_map {
            None => "no map came".to_owned(),
            Some((by, at, ports)) => {
                format!("{:?} ago {by:?} brought a map with {ports:?}", at.elapsed())
            }
        }
    }

    /// Goes round until `done`.
    pub(crate) fn until(&mut self, mut done: impl FnMut(&mut Host<Vec<u8>, Vec<u8>>) -> bool) {
        let mut timeout = Timeout::new();
        while !done(&mut self.host) {
            self.turn();
            assert!(!timeout.is_over(), "{:?}", self.host.statistics());
        }
    }

    /// Everything that can be done now, then a short wait for more.
    pub(crate) fn turn(&mut self) {
        self.host.advance(self.begin.elapsed());
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.write(id);
            if !self.read(id) {
                self.close(id);
            } else if self.awaited == Some(id) && self.host.expect(id) != Expect::Nothing {
                self.awaited = None;
                self.host.caught_up(id);
            }
        }
        while let Some(output) = self.host.poll() {
            match output {
                Output::Connect { connection, peer, lane } => self.connect(connection, peer, lane),
                Output::Ready(id) => self.write(id),
                Output::Resume(_) => {}
                Output::Accept(_) => unreachable!("it is the client"),
                Output::CatchUp(id) => self.awaited = Some(id),
                Output::Finish(id) => self.finish(id),
                Output::Drain(id) => self.close(id),
                Output::Close { connection, reason, .. } => {
                    println!("closed: {reason}");
                    self.streams.remove(&connection);
                }
            }
        }
        let wanted = |stream: &Stream| {
            if stream.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
        };
        let streams = self.streams.values();
        let mut polled: Vec<_> =
            streams.map(|stream| PollFd::new(&stream.tcp, wanted(stream))).collect();
        let short = Timespec::try_from(Duration::from_millis(2)).expect("is short");
        poll(&mut polled, Some(&short)).expect("polls");
    }

    fn connect(&mut self, id: ConnectionId, peer: IpAddr, lane: u8) {
        let socket = self.end.namespace().run(|| {
            socket2::Socket::new(Domain::for_address((peer, PORT).into()), Type::STREAM, None)
        });
        let socket = socket.expect("enters").expect("opens");
        self.next_port = self.next_port / 8 * 8 + 8 + u16::from(lane);
        let own = SocketAddr::from((IpAddr::from(self.end.v4()), self.next_port));
        socket.bind(&SockAddr::from(own)).expect("is free");
        match socket.connect(&SockAddr::from(SocketAddr::from((peer, PORT)))) {
            Ok(()) => {
                socket.set_nonblocking(true).expect("sets");
                let tcp = TcpStream::from(socket);
                let stream = Stream {
                    tcp,
                    unsent: Vec::new(),
                    unread: Vec::new(),
                    sent: 0,
                    finishing: false,
                };
                self.streams.insert(id, stream);
                self.host.connected(id);
            }
            Err(_) => self.host.closed(id),
        }
    }

    fn write(&mut self, id: ConnectionId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        loop {
            if stream.unsent.is_empty() {
                let Some(write) = self.host.next_write(id) else { break };
                stream.unsent.extend(write.header);
                match write.body {
                    Body::Empty => {}
                    Body::Map(map) => {
                        self.maps_sent += 1;
                        stream.unsent.extend(map.as_bytes());
                    }
                    Body::Message(message) => {
                        Self::copy(&mut self.host, message, &mut stream.unsent)
                    }
                }
            }
            match stream.tcp.write(&stream.unsent) {
                Ok(len) => {
                    stream.sent += len as u64;
                    stream.unsent.drain(..len);
                }
                Err(_) => break,
            }
        }
        let mut waiting: libc::c_int = 0;
        // SAFETY: the request writes an int.
        let answer =
            unsafe { libc::ioctl(stream.tcp.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
        assert_eq!(answer, 0);
        self.host.acknowledged(id, stream.sent - waiting as u64);
        if stream.finishing && stream.unsent.is_empty() {
            // Where the peer has reset it meanwhile, reading ends it.
            let _ = stream.tcp.shutdown(Shutdown::Write);
            stream.finishing = false;
        }
    }

    fn finish(&mut self, id: ConnectionId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.finishing = true;
            self.write(id);
        }
    }

    fn copy(host: &mut Host<Vec<u8>, Vec<u8>>, message: MessageId, to: &mut Vec<u8>) {
        to.extend(host.payload(message).expect("lent"));
        host.released(message, Tally::default());
    }

    /// Hands in what has arrived; `false` where the connection has ended.
    fn read(&mut self, id: ConnectionId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return true };
        let mut room = [0; 65536];
        loop {
            let expect = self.host.expect(id);
            let wanted = match expect {
                Expect::Header => HEADER_LEN,
                Expect::Payload(len) | Expect::Skip(len) => len,
                Expect::Map => MAP_LEN,
                Expect::Nothing => return true,
            };
            if stream.unread.len() < wanted {
                match stream.tcp.read(&mut room) {
                    Ok(0) => return false,
                    Ok(len) => stream.unread.extend(&room[..len]),
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
                continue;
            }
            let bytes: Vec<u8> = stream.unread.drain(..wanted).collect();
            match expect {
                Expect::Header => self.host.header(id, bytes.as_slice().try_into().expect("whole")),
                Expect::Payload(_) => self.host.payload_received(id, bytes),
                Expect::Skip(_) => self.host.skipped(id),
                Expect::Map => {
                    let bytes: &[u8; MAP_LEN] = bytes.as_slice().try_into().expect("whole");
                    let ports = CongestionMap::from_bytes(bytes).ports().collect();
                    self.last_map = Some((id, Instant::now(), ports));
                    self.host.map(id, bytes);
                }
                Expect::Nothing => unreachable!("returned above"),
            }
        }
    }

    fn close(&mut self, id: ConnectionId) {
        if self.streams.remove(&id).is_some() {
            self.host.closed(id);
        }
    }
}
