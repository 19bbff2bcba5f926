//! Queues bound to memory of a program: what the kernel copies, and what faults do.

use std::io::Write;
use std::net::Shutdown;
use std::thread;

use handoff_sys::netdev;
use handoff_sys::netlink::{Attributes, Generic, Netlink};
use handoff_testbed::Pair;
use handoff_testbed::helpers::{byte_at, eventually};
use netlink_packet_core::NLM_F_ACK;

use crate::testbed::{
    MIB, connect, counters, exchange, listen, pair, run, set_fault, split_headers, steer, stream_of,
};
use crate::zcrx::Receiver;

/// Of the receiving NIC; the first two are for everything else.
pub(super) const QUEUE: u32 = 3;

/// Of the receiving NIC.
fn index(pair: &Pair) -> u32 {
    let index = run(&pair.right, &format!("cat /sys/class/net/{}/ifindex", pair.right.device()));
    index.trim().parse().expect("a number")
}

/// Sends a stream to a bound queue; returns what the kernel has copied of it.
pub(super) fn receive_bound(pair: &Pair, bytes: usize, chunks: usize, chunk: u32) -> (u64, u64) {
    let index = index(pair);
    let listener = listen(&pair.right, pair.right.v4());
    let mut left = connect(&pair.left, pair.right.v4());
    let (right, _) = listener.accept().expect("accepts");
    let bind = || Receiver::bind(index, QUEUE, chunks, chunk);
    // A worker of the kernel lets go of an earlier ring, its queue and its memory.
    let mut receiver = eventually("the queue is bound", || {
        let bound = pair.right.namespace().run(bind).expect("enters");
        bound.inspect_err(|error| println!("binding: {error}")).ok()
    });
    thread::scope(|scope| {
        scope.spawn(move || {
            left.write_all(&stream_of(bytes)).expect("sends");
            left.shutdown(Shutdown::Write).expect("ends");
        });
        let mut position = 0;
        let taken = receiver.receive(&right, |span| {
            for &byte in span {
                assert_eq!(byte, byte_at(position), "at {position}");
                position += 1;
            }
        });
        taken.expect("receives");
        assert_eq!(position, bytes);
    });
    receiver.copied()
}

pub(super) fn ready_to_bind(mtu: u32) -> Pair {
    let pair = pair(mtu);
    split_headers(&pair.right);
    steer(&pair.right, QUEUE);
    pair
}

/// Waits until a worker of the kernel has let go of a ring that is gone, and of its queue.
pub(super) fn until_let_go(pair: &Pair) {
    eventually("the queue is let go", || (!is_bound(pair)).then_some(()));
}

/// Whether the kernel still has the queue bound to a program's memory.
fn is_bound(pair: &Pair) -> bool {
    let index = index(pair);
    let ask = || {
        let mut kernel = Netlink::generic()?;
        let family = kernel.family(netdev::FAMILY)?;
        let (to_receive, queue) = (0_u32, QUEUE);
        let attributes = Attributes::new()
            .with(netdev::QUEUE_IFINDEX, &index.to_ne_bytes())
            .with(netdev::QUEUE_TYPE, &to_receive.to_ne_bytes())
            .with(netdev::QUEUE_ID, &queue.to_ne_bytes());
        kernel.ask(Generic::new(family, netdev::QUEUE_GET, attributes), NLM_F_ACK)
    };
    let answers = pair.right.namespace().run(ask).expect("enters").expect("answers");
    answers.iter().any(|answer| answer.attributes.get(netdev::QUEUE_IO_URING).is_some())
}

#[test]
fn a_queue_that_was_bound_is_read_plainly() {
    let pair = ready_to_bind(1_500);
    for _ in 0..4 {
        receive_bound(&pair, 2 * MIB, 2_048, 4_096);
        until_let_go(&pair);
        exchange(&pair, pair.right.v4(), 2 * MIB);
    }
}

#[test]
fn zero_copy_receive_copies_nothing() {
    for (mtu, whole, packing) in
        [(1_500, "off", 0), (4_148, "off", 0), (1_500, "on", 0), (1_500, "off", 1)]
    {
        let pair = ready_to_bind(mtu);
        run(&pair.right, &format!("ethtool -K {} rx-gro-hw {whole}", pair.right.device()));
        set_fault(&pair.right, "packing", packing);
        let case = format!("MTU {mtu}, hardware GRO {whole}, packing {packing}");
        assert_eq!(receive_bound(&pair, 2 * MIB, 2_048, 4_096), (0, 0), "{case}");
        let count = counters(&pair.right);
        assert!(count["queue3_rx_split"] > 0, "{case}: {count:?}");
        assert_eq!(count["queue3_rx_gro_packets"] > 0, whole == "on", "{case}: {count:?}");
    }
}

#[test]
fn large_chunks_are_filled() {
    std::fs::write("/proc/sys/vm/nr_hugepages", "64").expect("takes huge pages");
    // A share of a chunk for each packet, a chunk for each, and a whole frame in one.
    for (packing, whole, chunk) in
        [(1, "off", 2 * MIB as u32), (0, "off", 16_384), (0, "on", 65_536), (1, "on", 65_536)]
    {
        let pair = ready_to_bind(1_500);
        run(&pair.right, &format!("ethtool -K {} rx-gro-hw {whole}", pair.right.device()));
        set_fault(&pair.right, "packing", packing);
        let chunks = 128 * MIB / chunk as usize;
        let copied = receive_bound(&pair, 2 * MIB, chunks, chunk);
        assert_eq!(copied, (0, 0), "chunk {chunk}, packing {packing}, hardware GRO {whole}");
    }
    std::fs::write("/proc/sys/vm/nr_hugepages", "0").expect("gives them back");
}

#[test]
fn wrong_queue_traffic_is_copied_and_told() {
    let pair = ready_to_bind(1_500);
    set_fault(&pair.right, "wrong_queue", 200_000);
    let (spans, bytes) = receive_bound(&pair, MIB, 2_048, 4_096);
    assert!(spans > 0 && bytes > 0, "copied {spans} spans, {bytes} bytes");
    assert!(counters(&pair.right)["fault_wrong_queue"] > 0);
}

#[test]
fn faults_lose_nothing_for_good() {
    for (fault, value, counter) in [
        // Of more than 700 packets, so that some are dropped but once in thousands of millions.
        ("drop", 30_000, Some("fault_dropped")),
        ("reorder", 200_000, Some("fault_reordered")),
        ("delay", 1_000, None),
        ("alloc_fail", 300_000, Some("queue3_rx_alloc_fail")),
    ] {
        let pair = ready_to_bind(1_500);
        // Small frames, so that one is behind another in the sender's ring.
        run(&pair.left, &format!("ethtool -K {} tso off", pair.left.device()));
        set_fault(&pair.right, fault, value);
        assert_eq!(receive_bound(&pair, MIB, 2_048, 4_096).0, 0, "{fault}");
        let count = counters(&pair.right);
        assert!(counter.is_none_or(|counter| count[counter] > 0), "{fault}: {count:?}");
    }
}

#[test]
fn lossless_means_no_packet_is_lost() {
    let pair = ready_to_bind(1_500);
    run(&pair.right, &format!("ethtool -G {} rx 16", pair.right.device()));
    set_fault(&pair.right, "lossless", 1);
    assert_eq!(receive_bound(&pair, MIB, 2_048, 4_096), (0, 0));
    let count = counters(&pair.right);
    for counter in ["queue3_rx_no_buffer", "queue3_rx_no_completion"] {
        assert_eq!(count[counter], 0, "{count:?}");
    }
}
