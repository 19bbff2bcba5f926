//! Receiving into memory of others: what arrives is where the spans say, and nobody copies it there.

use std::fs::File;
use std::os::fd::OwnedFd;

use handoff::{
    DmaBuf, DmaBufQueue, DmaBufReceiver, Driver, Error, ReceiveEngine, SharedBuffer, SharedRegion,
};

use crate::bed::{Bed, QUEUES, byte_at, port, send};
use crate::receiving::{LONG, MIB, PAGE, QUEUE, driver, whole};
use crate::traffic::within;

/// Memory, as who has it sees it.
struct Owned {
    seen: SharedBuffer,
    dma_buf: DmaBuf,
}

impl Owned {
    fn new(bytes: usize) -> Self {
        let mut region = SharedRegion::memfd(bytes).expect("memory");
        let dma_buf = DmaBuf::of_memfd(&region).expect("the guest has udmabuf");
        assert_eq!(dma_buf.len(), bytes);
        Self { seen: region.take(bytes).expect("all of it"), dma_buf }
    }

    fn is_stream(&self, offset: usize, len: usize, position: usize) -> bool {
        let mut bytes = vec![0; len];
        self.seen.view().read(offset, &mut bytes);
        bytes.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at))
    }
}

fn bind(bed: &Bed, driver: &Driver, queue: u32, memory: &DmaBuf) -> handoff::Result<DmaBufQueue> {
    let bind = || driver.dma_buf_queue(memory, &bed.binding(queue));
    bed.pair.right.namespace().run(bind).expect("enters")
}

/// Takes a stream to its end, and has the memory's owner compare it before each span is dropped.
async fn expect_stream(receiver: &mut DmaBufReceiver, memory: &Owned, bytes: usize) {
    let mut position = 0;
    while let Some(span) = receiver.next_span().await {
        let mut span = span.expect("receives");
        let (offset, len) = (span.offset(), span.len());
        let head = span.split_to(len / 2);
        assert_eq!((head.offset(), head.len(), span.offset()), (offset, len / 2, offset + len / 2));
        assert!(memory.is_stream(head.offset(), head.len(), position), "{position}");
        drop(head);
        assert!(memory.is_stream(span.offset(), span.len(), position + len / 2), "{position}");
        position += len;
    }
    assert_eq!(position, bytes);
}

#[test]
fn what_was_sent_is_in_the_memory_of_others() {
    within(LONG, || {
        for (mtu, whole_frames, ipv6, fault) in [
            (1_500, false, false, None),
            (1_500, true, true, Some(("drop", 10_000))),
            (4_148, true, false, Some(("reorder", 200_000))),
            (9_000, false, true, Some(("drop", 10_000))),
        ] {
            let (bed, driver, memory) = (Bed::new(mtu), driver(), Owned::new(8 * MIB));
            if whole_frames {
                bed.deliver_whole();
            }
            if let Some((fault, share)) = fault {
                bed.fault(fault, share);
            }
            let queue = bind(&bed, &driver, QUEUE, &memory.dma_buf).expect("binds");
            assert_eq!((queue.chunk(), queue.chunks()), (PAGE, 8 * MIB / PAGE));
            let right = &bed.pair.right;
            let (left, far) = match ipv6 {
                true => bed.stream(right.v6(), QUEUE),
                false => bed.stream(right.v4(), QUEUE),
            };
            let socket = driver.socket(far).expect("attaches");
            let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
            let sender = send(left, MIB);
            let all = expect_stream(&mut receiver, &memory, MIB);
            driver.block_on(all).expect("runs");
            assert_eq!(receiver.engine().0, ReceiveEngine::ZcrxDmabuf);
            assert_eq!((receiver.tally(), queue.held()), (whole(MIB), 0), "{mtu} {fault:?}");
            sender.join().expect("ends");
        }
    });
}

