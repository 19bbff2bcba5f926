//! Spans that are kept, and spans that are lent on.

use std::collections::VecDeque;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Driver, Outcome, Span, Wait};
use handoff_testbed::helpers::byte_at;
use socket2::SockRef;

use crate::rx_queue::receiving::{LONG, MIB, QUEUE, area, bound, driver, receiver, whole};
use crate::rx_queue::testbed::{Testbed, send, stream_of};
use crate::traffic::within;

#[test]
fn spans_that_are_kept_hold_the_sender_up_and_nothing_is_lost() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 1_024);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        // Data behind a lost packet waits in the socket, in chunks: if it had all of them, the lost packet
        // would find none, and the connection would stall for ever.
        SockRef::from(&far).set_recv_buffer_size(64 << 10).expect("sets");
        assert_eq!(queue.shortfall(), None);
        let mut receiver = receiver(&driver, far, &queue);
        assert!(queue.shortfall().is_some_and(|told| told.contains("may run dry")), "{queue:?}");
        // More than the area, and what the sender's socket takes in.
        let sender = send(left, 8 * MIB);
        let mut kept: Vec<Span> = Vec::new();
        // Nothing more comes when the NIC has no chunk left, and the kernel has reported that.
        let quiet = Duration::from_millis(500);
        let mut last = Instant::now();
        while queue.stats().shortages == 0 || last.elapsed() < quiet {
            driver.turn(Wait::AtMost(quiet)).expect("turns");
            while let Some(span) = receiver.try_next_span() {
                kept.push(span.expect("goes on").expect("receives"));
                last = Instant::now();
            }
        }
        assert!(!sender.is_finished());
        assert_eq!(queue.held(), kept.len());
        assert!(kept.len() > 512 && kept.len() <= queue.chunks(), "{queue:?}");
        assert!(queue.stats().shortages > 0, "{:?}", queue.stats());
        let before: usize = kept.iter().map(|span| span.len()).sum();
        let mut position = 0;
        for span in kept.drain(..) {
            let same = span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at));
            assert!(same, "a kept span has changed at {position}");
            position += span.len();
        }
        let rest = async {
            let mut position = before;
            while let Some(span) = receiver.next_span().await {
                let span = span.expect("receives");
                assert!(span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at)));
                position += span.len();
            }
            position
        };
        assert_eq!(driver.block_on(rest).expect("runs"), 8 * MIB);
        sender.join().expect("ends");
    });
}

#[test]
fn spans_go_on_to_a_socket_and_to_a_file() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(4_148), driver());
        let queue = bound(&testbed, &driver, 2_048);
        driver.register(&queue).expect("registers the area");
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&driver, far, &queue);
        // Back to where they came from, over the NIC, from the same memory that it wrote to.
        let listener = testbed.listen(testbed.pair.right.v4(), 4_100);
        let mut reader = testbed.connect(testbed.pair.right.v4(), 4_100);
        let (relay, _) = listener.accept().expect("accepts");
        let relay = driver.socket(relay).expect("attaches");
        relay.set_engine(handoff::Engine::UringZc).expect("sends without copying");
        let written = tempfile::tempfile().expect("a file");
        let file = driver.file(written.try_clone().expect("clones")).expect("attaches");
        let sender = send(left, MIB);
        let reading = thread::spawn(move || {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).expect("reads");
            assert!(got == stream_of(MIB), "what was relayed differs");
        });
        let mut position = 0;
        let work = async {
            while let Some(span) = receiver.next_span().await {
                let mut span = span.expect("receives");
                let rest = span.len();
                let half = span.split_to(rest / 2);
                for part in [half, span] {
                    let sent = relay.send(part).expect("lends").await.unwrap();
                    assert_eq!(sent.receipt.outcome(), Outcome::ZeroCopy);
                    let (at, len) = (position as u64, sent.buffer.len());
                    let stored = file.write_at(sent.buffer, at).expect("lends").await.unwrap();
                    assert_eq!(stored.result.expect("writes"), len);
                    position += len;
                }
            }
        };
        driver.block_on(work).expect("runs");
        assert_eq!(position, MIB);
        assert_eq!(queue.held(), 0);
        rustix::net::shutdown(&relay, rustix::net::Shutdown::Write).expect("ends");
        drop(receiver);
        sender.join().expect("ends");
        reading.join().expect("compares");
        let mut stored = Vec::new();
        let mut written = written;
        std::io::Seek::rewind(&mut written).expect("seeks");
        written.read_to_end(&mut stored).expect("reads");
        assert!(stored == stream_of(MIB), "what was written differs");
    });
}

