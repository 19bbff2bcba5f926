//! Queues that begin with little memory, and get more when chunks run short.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use handoff::{Driver, Receiver, Region, RxBinding, RxQueue, RxShortage, Span, Wait};
use handoff_testbed::helpers::{byte_at, eventually};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;

use crate::rx_queue::receiving::{
    LONG, MIB, PAGE, QUEUE, area, driver, expect_stream, receiver, whole,
};
use crate::rx_queue::testbed::{QUEUES, Testbed, port, send, stream_of};
use crate::traffic::within;

/// A queue of the NIC that begins with so many of its chunks.
fn growing(testbed: &Testbed, driver: &Driver, chunks: usize, first: usize) -> RxQueue {
    let inside = || {
        let binding = RxBinding::new(testbed.pair.right.device(), QUEUE)?.grows_from(first * PAGE);
        driver.rx_queue(Region::reserved(chunks * PAGE)?, &binding)
    };
    testbed.pair.right.namespace().run(inside).expect("enters").expect("binds")
}

/// Sends so much, and ends the stream; a receiver may go before.
fn send_what_is_taken(mut socket: TcpStream, bytes: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        let _ = socket.write_all(&stream_of(bytes));
        let _ = socket.shutdown(Shutdown::Write);
    })
}

/// Keeps what comes, until the area is at its limit, these many are here and nothing more comes.
fn fill(driver: &Driver, queue: &RxQueue, receiver: &mut Receiver, least: usize) -> Vec<Span> {
    let quiet = Duration::from_millis(500);
    let (mut kept, mut last) = (Vec::new(), Instant::now());
    while queue.chunks() < queue.chunks_limit() || kept.len() < least || last.elapsed() < quiet {
        driver.turn(Wait::AtMost(quiet)).expect("turns");
        while let Some(span) = receiver.try_next_span() {
            kept.push(span.expect("goes on").expect("receives"));
            last = Instant::now();
        }
    }
    kept
}

/// Where the spans end, if each is what was sent there.
fn check(spans: Vec<Span>, begin: usize) -> usize {
    let mut position = begin;
    for span in spans {
        let same = span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at));
        assert!(same, "a span has changed at {position}");
        position += span.len();
    }
    position
}

#[test]
fn who_holds_all_chunks_gets_more_up_to_the_limit() {
    within(LONG, || {
        for queue_goes_first in [false, true] {
            let (testbed, driver) = (Testbed::new(1_500), driver());
            let queue = growing(&testbed, &driver, 2_500, 600);
            assert_eq!((queue.chunks(), queue.chunks_limit()), (600, 2_500));
            assert!(queue.growth().is_empty());
            let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            SockRef::from(&far).set_recv_buffer_size(64 << 10).expect("sets");
            let mut receiver = receiver(&driver, far, &queue);
            let sender = send_what_is_taken(left, 6 * MIB);
            let mut kept = fill(&driver, &queue, &mut receiver, 1_801);
            let steps: Vec<_> = queue.growth().iter().map(|step| step.chunks).collect();
            assert_eq!(steps, [1_200, 2_400, 2_500], "{queue:?}");
            assert!(queue.growth().is_sorted_by_key(|step| step.after));
            assert_eq!((queue.chunks(), queue.growth_stopped()), (2_500, None));
            assert_eq!(queue.held(), kept.len());
            assert!(kept.len() <= 2_500, "{queue:?}");
            if queue_goes_first {
                // Spans of all areas outlive receiver, queue and driver.
                drop((receiver, queue, driver));
                // In another order than that of arrival.
                let tail = kept.split_off(kept.len() / 2);
                let middle = kept.iter().map(|span| span.len()).sum();
                check(tail, middle);
                assert_eq!(check(kept, 0), middle);
                sender.join().expect("ends");
                continue;
            }
            let before = check(kept, 0);
            let rest = async {
                let mut position = before;
                while let Some(span) = receiver.next_span().await {
                    position = check(vec![span.expect("receives")], position);
                }
                position
            };
            assert_eq!(driver.block_on(rest).expect("runs"), 6 * MIB);
            sender.join().expect("ends");
            assert_eq!(queue.held(), 0);
            // Chunks given back are used again, in each area.
            let tally =
                crate::rx_queue::receiving::exchange(&testbed, &driver, &queue, false, 4 * MIB);
            assert_eq!(tally, whole(4 * MIB), "{queue:?}");
        }
    });
}

#[test]
fn a_burst_that_finds_no_chunk_makes_the_area_grow() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = growing(&testbed, &driver, 4_096, 600);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        setsockopt(&far, sockopt::RcvBufForce, &(16 << 20)).expect("sets");
        let mut receiver = receiver(&driver, far, &queue);
        driver.turn(Wait::No).expect("turns");
        let sender = send(left, 4 * MIB);
        // Until then bytes stay in the socket, in chunks.
        let no_buffer = format!("queue{QUEUE}_rx_no_buffer");
        eventually("the NIC has no chunk", || (testbed.counters()[&no_buffer] > 0).then_some(()));
        driver.block_on(expect_stream(&mut receiver, 4 * MIB)).expect("runs");
        sender.join().expect("ends");
        let growth = queue.growth();
        assert!(growth.iter().any(|step| step.cause == RxShortage::NoChunk), "{growth:?}");
        assert!(queue.stats().shortages > 0 && queue.chunks() > 600, "{queue:?}");
        assert_eq!(receiver.tally(), whole(4 * MIB));
    });
}

