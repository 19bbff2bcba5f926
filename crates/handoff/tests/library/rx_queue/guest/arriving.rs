//! What arrives over bound queues is what was sent, and is not copied.

use std::io::{Read, Write};
use std::thread;

use handoff::{Driver, Pages, Region};

use crate::rx_queue::receiving::{
    LONG, MIB, PAGE, QUEUE, area, bound, driver, exchange, expect_stream, join_all, receiver, whole,
};
use crate::rx_queue::testbed::{QUEUES, Testbed, port, send, stream_of};
use crate::traffic::within;

/// Covers every pair of memory, chunk, MTU, family (and so shape of completions), delivery and fault.
#[test]
fn what_was_sent_arrives_and_is_not_copied() {
    within(LONG, || {
        std::fs::write("/proc/sys/vm/nr_hugepages", "16").expect("takes huge pages");
        let mut faults = 0;
        for (huge, chunk, mtu, ipv6, whole_frames, fault) in [
            (false, None, 1_500, false, false, None),
            (true, Some(16 << 10), 1_500, true, true, Some(("drop", 10_000))),
            (true, Some(64 << 10), 4_148, false, true, Some(("reorder", 200_000))),
            (false, None, 4_148, true, true, Some(("reorder", 200_000))),
            (true, None, 4_148, false, false, Some(("drop", 10_000))),
            (true, Some(16 << 10), 9_000, false, false, Some(("reorder", 200_000))),
            (false, None, 9_000, true, true, Some(("drop", 10_000))),
            (true, Some(64 << 10), 9_000, true, false, None),
        ] {
            let case = format!("{huge} {chunk:?} {mtu} {ipv6} {whole_frames} {fault:?}");
            let testbed = Testbed::new(mtu);
            if whole_frames {
                testbed.deliver_whole();
            }
            if let Some((fault, share)) = fault {
                testbed.fault(fault, share);
            }
            let memory = if huge { Region::huge(32 * MIB) } else { Region::anonymous(8 * MIB) };
            let memory = memory.expect("memory");
            assert!(!matches!(memory.pages(), Pages::BaseInsteadOfHuge(_)), "{case}");
            let driver = Driver::builder().zero_copy_receive(true).mixed_completions(ipv6);
            let driver = driver.build().expect("a ring");
            let queue = testbed.bind(&driver, QUEUE, memory, chunk).expect("binds");
            assert_eq!(queue.chunk(), chunk.unwrap_or(PAGE));
            let tally = exchange(&testbed, &driver, &queue, ipv6, MIB);
            assert_eq!(tally, whole(MIB), "{case}: {queue:?}");
            assert_eq!((queue.held(), queue.stats().copied), (0, Some(0)), "{case}");
            let count = testbed.counters();
            assert!(count["queue3_rx_split"] > 0, "{case}: {count:?}");
            faults += count["fault_dropped"] + count["fault_reordered"];
        }
        assert!(faults > 0);
        // Transparent huge pages work as well.
        std::fs::write("/proc/sys/vm/nr_hugepages", "0").expect("gives them back");
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let memory = Region::huge(32 * MIB).expect("memory");
        assert_eq!(memory.pages(), &Pages::Transparent);
        let queue = testbed.bind(&driver, QUEUE, memory, Some(64 << 10)).expect("binds");
        assert_eq!(exchange(&testbed, &driver, &queue, false, MIB), whole(MIB));
    });
}

/// 100 GiB in its long form, alternating losses and reordered packets.
#[test]
fn much_crosses_and_none_of_it_is_copied() {
    let soak = std::env::var_os("HANDOFF_SOAK").is_some();
    let (rounds, bytes) = if soak { (100, 1 << 30) } else { (3, 8 * MIB) };
    within(if soak { LONG * 600 } else { LONG }, move || {
        let testbed = Testbed::new(1_500);
        testbed.deliver_whole();
        let driver = driver();
        let memory = Region::huge(64 * MIB).expect("memory");
        let queue = testbed.bind(&driver, QUEUE, memory, Some(64 << 10)).expect("binds");
        // No packet, page or chunk divides this length.
        let block: &'static [u8] = stream_of(MIB - 4_093).leak();
        for round in 0..rounds {
            let faults = [("drop", 1_000), ("reorder", 10_000)].into_iter().enumerate();
            for (turn, (fault, share)) in faults {
                testbed.fault(fault, if round % 3 == turn { share } else { 0 });
            }
            let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            let mut receiver = receiver(&driver, far, &queue);
            let sender = thread::spawn(move || {
                let mut left_over = bytes;
                while left_over > 0 {
                    let part = &block[..left_over.min(block.len())];
                    left.write_all(part).expect("sends");
                    left_over -= part.len();
                }
            });
            let taking = async {
                let mut position = 0;
                while let Some(span) = receiver.next_span().await {
                    let span = span.expect("receives");
                    let mut rest = &span[..];
                    while !rest.is_empty() {
                        let expected = &block[position % block.len()..];
                        let (now, later) = rest.split_at(rest.len().min(expected.len()));
                        assert!(now == &expected[..now.len()], "differs from {position} on");
                        position += now.len();
                        rest = later;
                    }
                }
                position
            };
            assert_eq!(driver.block_on(taking).expect("runs"), bytes, "round {round}");
            assert_eq!(receiver.tally(), whole(bytes), "round {round}: {queue:?}");
            drop(receiver);
            sender.join().expect("ends");
        }
    });
}

#[test]
fn several_connections_and_queues_at_once() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        thread::scope(|scope| {
            for queue in QUEUES {
                let testbed = &testbed;
                scope.spawn(move || {
                    let driver = driver();
                    let bound = testbed.bind(&driver, queue, area(4_096), None).expect("binds");
                    let listener = testbed.listen(testbed.pair.right.v4(), port(queue));
                    let mut streams = Vec::new();
                    for _ in 0..4 {
                        let left = testbed.connect(testbed.pair.right.v4(), port(queue));
                        let (far, _) = listener.accept().expect("accepts");
                        streams.push((receiver(&driver, far, &bound), send(left, MIB / 2)));
                    }
                    let all = streams.iter_mut().map(|(receiver, _)| async {
                        expect_stream(receiver, MIB / 2).await;
                    });
                    driver.block_on(join_all(all)).expect("runs");
                    for (receiver, sender) in streams {
                        assert_eq!(receiver.tally(), whole(MIB / 2), "{bound:?}");
                        sender.join().expect("ends");
                    }
                });
            }
        });
    });
}

#[test]
fn both_directions_at_once() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 2_048);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut back = left.try_clone().expect("clones");
        let sender = send(left, MIB);
        let taker = thread::spawn(move || {
            let mut got = vec![0; MIB];
            back.read_exact(&mut got).expect("reads");
            assert!(got == stream_of(MIB), "what came back differs");
        });
        let socket = driver.socket(far).expect("attaches");
        let mut receiver = socket.receive(&queue).expect("starts");
        let mut region = Region::anonymous(MIB).expect("memory");
        let mut buffer = region.take(MIB).expect("room");
        buffer.copy_from_slice(&stream_of(MIB));
        let sending = socket.send(buffer).expect("lends");
        driver.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
        let sent = driver.block_on(async { sending.await }).expect("runs").unwrap();
        assert_eq!(sent.sent.expect("sends"), MIB);
        assert_eq!(receiver.tally(), whole(MIB));
        taker.join().expect("compares");
        drop((receiver, socket));
        sender.join().expect("ends");
    });
}
