//! Peers that take their time in the midst of a long message.

use std::fs;
use std::io::{ErrorKind, Read as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures_lite::future::yield_now;
use handoff_rds::wire::{FLAG_CONGESTION_MAP, HEADER_LEN, Header, MAP_LEN};
use handoff_testbed::{Pair, PairEnd};

use crate::hosts::{Buffers, Setup, host_with, pair, pattern, receive_all, send_all, until};
use crate::peer::{Peer, SOCKET};

const LONG: usize = 900_000;

/// The kernel wakes the engine for 256 KiB of a long message, and more than that may take longer than its time-out.
#[test]
fn who_is_slow_but_goes_on_is_not_hung_up_on() {
    // Again where the machine was too slow to go on.
    while !goes_on_slowly(&pair()) {}
}

/// Whether it could go on often enough not to be hung up on.
fn goes_on_slowly(pair: &Pair) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let setup = Setup { peer_timeout: TIMEOUT, ..Setup::default() };
    let (ready, is_ready) = mpsc::channel();
    let engine = host_with(&pair.right, pair.right.v4().into(), setup, move |own| async move {
        let socket = own.engine.bind(SOCKET).expect("is free");
        ready.send(()).expect("is waited for");
        receive_all(&socket, [LONG].into_iter()).await;
        own.engine.statistics()
    });
    is_ready.recv().expect("is there");
    let mut peer = Peer::connect(pair, 0);
    peer.send_map();
    let header = Header { len: LONG as u32, ..peer.next() };
    let frame = [&header.to_bytes()[..], &pattern(0, LONG)].concat();
    let (begin, rest) = frame.split_at(HEADER_LEN + 100_000);
    let mut last = Instant::now();
    peer.stream.write_all(begin).expect("is taken");
    // In all, less than would wake it, for twice as long as it waits for a message that stands still.
    let (slow, rest) = rest.split_at(200_000);
    for piece in slow.chunks(5_000).chain(rest.chunks(100_000)) {
        sleep(Duration::from_millis(50));
        let now = Instant::now();
        let written = peer.stream.write_all(piece);
        if last.elapsed() > TIMEOUT / 2 {
            return false;
        }
        written.expect("is taken");
        last = now;
    }
    let statistics = engine.join().expect("has it all");
    assert_eq!(statistics.violations, 0);
    true
}

#[test]
fn who_says_nothing_or_breaks_off_is_hung_up_on() {
    let pair = pair();
    let setup = Setup { peer_timeout: Duration::from_secs(1), ..Setup::default() };
    let (ready, is_ready) = mpsc::channel();
    let (over, is_over) = mpsc::channel();
    let engine = host_with(&pair.right, pair.right.v4().into(), setup, move |own| async move {
        let _socket = own.engine.bind(SOCKET).expect("is free");
        ready.send(()).expect("is waited for");
        while is_over.try_recv().is_err() {
            own.driver.sleep(Duration::from_millis(10)).await.expect("the driver is there");
        }
        own.engine.statistics()
    });
    is_ready.recv().expect("is there");
    for says in [false, true] {
        let mut peer = Peer::connect(&pair, 0);
        if says {
            peer.send_map();
            let header = Header { len: LONG as u32, ..peer.next() };
            let begin = [&header.to_bytes()[..], &pattern(0, 1000)].concat();
            peer.stream.write_all(&begin).expect("is taken");
        }
        peer.stream.set_read_timeout(Some(Duration::from_secs(60))).expect("can wait");
        // What the engine said comes first; then the end, or a reset.
        let ended = loop {
            match peer.stream.read(&mut [0; 1 << 14]) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break error.kind() == ErrorKind::ConnectionReset,
            }
        };
        assert!(ended, "it is left open");
    }
    over.send(()).expect("is waited for");
    // To say nothing is no violation.
    assert_eq!(engine.join().expect("ends").violations, 1);
}

/// Bytes that the engine reads at a time.
const BUFFER: usize = 64 << 10;