#[test]
fn large_chunks_grow_as_well() {
    within(LONG, || {
        std::fs::write("/proc/sys/vm/nr_hugepages", "32").expect("takes huge pages");
        let testbed = Testbed::new(1_500);
        testbed.deliver_whole();
        let driver = driver();
        let inside = || {
            let binding = RxBinding::new(testbed.pair.right.device(), QUEUE)?.chunk(64 << 10);
            let memory = Region::huge(64 * MIB)?;
            driver.rx_queue(memory, &binding.grows_from(20 * MIB))
        };
        let queue = testbed.pair.right.namespace().run(inside).expect("enters").expect("binds");
        assert_eq!(queue.chunks(), 320);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&driver, far, &queue);
        let sender = send_what_is_taken(left, 64 * MIB);
        let kept = fill(&driver, &queue, &mut receiver, 0);
        assert_eq!(queue.chunks(), 1_024, "{queue:?}");
        drop(receiver);
        check(kept, 0);
        sender.join().expect("ends");
    });
}

/// Without a NIC only the receive itself reports a shortage.
#[test]
fn a_queue_without_a_device_grows_when_the_kernel_finds_no_chunk_to_copy_to() {
    within(LONG, || {
        let driver = driver();
        let binding = RxBinding::without_device().grows_from(64 * PAGE);
        let queue = driver.rx_queue(area(512), &binding).expect("binds");
        assert_eq!((queue.chunks(), queue.chunks_limit()), (64, 512));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let left = std::net::TcpStream::connect(listener.local_addr().expect("bound"));
        let (far, _) = listener.accept().expect("accepts");
        let mut receiver = receiver(&driver, far, &queue);
        let sender = send(left.expect("connects"), 8 * MIB);
        let kept = fill(&driver, &queue, &mut receiver, 512);
        assert_eq!(kept.len(), 512);
        let steps: Vec<_> = queue.growth().iter().map(|step| step.chunks).collect();
        assert_eq!(steps, [128, 256, 512]);
        assert!(queue.growth().iter().all(|step| step.cause == RxShortage::NoChunk), "{queue:?}");
        let mut position = check(kept, 0);
        let rest = async {
            while let Some(span) = receiver.next_span().await {
                position = check(vec![span.expect("receives")], position);
            }
        };
        driver.block_on(rest).expect("runs");
        assert_eq!(position, 8 * MIB);
        sender.join().expect("ends");
    });
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("is there");
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a count") * PAGE
}

#[test]
fn memory_is_taken_as_the_area_grows() {
    let (driver, before) = (driver(), resident());
    let binding = RxBinding::without_device().grows_from(MIB);
    let reserved = Region::reserved(256 * MIB).expect("address space");
    let queue = driver.rx_queue(reserved, &binding).expect("binds");
    assert_eq!(queue.chunks_limit() * PAGE, 256 * MIB);
    let taken = resident() - before;
    assert!((MIB..32 * MIB).contains(&taken), "{taken} bytes for {queue:?}");
}

/// One ring has bound the queue and gone; another holds what comes, and gives the NIC more.
#[test]
fn a_shared_queue_grows_by_whichever_ring_finds_it_short() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        let (left, far) = {
            let listener = testbed.listen(testbed.pair.right.v4(), port(QUEUE));
            let left = testbed.connect(testbed.pair.right.v4(), port(QUEUE));
            (left, listener.accept().expect("accepts").0)
        };
        SockRef::from(&far).set_recv_buffer_size(64 << 10).expect("sets");
        let first = driver();
        let queue = growing(&testbed, &first, 2_048, 600);
        let exported = queue.export().expect("exports");
        let (tell, told) = channel();
        let holding = thread::spawn(move || {
            let driver = driver();
            let queue = driver.import_rx_queue(&exported).expect("imports");
            told.recv().expect("is told");
            let mut receiver = receiver(&driver, far, &queue);
            let sender = send_what_is_taken(left, 5 * MIB);
            let kept = fill(&driver, &queue, &mut receiver, 0);
            assert_eq!(queue.chunks(), 2_048);
            assert!(!queue.growth().is_empty());
            drop((receiver, queue, driver));
            check(kept, 0);
            sender.join().expect("ends");
        });
        drop((queue, first));
        tell.send(()).expect("is there");
        holding.join().expect("ends well");
    });
}

#[test]
fn a_beginning_that_cannot_fill_the_ring_is_refused() {
    let (testbed, driver) = (Testbed::new(1_500), driver());
    let inside = || {
        let binding = RxBinding::new(testbed.pair.right.device(), QUEUES[1])?.grows_from(64 * PAGE);
        driver.rx_queue(area(2_048), &binding)
    };
    let error = testbed.pair.right.namespace().run(inside).expect("enters").expect_err("refused");
    assert!(error.to_string().contains("the NIC's ring alone"), "{error}");
}
