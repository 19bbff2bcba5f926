//! Peers that count as delivered what TCP has acknowledged, whatever becomes of the connection.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;

use futures_lite::future::yield_now;
use handoff::Engine as Sending;
use handoff_rds::wire::{HEADER_LEN, PORT};
use handoff_testbed::{Pair, PairEnd};

use crate::hosts::{Buffers, host, pair, pattern, receive_all, until};
use crate::peer::{Peer, SOCKET};

/// Bytes of a message, so few that it is copied.
const LEN: usize = 10;

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
    first.send(&pattern(0, LEN));
    first.await_acknowledgements();
    go_on.send(()).expect("waits");
    second.send_map();
    second.send(&pattern(1, LEN));
    engine.join().expect("receives in order");
}

/// Connections that follow one another while a peer writes.
const SUCCESSORS: usize = 40;
/// Messages on a connection before its successor is made.
const BEFORE: usize = 200;

/// A peer goes on writing until its connection ends, and sends again by the next what TCP did not acknowledge.
#[test]
fn what_comes_while_a_connection_is_ended_is_read_or_not_acknowledged() {
    let pair = pair();
    let (ready, is_ready) = mpsc::channel();
    let engine = host(&pair.right, pair.right.v4().into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(SOCKET).expect("is free");
        ready.send(()).expect("is waited for");
        for number in 0.. {
            let received = socket.receive().await;
            if received.payload.is_empty() {
                break;
            }
            assert!(received.payload == pattern(number, LEN), "message {number}");
        }
    });
    is_ready.recv().expect("begins");
    let mut peer = Peer::connect(&pair, 0);
    let mut acknowledged = 0;
    for _ in 0..SUCCESSORS {
        peer.begin();
        let again = peer.sequence;
        peer.sequence = acknowledged;
        let successor = std::thread::scope(|scope| {
            let mut successor = None;
            for count in 0.. {
                if count == BEFORE {
                    successor = Some(scope.spawn(|| Peer::connect(&pair, 0)));
                }
                let number = u32::try_from(peer.sequence).expect("is small");
                if peer.try_send(&pattern(number, LEN), again).is_err() {
                    break;
                }
            }
            successor.expect("is made before this one ends").join().expect("connects")
        });
        acknowledged += peer.acknowledged() / (HEADER_LEN + LEN) as u64;
        let sent = again.max(peer.sequence);
        peer = successor;
        peer.sequence = sent;
    }
    peer.begin();
    let again = peer.sequence;
    peer.sequence = acknowledged;
    while peer.sequence < again {
        let number = u32::try_from(peer.sequence).expect("is small");
        peer.try_send(&pattern(number, LEN), again).expect("is taken");
    }
    peer.send(&[]);
    engine.join().expect("receives all, in order");
}

/// Resets all connections of an engine.
fn cut(end: &PairEnd) {
    let mut ss = Command::new("ss");
    ss.args(["-K", "-t", "state", "established", &format!("dport = {PORT} or sport = {PORT}")]);
    let output = end.namespace().attach(&mut ss).output().expect("ss is installed");
    assert!(output.status.success(), "{output:?}");
}

/// An engine that stands until it is told to go on, and then receives messages of these sizes in order.
struct Standing {
    engine: JoinHandle<()>,
    stands: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
}

impl Standing {
    /// Once it is connected so often it stands. `peer`: whom to send to, so that it begins to connect before.
    fn new(end: &PairEnd, peer: Option<SocketAddr>, often: u64, sizes: &'static [usize]) -> Self {
        let (go_on, wait) = mpsc::channel();
        let (standing, stands) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let engine = host(end, end.v4().into(), Sending::Auto, move |own| async move {
            let socket = own.engine.bind(SOCKET).expect("is free");
            if let Some(peer) = peer {
                let message = Buffers::new(1, LEN).fill(0, LEN).expect("has one");
                socket.send_when_possible(peer, message, 0).await.expect("is taken");
            }
            ready.send(()).expect("is waited for");
            // The engine does meanwhile what it has to.
            yield_now().await;
            while own.engine.statistics().connections < often {
                yield_now().await;
            }
            standing.send(()).expect("is waited for");
            wait.recv().expect("is told");
            receive_all(&socket, sizes.iter().copied()).await;
        });
        is_ready.recv().expect("begins");
        Self { engine, stands, go_on }
    }

    fn stands(&self) {
        self.stands.recv().expect("stands");
    }

    fn goes_on(&self) {
        self.go_on.send(()).expect("stands");
    }

    fn join(self) {
        self.engine.join().expect("receives all");
    }
}

