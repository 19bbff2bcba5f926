//! One queue that the rings of several threads receive from.

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver as From, Sender as To, channel};
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Driver, Error, ExportedRxQueue, RxQueue, Span, Wait};
use handoff_testbed::helpers::{byte_at, eventually};
use socket2::SockRef;

use crate::rx_queue::receiving::{
    LONG, MIB, QUEUE, area, bound, driver, expect_stream, join_all, receiver, whole,
};
use crate::rx_queue::testbed::{Testbed, port, send, stream_of};
use crate::traffic::within;

/// Connections whose packets come by the queue: the sender's end, and the receiver's.
fn streams(testbed: &Testbed, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let listener = testbed.listen(testbed.pair.right.v4(), port(QUEUE));
    let connect = || {
        let left = testbed.connect(testbed.pair.right.v4(), port(QUEUE));
        (left, listener.accept().expect("accepts").0)
    };
    (0..count).map(|_| connect()).collect()
}

fn imported(driver: &Driver, exported: &ExportedRxQueue) -> RxQueue {
    driver.import_rx_queue(exported).expect("imports")
}

#[test]
fn each_ring_receives_its_own_connections() {
    within(LONG, || {
        const RINGS: usize = 3;
        const EACH: usize = 2;
        let testbed = Testbed::new(1_500);
        testbed.fault("drop", 20_000);
        let first = driver();
        let queue = bound(&testbed, &first, 8_192);
        let exported = queue.export().expect("exports");
        let mut streams = streams(&testbed, RINGS * EACH).into_iter();
        let take = |driver: &Driver, queue: &RxQueue, ours: Vec<(TcpStream, TcpStream)>| {
            let attach = |(left, far)| (receiver(driver, far, queue), send(left, MIB));
            let mut ours: Vec<_> = ours.into_iter().map(attach).collect();
            let all = ours.iter_mut().map(|(receiver, _)| expect_stream(receiver, MIB));
            driver.block_on(join_all(all)).expect("runs");
            for (receiver, sender) in ours {
                assert_eq!(receiver.tally(), whole(MIB), "{queue:?}");
                sender.join().expect("ends");
            }
            assert_eq!(queue.held(), 0);
        };
        thread::scope(|scope| {
            for _ in 1..RINGS {
                let (exported, ours) = (&exported, streams.by_ref().take(EACH).collect());
                scope.spawn(move || {
                    let driver = driver();
                    take(&driver, &imported(&driver, exported), ours);
                });
            }
            take(&first, &queue, streams.collect());
        });
        let stats = queue.stats();
        assert_eq!(stats.bytes, (RINGS * EACH * MIB) as u64);
        assert_eq!(stats.tally(), whole(RINGS * EACH * MIB), "{stats:?}");
        assert!(testbed.counters()["fault_dropped"] > 0);
    });
}

/// A thread with a ring of its own: it receives the streams that it is given, and keeps the last spans of
/// each.
struct Ring {
    streams: To<(TcpStream, TcpStream)>,
    received: From<()>,
    ended: From<()>,
    /// Makes it drop what it keeps, which outlives its driver.
    spans_go: To<()>,
    thread: thread::JoinHandle<()>,
}

const KEPT: usize = 20;

impl Ring {
    fn new(make: impl FnOnce(&Driver) -> RxQueue + Send + 'static) -> Self {
        let (streams, to_receive) = channel();
        let (tell_received, received) = channel();
        let (tell_ended, ended) = channel();
        let (spans_go, go) = channel();
        let thread = thread::spawn(move || {
            let mut kept: Vec<(Span, usize)> = Vec::new();
            {
                let driver = driver();
                let queue = make(&driver);
                for (left, far) in to_receive {
                    let mut receiver = receiver(&driver, far, &queue);
                    let sender = send(left, MIB);
                    let taking = async {
                        let mut position = 0;
                        while let Some(span) = receiver.next_span().await {
                            let span = span.expect("receives");
                            check(&span, position);
                            position += span.len();
                            if MIB - position < KEPT * 1_448 {
                                kept.push((span, position));
                            }
                        }
                        assert_eq!(position, MIB);
                    };
                    driver.block_on(taking).expect("runs");
                    sender.join().expect("ends");
                    tell_received.send(()).expect("is heard");
                }
            }
            tell_ended.send(()).expect("is heard");
            let _ = go.recv();
            assert!(kept.len() >= KEPT / 2);
            for (span, end) in kept {
                check(&span, end - span.len());
            }
        });
        Self { streams, received, ended, spans_go, thread }
    }

    fn receives(&self, stream: (TcpStream, TcpStream)) {
        self.streams.send(stream).expect("is there");
        self.received.recv().expect("receives");
    }

    /// The driver goes, spans stay.
    fn leave(self) -> impl FnOnce() {
        drop(self.streams);
        self.ended.recv().expect("ends");
        let (spans_go, thread) = (self.spans_go, self.thread);
        move || {
            spans_go.send(()).expect("is there");
            thread.join().expect("ends well");
        }
    }
}

fn check(span: &[u8], position: usize) {
    assert!(
        span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at)),
        "something differs from {position} on"
    );
}

