//! A peer that connects again while it is not known that its connection has ended.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use futures_lite::future::yield_now;
use handoff::Engine as Sending;
use handoff_lab::topology::Pair;
use handoff_rds::wire::{
    FLAG_CONGESTION_MAP, HEADER_LEN, Header, MAP_LEN, MAX_LANES, PORT, PROBE_PORT,
};
use socket2::{Domain, Type};

use crate::hosts::{Buffers, host, pair, pattern, receive_all, until};

/// Bytes of a message, so few that it is copied.
const LEN: usize = 10;
const SOCKET: u16 = 4000;

/// A peer that is no kernel and none of ours, and speaks as kernels do with one lane.
struct Peer {
    stream: TcpStream,
    sequence: u64,
}

impl Peer {
    /// Connects from a port that tells of lane 0.
    fn connect(pair: &Pair, sequence: u64) -> Self {
        let stream = pair.left.namespace().run(|| {
            let free = (40_000..50_000).step_by(MAX_LANES.into()).find_map(|port| {
                let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
                socket.bind(&SocketAddr::from((pair.left.v4(), port)).into()).ok()?;
                socket.connect(&SocketAddr::from((pair.right.v4(), PORT)).into()).ok()?;
                Some(TcpStream::from(socket))
            });
            free.expect("connects")
        });
        Self { stream: stream.expect("enters"), sequence }
    }

    fn write(&mut self, header: Header, payload: &[u8]) {
        let len = payload.len() as u32;
        let frame = [&Header { len, ..header }.to_bytes()[..], payload].concat();
        self.stream.write_all(&frame).expect("is taken");
    }

    fn send_map(&mut self) {
        self.write(Header { flags: FLAG_CONGESTION_MAP, ..Header::default() }, &[0; MAP_LEN]);
    }

    fn send(&mut self, number: u32) {
        self.sequence += 1;
        let header = Header {
            sequence: self.sequence,
            source: SOCKET,
            destination: SOCKET,
            ..Header::default()
        };
        self.write(header, &pattern(number, LEN));
    }

    /// Reads up to a message, and has pings answered.
    fn await_message(&mut self) {
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
            if header.destination != 0 {
                return;
            }
            self.sequence += 1;
            let pong = Header { sequence: self.sequence, ..Header::default() };
            assert_eq!(header.source, PROBE_PORT);
            self.write(Header { destination: PROBE_PORT, ..pong }, &[]);
        }
    }
}

/// What TCP has acknowledged, the peer does not send again.
#[test]
fn what_came_with_an_acknowledgement_is_read_before_the_connection_ends() {
    let pair = pair();
    let (ready, is_there) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_ready, message_is_there) = (ready.clone(), is_there.clone());
    let (go_on, wait) = mpsc::channel();
    let (standing, stands) = mpsc::channel();
    let to = SocketAddr::from((pair.left.v4(), SOCKET));
    let engine = host(&pair.right, pair.right.v4().into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(SOCKET).expect("is free");
        is_ready.store(true, Relaxed);
        let message = Buffers::new(1, LEN).fill(0, LEN).expect("has one");
        socket.send_when_possible(to, message, 0).await.expect("is taken");
        while !message_is_there.load(Relaxed) {
            yield_now().await;
        }
        // The driver is not turned meanwhile, so that it is told of all at once.
        standing.send(()).expect("is waited for");
        wait.recv().expect("is told");
        receive_all(&socket, [LEN; 2].into_iter()).await;
    });
    until("an engine", || ready.load(Relaxed));
    let mut first = Peer::connect(&pair, 0);
    first.send_map();
    first.await_message();
    is_there.store(true, Relaxed);
    stands.recv().expect("stands");
    let mut second = Peer::connect(&pair, first.sequence + 1);
    first.send(0);
    go_on.send(()).expect("waits");
    second.send_map();
    second.send(1);
    engine.join().expect("receives in order");
}