#[test]
fn what_came_on_a_connection_that_was_reset_before_it_was_used_is_read() {
    let pair = pair();
    let to = SocketAddr::from((pair.right.v4(), SOCKET));
    let listening = || TcpListener::bind((pair.right.v4(), PORT));
    let listener = pair.right.namespace().run(listening).expect("enters").expect("is free");
    let engine = Standing::new(&pair.left, Some(to), 0, &[LEN; 2]);
    engine.stands();
    let mut first = Peer::accept(&listener, 0);
    first.send_map();
    first.send(&pattern(0, LEN));
    first.await_acknowledgements();
    cut(&pair.left);
    engine.goes_on();
    let mut second = Peer::accept(&listener, first.sequence);
    second.send_map();
    second.send(&pattern(1, LEN));
    engine.join();
}

#[test]
fn what_came_on_a_connection_that_was_reset_before_it_was_accepted_is_read() {
    let pair = pair();
    let engine = Standing::new(&pair.right, None, 0, &[LEN; 2]);
    engine.stands();
    let mut first = Peer::connect(&pair, 0);
    first.send_map();
    first.send(&pattern(0, LEN));
    first.await_acknowledgements();
    cut(&pair.right);
    let mut second = Peer::connect(&pair, first.sequence);
    second.send_map();
    second.send(&pattern(1, LEN));
    engine.goes_on();
    engine.join();
}

/// Two of them are read in a row, and a third is not.
const MUCH: usize = 900_000;

/// As [`pair`], with a receiver whose sockets take in as much without being read.
fn roomy_pair() -> Pair {
    let pair = pair();
    let roomy = || std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 8388608 8388608");
    pair.right.namespace().run(roomy).expect("enters").expect("is root");
    pair
}

/// Kernels begin with lane 0, and use the others once TCP has acknowledged what went by it.
fn fans_out(mut first: Peer, mut other: Peer, engine: Standing) {
    first.send_map();
    other.send_map();
    for number in 0..3 {
        first.send(&pattern(number, MUCH));
    }
    first.await_acknowledgements();
    other.send(&pattern(3, LEN));
    other.await_acknowledgements();
    engine.goes_on();
    engine.join();
}

#[test]
fn what_came_by_lane_0_is_read_before_what_came_later_by_another() {
    let pair = roomy_pair();
    let engine = Standing::new(&pair.right, None, 2, &[MUCH, MUCH, MUCH, LEN]);
    let (first, other) = (Peer::connect(&pair, 0), Peer::connect_lane(&pair, 1, 0));
    engine.stands();
    fans_out(first, other, engine);
}

#[test]
fn so_it_is_where_lane_0_has_not_been_accepted() {
    let pair = roomy_pair();
    let engine = Standing::new(&pair.right, None, 0, &[MUCH, MUCH, MUCH, LEN]);
    engine.stands();
    let other = Peer::connect_lane(&pair, 1, 0);
    let first = Peer::connect(&pair, 0);
    fans_out(first, other, engine);
}

/// The engine accepts one after another, so that it finds the lane's next connection late.
#[test]
fn so_it_is_where_lane_0_was_made_anew_and_is_not_accepted() {
    let pair = roomy_pair();
    let engine = Standing::new(&pair.right, None, 2, &[MUCH, LEN, LEN]);
    let (mut first, mut other) = (Peer::connect(&pair, 0), Peer::connect_lane(&pair, 1, 0));
    engine.stands();
    first.send_map();
    other.send_map();
    first.send(&pattern(0, MUCH));
    first.await_acknowledgements();
    let sequence = first.sequence;
    drop(first);
    let before = [2, 3, 4, 5].map(|lane| Peer::connect_lane(&pair, lane, 0));
    let mut second = Peer::connect(&pair, sequence);
    second.send_map();
    second.send(&pattern(1, LEN));
    second.await_acknowledgements();
    other.send(&pattern(2, LEN));
    other.await_acknowledgements();
    engine.goes_on();
    engine.join();
    drop(before);
}

#[test]
fn so_it_is_where_lane_0_was_made_anew_many_times() {
    const TIMES: u32 = 8;
    let pair = pair();
    let engine = Standing::new(&pair.right, None, 2, &[LEN; TIMES as usize + 1]);
    let (mut first, mut other) = (Peer::connect(&pair, 0), Peer::connect_lane(&pair, 1, 0));
    engine.stands();
    other.send_map();
    for number in 0..TIMES {
        if number > 0 {
            first = Peer::connect(&pair, first.sequence);
        }
        first.send_map();
        first.send(&pattern(number, LEN));
        first.await_acknowledgements();
    }
    other.send(&pattern(TIMES, LEN));
    other.await_acknowledgements();
    engine.goes_on();
    engine.join();
}