/// A receive ends whenever there is no place for a completion, and starts again where it was.
#[test]
fn a_completion_queue_of_one_place_loses_nothing() {
    const LEN: usize = 256 << 10;
    within(LONG, || {
        for mixed in [false, true] {
            let testbed = Testbed::new(1_500);
            let driver = Driver::builder().entries(1).completions(1);
            let driver = driver.zero_copy_receive(true).mixed_completions(mixed);
            let driver = driver.build().expect("a ring");
            let queue = bound(&testbed, &driver, 2_048);
            let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            let mut receiver = receiver(&driver, far, &queue);
            let sender = send(left, LEN);
            let mut got = Vec::new();
            while let Some(span) = driver.block_on(receiver.next_span()).expect("runs") {
                got.extend_from_slice(&span.expect("goes on"));
            }
            assert!(got == stream_of(LEN), "{} bytes, or others", got.len());
            assert_eq!(receiver.tally(), whole(LEN));
            sender.join().expect("ends");
        }
    });
}

/// Visitors that keep some, leave others, and sometimes panic; with completions of both shapes.
#[test]
fn visits_give_back_what_they_do_not_keep() {
    within(LONG, || {
        for mixed in [false, true] {
            let testbed = Testbed::new(1_500);
            let driver = Driver::builder().zero_copy_receive(true).mixed_completions(mixed);
            let driver = driver.build().expect("a ring");
            let queue = bound(&testbed, &driver, 2_048);
            let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            let mut receiver = receiver(&driver, far, &queue);
            let sender = send(left, 2 * MIB);
            let (mut position, mut number, mut panics) = (0, 0, 0);
            let mut kept: VecDeque<(Span, usize)> = VecDeque::new();
            let is_right = |bytes: &[u8], at: usize| {
                bytes.iter().enumerate().all(|(offset, byte)| *byte == byte_at(at + offset))
            };
            let end = loop {
                driver.block_on(receiver.spans_there()).expect("runs").expect("is driven");
                let visit = AssertUnwindSafe(|| {
                    receiver.visit(|span| {
                        let (at, held) = (position, queue.held());
                        assert!(is_right(&span, at), "differs at {at}");
                        position += span.len();
                        number += 1;
                        if number % 10 == 0 {
                            driver.turn(Wait::No).expect("turns in a visit");
                            assert!(is_right(&span, at), "changed at {at}");
                        }
                        if number % 64 == 0 {
                            panic!("a visitor's");
                        }
                        match number % 5 {
                            0 => kept.push_back((span.keep(), at)),
                            1 => {
                                drop(span);
                                assert_eq!(queue.held(), held - 1, "{queue:?}");
                            }
                            _ => {}
                        }
                        if kept.len() > 100 {
                            let (span, at) = kept.pop_front().expect("there are some");
                            assert!(is_right(&span, at), "a kept span changed at {at}");
                        }
                    })
                });
                match catch_unwind(visit) {
                    Ok(Some(end)) => break end,
                    Ok(None) => {}
                    Err(_) => panics += 1,
                }
            };
            end.expect("ends well");
            assert_eq!((position, panics), (2 * MIB, number / 64));
            assert_eq!(queue.held(), kept.len());
            assert_eq!(queue.stats().spans, number as u64);
            assert_eq!(receiver.tally(), whole(2 * MIB));
            assert!(kept.iter().all(|(span, at)| is_right(span, *at)));
            drop((kept, receiver));
            assert_eq!(queue.held(), 0);
            sender.join().expect("ends");
        }
    });
}

#[test]
fn a_span_that_outlives_its_driver_keeps_the_queue_bound() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        let (first, other) = (driver(), driver());
        let queue = bound(&testbed, &first, 1_024);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&first, far, &queue);
        let sender = send(left, 10_000);
        let mut span = first.block_on(receiver.next_span()).expect("runs");
        let part = span.as_mut().expect("goes on").as_mut().expect("receives").split_to(10);
        // The socket takes all of it; if it were dropped meanwhile, the connection would be reset.
        sender.join().expect("ends");
        drop((span, receiver, queue, first));
        assert!(part.iter().enumerate().all(|(at, byte)| *byte == byte_at(at)));
        let refused = testbed.bind(&other, QUEUE, area(1_024), None).expect_err("it is bound");
        assert!(refused.to_string().contains("bound already"), "{refused}");
        assert!(part.iter().enumerate().all(|(at, byte)| *byte == byte_at(at)));
        drop(part);
        // The kernel unbinds a moment later.
        let deadline = Instant::now() + LONG;
        while let Err(error) = testbed.bind(&other, QUEUE, area(1_024), None) {
            assert!(error.to_string().contains("bound already"), "{error}");
            assert!(Instant::now() < deadline, "it stays bound: {error}");
            thread::yield_now();
        }
    });
}