/// Threads in which the kernel waits for what the calling thread has asked of its ring.
fn workers() -> usize {
    let name = format!("iou-wrk-{}\n", rustix::thread::gettid().as_raw_nonzero());
    let threads = fs::read_dir("/proc/self/task").expect("lists").map(|thread| {
        let path = thread.expect("is listed").path().join("comm");
        fs::read_to_string(path).unwrap_or_default()
    });
    threads.filter(|comm| *comm == name).count()
}

/// Bytes that have come to the sockets of an end, and are not read.
fn unread(end: &PairEnd) -> usize {
    let sockets = end.namespace().run(|| fs::read_to_string("/proc/thread-self/net/tcp"));
    let sockets = sockets.expect("enters").expect("lists");
    let waiting = sockets.lines().skip(1).map(|socket| {
        let queues = socket.split_whitespace().nth(4).expect("has queues");
        let (_, received) = queues.split_once(':').expect("are two");
        usize::from_str_radix(received, 16).expect("a number")
    });
    waiting.sum()
}

/// The beginning of a long message fills the engine's buffer, and nothing is there behind it. The engine reads all the
/// same what is told of acknowledgements, which would wake a receive again and again.
#[test]
fn the_rest_of_a_message_is_not_received_before_something_is_there() {
    const COUNT: usize = 40;
    let pair = pair();
    let to = (pair.left.v4(), SOCKET).into();
    let (ready, is_ready) = mpsc::channel();
    let (standing, stands) = mpsc::channel();
    let (go_on, wait) = mpsc::channel();
    let (sent, all_sent) = mpsc::channel();
    let stand = Arc::new(AtomicBool::new(false));
    let is_to_stand = stand.clone();
    let setup = Setup { peer_timeout: crate::timeout::LONG, ..Setup::default() };
    let engine = host_with(&pair.right, pair.right.v4().into(), setup, move |own| async move {
        let socket = own.engine.bind(SOCKET).expect("is free");
        ready.send(()).expect("is waited for");
        while !is_to_stand.load(Relaxed) {
            yield_now().await;
        }
        // The driver is not turned meanwhile, so that it reads all at once.
        standing.send(()).expect("is waited for");
        wait.recv().expect("is told");
        while own.engine.statistics().held_bytes == 0 {
            yield_now().await;
        }
        assert_eq!(own.engine.statistics().held_bytes as usize, BUFFER - MAP_LEN - HEADER_LEN);
        send_all(&socket, to, &mut Buffers::new(1, 4096), (0..COUNT).map(|_| 10)).await;
        let workers = workers();
        sent.send(()).expect("is waited for");
        receive_all(&socket, [LONG].into_iter()).await;
        workers
    });
    is_ready.recv().expect("is there");
    let mut peer = Peer::connect(&pair, 0);
    peer.send_map();
    peer.await_ping();
    // Half of a map lies in the buffer already, so that the rest fits into the first window.
    let map = Header { flags: FLAG_CONGESTION_MAP, len: MAP_LEN as u32, ..Header::default() };
    let map = [&map.to_bytes()[..], &[0; MAP_LEN]].concat();
    let (half, other) = map.split_at(HEADER_LEN + MAP_LEN - 1);
    peer.stream.write_all(half).expect("is taken");
    peer.await_acknowledgements();
    until("read", || unread(&pair.right) == 0);
    stand.store(true, Relaxed);
    stands.recv().expect("stands");
    let message = Header { len: LONG as u32, ..peer.next() };
    let message = [&message.to_bytes()[..], &pattern(0, LONG)].concat();
    let (begin, rest) = message.split_at(BUFFER - MAP_LEN);
    peer.stream.write_all(&[other, begin].concat()).expect("is taken");
    peer.await_acknowledgements();
    go_on.send(()).expect("waits");
    for _ in 0..COUNT {
        peer.await_message();
    }
    all_sent.recv().expect("are acknowledged");
    peer.stream.write_all(rest).expect("is taken");
    assert_eq!(engine.join().expect("has it all"), 0, "the kernel waits in threads");
}
