//! Receiving into foreign memory: bytes arrive where the spans say, and nobody copies them there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use handoff::{
    DmaBuf, DmaBufQueue, DmaBufReceiver, DmaBufSpan, Driver, Error, ReceiveEngine, SharedBuffer,
    SharedRegion, Wait,
};
use handoff_testbed::helpers::{byte_at, eventually};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use socket2::SockRef;

use crate::rx_queue::receiving::{LONG, MIB, PAGE, QUEUE, again, driver, whole};
use crate::rx_queue::testbed::{QUEUES, Testbed, port, run, send, stream_of};
use crate::traffic::within;

/// Memory, as its owner sees it.
struct Owned {
    region: SharedRegion,
    seen: SharedBuffer,
    dma_buf: DmaBuf,
}

impl Owned {
    fn new(bytes: usize) -> Self {
        let mut region = SharedRegion::memfd(bytes).expect("memory");
        let dma_buf = DmaBuf::of_memfd(&region).expect("the guest has udmabuf");
        assert_eq!(dma_buf.len(), bytes);
        Self { seen: region.take(bytes).expect("all of it"), dma_buf, region }
    }

    /// Where another process opens it.
    fn name(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.region.as_fd().as_raw_fd())
    }

    fn are_stream(&self, spans: &[DmaBufSpan]) -> bool {
        let mut position = 0;
        spans.iter().all(|span| {
            position += span.len();
            self.is_stream(span.offset(), span.len(), position - span.len())
        })
    }

    fn is_stream(&self, offset: usize, len: usize, position: usize) -> bool {
        let mut bytes = vec![0; len];
        self.seen.view().read(offset, &mut bytes);
        bytes.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at))
    }
}

fn bind(
    testbed: &Testbed,
    driver: &Driver,
    queue: u32,
    memory: &DmaBuf,
) -> handoff::Result<DmaBufQueue> {
    let bind = || driver.dma_buf_queue(again(memory), &testbed.binding(queue));
    testbed.pair.right.namespace().run(bind).expect("enters")
}

