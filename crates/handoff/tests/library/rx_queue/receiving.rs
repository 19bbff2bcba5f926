//! Bound queues, and streams over them, compared as they come.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use handoff::{DmaBuf, Driver, Intake, Receiver, Region, RxQueue, Tally};
use handoff_testbed::helpers::byte_at;

use crate::rx_queue::testbed::{QUEUES, Testbed, send};

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const PAGE: usize = 4_096;
pub(crate) const QUEUE: u32 = QUEUES[0];

pub(crate) fn driver() -> Driver {
    Driver::builder().zero_copy_receive(true).build().expect("a ring")
}

pub(crate) fn area(chunks: usize) -> Region {
    Region::anonymous(chunks * PAGE).expect("memory")
}

/// The same memory for another queue. The caller must not bind both at once.
pub(crate) fn again(memory: &DmaBuf) -> DmaBuf {
    let descriptor = memory.as_fd().try_clone_to_owned().expect("a descriptor");
    DmaBuf::new(descriptor).expect("is one")
}

pub(crate) fn bound(testbed: &Testbed, driver: &Driver, chunks: usize) -> RxQueue {
    testbed.bind(driver, QUEUE, area(chunks), None).expect("binds")
}

pub(crate) fn receiver(driver: &Driver, socket: TcpStream, intake: impl Into<Intake>) -> Receiver {
    driver.socket(socket).expect("attaches").receive(intake).expect("starts")
}

/// Takes a stream to its end and compares it.
pub(crate) async fn expect_stream(receiver: &mut Receiver, bytes: usize) {
    let mut position = 0;
    while let Some(span) = receiver.next_span().await {
        let span = span.expect("receives");
        let same = span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at));
        assert!(same, "something differs from {position} to {}", position + span.len());
        position += span.len();
    }
    assert_eq!(position, bytes);
}

/// Receives a stream over a bound queue.
pub(crate) fn exchange(
    testbed: &Testbed,
    driver: &Driver,
    queue: &RxQueue,
    ipv6: bool,
    bytes: usize,
) -> Tally {
    let right = &testbed.pair.right;
    let (left, far) =
        if ipv6 { testbed.stream(right.v6(), QUEUE) } else { testbed.stream(right.v4(), QUEUE) };
    let mut receiver = receiver(driver, far, queue);
    let sender = send(left, bytes);
    driver.block_on(expect_stream(&mut receiver, bytes)).expect("runs");
    let tally = receiver.tally();
    drop(receiver);
    sender.join().expect("ends");
    tally
}

pub(crate) fn whole(bytes: usize) -> Tally {
    Tally { zero_copy: bytes as u64, ..Tally::default() }
}

pub(crate) async fn join_all<F: Future<Output = ()>>(all: impl Iterator<Item = F>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