#[test]
fn rings_go_in_every_order_and_their_spans_after_them() {
    within(LONG, || {
        let testbed: &'static Testbed = Box::leak(Box::new(Testbed::new(1_500)));
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let (tell, told) = channel();
            let first = Ring::new(move |driver| {
                // A worker of the kernel lets go of the last one's.
                let queue = eventually("the queue is free", || {
                    testbed.bind(driver, QUEUE, area(2_048), None).ok()
                });
                tell.send(queue.export().expect("exports")).expect("is heard");
                queue
            });
            let exported: ExportedRxQueue = told.recv().expect("is told");
            let (one, other) = (exported.clone(), exported.clone());
            let second = Ring::new(move |driver| imported(driver, &one));
            let third = Ring::new(move |driver| imported(driver, &other));
            let mut rings = [Some(first), Some(second), Some(third)];
            let receive = |rings: &[Option<Ring>; 3]| {
                for ring in rings.iter().flatten() {
                    ring.receives(testbed.stream(testbed.pair.right.v4(), QUEUE));
                }
            };
            receive(&rings);
            drop(exported);
            let mut spans = Vec::new();
            for goes in order {
                spans.push(rings[goes].take().expect("goes once").leave());
                receive(&rings);
            }
            for go in spans {
                go();
            }
        }
    });
}

/// Both get more than the area has chunks for, and one gives nothing back for a while.
#[test]
fn what_another_ring_holds_comes_back_also_when_that_has_gone() {
    within(LONG, || {
        for driver_goes in [false, true] {
            let testbed = Testbed::new(1_500);
            let first = driver();
            let queue = bound(&testbed, &first, 1_024);
            let exported = queue.export().expect("exports");
            let mut streams = streams(&testbed, 2);
            for (_, far) in &streams {
                SockRef::from(far).set_recv_buffer_size(64 << 10).expect("sets");
            }
            let (left, far) = streams.pop().expect("two");
            let (tell_full, full) = channel();
            let (go_on, goes_on) = channel();
            let holding = thread::spawn(move || {
                let driver = driver();
                let queue = imported(&driver, &exported);
                let mut receiver = receiver(&driver, far, &queue);
                let mut kept: Vec<Span> = Vec::new();
                // Nothing more comes when there is no chunk left.
                let quiet = Duration::from_millis(500);
                let mut last = Instant::now();
                while kept.len() <= 300 || last.elapsed() < quiet {
                    driver.turn(Wait::AtMost(quiet)).expect("turns");
                    while let Some(span) = receiver.try_next_span() {
                        kept.push(span.expect("goes on").expect("receives"));
                        last = Instant::now();
                    }
                }
                tell_full.send(()).expect("is heard");
                goes_on.recv().expect("is told");
                let before = kept.iter().map(|span| span.len()).sum::<usize>();
                if driver_goes {
                    drop((receiver, queue, driver));
                    let mut position = 0;
                    for span in kept {
                        check(&span, position);
                        position += span.len();
                    }
                    return;
                }
                drop(kept);
                let rest = async {
                    let mut position = before;
                    while let Some(span) = receiver.next_span().await {
                        let span = span.expect("receives");
                        check(&span, position);
                        position += span.len();
                    }
                    assert_eq!(position, 8 * MIB);
                };
                driver.block_on(rest).expect("runs");
            });
            let sender = thread::spawn(move || {
                // It ends where the receiver goes.
                let _ = (&left).write_all(&stream_of(8 * MIB));
            });
            full.recv().expect("fills");
            let (left, far) = streams.pop().expect("two");
            let mut receiver = receiver(&first, far, &queue);
            let second = send(left, MIB);
            // It has at most what the other left.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(300) {
                first.turn(Wait::AtMost(Duration::from_millis(50))).expect("turns");
            }
            go_on.send(()).expect("is there");
            first.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
            second.join().expect("ends");
            holding.join().expect("ends well");
            sender.join().expect("ends");
            assert_eq!(queue.held(), 0);
        }
    });
}

#[test]
fn refusals_say_why() {
    let (testbed, first) = (Testbed::new(1_500), driver());
    let queue = bound(&testbed, &first, 1_024);
    let exported = queue.export().expect("exports");
    let plain = Driver::new().expect("a driver");
    let error = plain.import_rx_queue(&exported).expect_err("refused");
    assert!(error.to_string().contains("zero_copy_receive"), "{error}");
    drop(first);
    assert!(matches!(queue.export(), Err(Error::DriverGone)), "the ring is closed");
    // The exported handle keeps the queue bound.
    let second = driver();
    let error = testbed.bind(&second, QUEUE, area(1_024), None).expect_err("is taken");
    assert!(error.to_string().contains("bound already"), "{error}");
    let again = imported(&second, &exported);
    let tally = crate::rx_queue::receiving::exchange(&testbed, &second, &again, false, MIB);
    assert_eq!(tally, whole(MIB), "{again:?}");
}

/// The link goes down and comes back, and the number of channels changes, while two rings have the queue.
#[test]
fn a_link_that_goes_down_and_other_channels_leave_the_queue_shared() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        let first = driver();
        let queue = bound(&testbed, &first, 2_048);
        let exported = queue.export().expect("exports");
        let (give, given) = channel::<(TcpStream, TcpStream)>();
        let (tell, told) = channel();
        let other = thread::spawn(move || {
            let driver = driver();
            let queue = imported(&driver, &exported);
            for (left, far) in given {
                let mut receiver = receiver(&driver, far, &queue);
                let sender = send(left, MIB);
                driver.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
                sender.join().expect("ends");
                tell.send(receiver.tally()).expect("is heard");
            }
        });
        let device = testbed.pair.right.device();
        for change in [
            "true".to_owned(),
            format!("ip link set {device} down && ip link set {device} up"),
            format!("ethtool -L {device} combined 8"),
            format!("ethtool -G {device} rx 512"),
        ] {
            testbed.run(&change);
            let mut streams = streams(&testbed, 2);
            give.send(streams.pop().expect("two")).expect("is there");
            let (left, far) = streams.pop().expect("two");
            let mut receiver = receiver(&first, far, &queue);
            let sender = send(left, MIB);
            first.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
            sender.join().expect("ends");
            told.recv().expect("receives");
            assert_eq!(queue.stats().copied, Some(0), "{change}: {queue:?}");
        }
        drop(give);
        other.join().expect("ends well");
    });
}