/// Takes a stream to its end; the memory's owner compares it before each span is dropped.
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
            let (testbed, driver, memory) = (Testbed::new(mtu), driver(), Owned::new(8 * MIB));
            if whole_frames {
                testbed.deliver_whole();
            }
            if let Some((fault, share)) = fault {
                testbed.fault(fault, share);
            }
            let queue = bind(&testbed, &driver, QUEUE, &memory.dma_buf).expect("binds");
            assert_eq!((queue.chunk(), queue.chunks()), (PAGE, 8 * MIB / PAGE));
            let right = &testbed.pair.right;
            let (left, far) = match ipv6 {
                true => testbed.stream(right.v6(), QUEUE),
                false => testbed.stream(right.v4(), QUEUE),
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
        let (testbed, driver, memory) = (Testbed::new(1_500), driver(), Owned::new(8 * MIB));
        let queue = bind(&testbed, &driver, QUEUE, &memory.dma_buf).expect("binds");
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
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
fn with_all_chunks_held_the_sender_waits_and_nothing_is_lost() {
    within(LONG, || {
        let (testbed, driver, memory) = (Testbed::new(1_500), driver(), Owned::new(4 * MIB));
        let queue = bind(&testbed, &driver, QUEUE, &memory.dma_buf).expect("binds");
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        // As for our own memory: the socket must not hold every chunk.
        SockRef::from(&far).set_recv_buffer_size(64 << 10).expect("sets");
        let socket = driver.socket(far).expect("attaches");
        let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
        let sender = send(left, 8 * MIB);
        let mut kept = Vec::new();
        let quiet = Duration::from_millis(500);
        let mut last = Instant::now();
        while queue.stats().shortages == 0 || kept.len() <= 512 || last.elapsed() < quiet {
            driver.turn(Wait::AtMost(quiet)).expect("turns");
            while let Some(span) = receiver.try_next_span() {
                kept.push(span.expect("goes on").expect("receives"));
                last = Instant::now();
            }
        }
        assert!(!sender.is_finished());
        assert_eq!(kept.len(), queue.held(), "{queue:?}");
        assert!(memory.are_stream(&kept), "a kept span has changed");
        let mut position: usize = kept.drain(..).map(|span| span.len()).sum();
        driver
            .block_on(async {
                while let Some(span) = receiver.next_span().await {
                    let span = span.expect("receives");
                    assert!(memory.is_stream(span.offset(), span.len(), position), "{position}");
                    position += span.len();
                }
            })
            .expect("runs");
        assert_eq!(position, 8 * MIB);
        sender.join().expect("ends");
    });
}

#[test]
fn a_nic_that_goes_leaves_the_memory_and_its_spans() {
    within(LONG, || {
        let (testbed, driver, memory) = (Testbed::new(1_500), driver(), Owned::new(8 * MIB));
        let queue = bind(&testbed, &driver, QUEUE, &memory.dma_buf).expect("binds");
        let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let socket = driver.socket(far).expect("attaches");
        let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
        let mut kept: Vec<DmaBufSpan> = Vec::new();
        let device = testbed.pair.right.device();
        for ending in [
            format!("ip link set {device} down && ip link set {device} up"),
            format!("ip link delete {device}"),
        ] {
            let before: usize = kept.iter().map(DmaBufSpan::len).sum();
            left.write_all(&stream_of(before + 100_000)[before..]).expect("sends");
            let some = async {
                let mut bytes = 0;
                while bytes < 100_000 {
                    let span = receiver.next_span().await.expect("goes on").expect("receives");
                    bytes += span.len();
                    kept.push(span);
                }
            };
            driver.block_on(some).expect("runs");
            run(&testbed.pair.right, &ending);
        }
        assert!(memory.are_stream(&kept), "a kept span has changed");
        drop((receiver, socket, queue));
        driver.turn(Wait::No).expect("turns");
        assert!(memory.are_stream(&kept), "a kept span has changed");
        drop((kept, driver));
    });
}

/// What the other process prints, up to this.
fn said(child: &mut Child, until: impl Fn(&str) -> bool) -> String {
    let output = child.stdout.as_mut().expect("piped");
    let (mut said, mut byte) = (String::new(), [0]);
    while !(said.ends_with('\n') && until(&said)) {
        assert_eq!(output.read(&mut byte).expect("reads"), 1, "ended after: {said}");
        said.push(byte[0] as char);
    }
    said
}

/// Reported places: the offset and length of each.
fn places(told: &str) -> Vec<(usize, usize)> {
    let places = told.lines().filter_map(|line| line.strip_prefix("AT ")?.split_once(' '));
    places.map(|(at, len)| (at.parse().expect("told"), len.parse().expect("told"))).collect()
}

#[test]
fn a_killed_receiver_leaves_the_memory_to_its_owner_and_the_queue_to_others() {
    within(LONG, || {
        let (testbed, memory) = (Testbed::new(1_500), Owned::new(8 * MIB));
        for round in 0..3 {
            // Differs from what was there before.
            let begin = round * 12_345;
            let mut child = Command::new(std::env::current_exe().expect("our path"));
            child.args([
                "--exact",
                "--ignored",
                "--nocapture",
                "rx_queue::guest::fixture::tells_places",
            ]);
            child.env("DEVICE", testbed.pair.right.device()).env("MEMORY", memory.name());
            child.stdin(Stdio::null()).stdout(Stdio::piped());
            let child = testbed.pair.right.namespace().attach(&mut child).spawn();
            let mut child = child.expect("starts");
            said(&mut child, |said| said.contains("LISTENS"));
            let mut left = testbed.connect(testbed.pair.right.v4(), port(QUEUE));
            left.write_all(&stream_of(begin + 100_000)[begin..]).expect("sends");
            let bytes = |said: &str| places(said).iter().map(|place| place.1).sum::<usize>();
            let told = said(&mut child, |said| bytes(said) == 100_000);
            child.kill().expect("kills");
            child.wait().expect("ends");
            let mut position = begin;
            for (offset, len) in places(&told) {
                assert!(memory.is_stream(offset, len, position), "{position}");
                position += len;
            }
            // A worker of the kernel lets go of a dead ring.
            let driver = driver();
            eventually("the queue is free", || {
                bind(&testbed, &driver, QUEUE, &memory.dma_buf).ok()
            });
        }
    });
}

#[test]
fn what_came_another_way_cannot_be_copied_there_and_is_an_error() {
    within(LONG, || {
        let (testbed, driver, memory) = (Testbed::new(1_500), driver(), Owned::new(8 * MIB));
        let queue = bind(&testbed, &driver, QUEUE, &memory.dma_buf).expect("binds");
        // A port that is steered elsewhere.
        let listener = testbed.listen(testbed.pair.right.v4(), port(QUEUES[1]));
        let left = testbed.connect(testbed.pair.right.v4(), port(QUEUES[1]));
        let socket = driver.socket(listener.accept().expect("accepts").0).expect("attaches");
        let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
        let sender = send(left, 10_000);
        let first = driver.block_on(receiver.next_span()).expect("runs").expect("told");
        let error = first.expect_err("an error").to_string();
        assert!(error.contains("another way") && error.contains("steer the port"), "{error}");
        sender.join().expect("ends");
    });
}

/// A dma-buf whose neighbouring pages are not neighbours in memory, since they were allocated apart.
fn scattered(bytes: usize) -> DmaBuf {
    let fd = memfd_create("scattered", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = File::from(fd.expect("makes"));
    file.set_len(bytes as u64).expect("grows");
    for start in [0, PAGE] {
        for at in (start..bytes).step_by(2 * PAGE) {
            file.write_all_at(&[1], at as u64).expect("takes a page");
        }
    }
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("seals");
    DmaBuf::of_memfd(file).expect("the guest has udmabuf")
}

#[test]
fn memory_that_will_not_do_is_named() {
    let (testbed, driver) = (Testbed::new(1_500), driver());
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
    let refused = refusal(bind(&testbed, &driver, QUEUE, &small.dma_buf));
    assert!(refused.contains("the NIC's ring alone"), "{refused}");
    let odd = Owned::new(8 * MIB + PAGE);
    let in_chunks = |memory: &DmaBuf, chunk| {
        let bind = || driver.dma_buf_queue(again(memory), &testbed.binding(QUEUE).chunk(chunk));
        refusal(testbed.pair.right.namespace().run(bind).expect("enters"))
    };
    let refused = in_chunks(&odd.dma_buf, 2 * PAGE);
    assert!(refused.contains("no whole chunks of 8192"), "{refused}");
    let refused = in_chunks(&scattered(32 * MIB), 16 * PAGE);
    assert!(refused.contains("not in pieces of 65536"), "{refused}");
    // None of that changes the queue.
    let memory = Owned::new(8 * MIB);
    let queue = bind(&testbed, &driver, QUEUE, &memory.dma_buf).expect("binds");
    let again = refusal(bind(&testbed, &driver, QUEUE, &memory.dma_buf));
    assert!(again.contains("bound already"), "{again}");
    assert_eq!(queue.stats().bytes, 0);
}