#[test]
fn a_span_keeps_its_place_until_it_is_dropped_also_without_its_driver() {
    within(LONG, || {
        let (bed, driver, memory) = (Bed::new(1_500), driver(), Owned::new(8 * MIB));
        let queue = bind(&bed, &driver, QUEUE, &memory.dma_buf).expect("binds");
        let (left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
        let socket = driver.socket(far).expect("attaches");
        let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
        // More than once around the memory, while the first spans are kept.
        let sender = send(left, 12 * MIB);
        let mut kept = Vec::new();
        let mut position = 0;
        driver
            .block_on(async {
                while let Some(span) = receiver.next_span().await {
                    let span = span.expect("receives");
                    let len = span.len();
                    if kept.len() < 100 {
                        kept.push((span, position));
                    }
                    position += len;
                }
            })
            .expect("runs");
        sender.join().expect("ends");
        assert_eq!((position, queue.held()), (12 * MIB, 100));
        drop((receiver, socket, queue, driver));
        for (span, position) in &kept {
            assert!(memory.is_stream(span.offset(), span.len(), *position), "{position}");
        }
    });
}

#[test]
fn what_came_another_way_cannot_be_copied_there_and_is_an_error() {
    within(LONG, || {
        let (bed, driver, memory) = (Bed::new(1_500), driver(), Owned::new(8 * MIB));
        let queue = bind(&bed, &driver, QUEUE, &memory.dma_buf).expect("binds");
        // Of a port that is led elsewhere.
        let listener = bed.listen(bed.pair.right.v4(), port(QUEUES[1]));
        let left = bed.connect(bed.pair.right.v4(), port(QUEUES[1]));
        let socket = driver.socket(listener.accept().expect("accepts").0).expect("attaches");
        let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
        let sender = send(left, 10_000);
        let first = driver.block_on(receiver.next_span()).expect("runs").expect("told");
        let error = first.expect_err("an error").to_string();
        assert!(error.contains("another way") && error.contains("steer the port"), "{error}");
        sender.join().expect("ends");
    });
}

#[test]
fn memory_that_will_not_do_is_named() {
    let (bed, driver) = (Bed::new(1_500), driver());
    let file: OwnedFd = File::open("/dev/null").expect("is there").into();
    let none = DmaBuf::new(file).expect_err("refused").to_string();
    assert!(none.contains("no dma-buf"), "{none}");
    let none = DmaBuf::of_memfd(File::open("/dev/null").expect("is there")).expect_err("refused");
    assert!(none.to_string().contains("memfd"), "{none}");
    let refusal = |result: handoff::Result<DmaBufQueue>| match result.expect_err("refused") {
        Error::EngineUnavailable { engine: "zcrx-dmabuf", reason } => reason,
        other => panic!("{other:?}"),
    };
    let small = Owned::new(16 * PAGE);
    let refused = refusal(bind(&bed, &driver, QUEUE, &small.dma_buf));
    assert!(refused.contains("the NIC's ring alone"), "{refused}");
    let odd = Owned::new(8 * MIB + PAGE);
    let in_chunks = |memory: &DmaBuf, chunk| {
        let bind = || driver.dma_buf_queue(memory, &bed.binding(QUEUE).chunk(chunk));
        refusal(bed.pair.right.namespace().run(bind).expect("enters"))
    };
    let refused = in_chunks(&odd.dma_buf, 2 * PAGE);
    assert!(refused.contains("no whole chunks of 8192"), "{refused}");
    let pieces = Owned::new(32 * MIB);
    let refused = in_chunks(&pieces.dma_buf, 2 * PAGE);
    assert!(refused.contains("not in pieces of 8192"), "{refused}");
    // All of that leaves the queue as it was.
    let memory = Owned::new(8 * MIB);
    let queue = bind(&bed, &driver, QUEUE, &memory.dma_buf).expect("binds");
    let again = refusal(bind(&bed, &driver, QUEUE, &memory.dma_buf));
    assert!(again.contains("bound already"), "{again}");
    assert_eq!(queue.stats().bytes, 0);
}
