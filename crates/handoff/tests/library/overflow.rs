//! Many more completions than the completion queue has room for, and requests for which the submission queue has none:
//! nothing is lost.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Region, Wait};

use crate::refusals::take_no_two_requests;
use crate::traffic::{self, pattern, tcp, udp_pair, within};

const LONG: Duration = Duration::from_secs(30);

/// A driver whose queues hold 2 requests and 2 completions.
fn tiny(test: &str) -> Option<Driver> {
    let driver = Driver::builder().entries(2).completions(1).in_flight(10_000).build().unwrap();
    match driver.ring_unavailable() {
        Some(reason) => {
            traffic::skip(test, reason);
            None
        }
        None => Some(driver),
    }
}

#[test]
fn thousands_of_returns_at_once() {
    within(LONG, || {
        let Some(driver) = tiny("thousands_of_returns_at_once") else { return };
        let (near, _far) = udp_pair();
        let socket = driver.socket(near).unwrap();
        socket.set_engine(Engine::UringZc).unwrap();
        let mut region = Region::anonymous(4096 * 80).unwrap();
        // Two completions each, and nobody takes any before all are accepted.
        let sendings: Vec<_> =
            region.chunks(64).into_iter().map(|buffer| socket.send(buffer).unwrap()).collect();
        assert_eq!(driver.in_flight(), 5120);
        driver
            .block_on(async {
                for sending in sendings {
                    let finished = sending.await.unwrap();
                    assert_eq!(finished.sent.unwrap(), 64);
                    assert_eq!(finished.receipt.tally.total(), 64);
                }
            })
            .unwrap();
        assert_eq!(driver.in_flight(), 0);
        assert_eq!(socket.send_stats().notifications, 5120);
    });
}

#[test]
fn thousands_of_reads_at_once() {
    within(LONG, || {
        let Some(driver) = tiny("thousands_of_reads_at_once") else { return };
        let file = driver.file(std::fs::File::open("/dev/zero").unwrap()).unwrap();
        let mut reads: Vec<_> =
            (0..3000).map(|_| file.read(Buffer::from(vec![1; 9])).unwrap()).collect();
        while let Some(mut read) = reads.pop() {
            let over = loop {
                match read.try_take() {
                    Ok(over) => break over,
                    Err(again) => read = again,
                }
                driver.turn(Wait::Event).unwrap();
            };
            assert_eq!(over.result.unwrap(), 9);
            assert_eq!(&over.buffer[..], [0; 9]);
        }
    });
}

#[test]
fn a_multishot_receive_that_fills_the_queue() {
    within(LONG, || {
        let Some(driver) = tiny("a_multishot_receive_that_fills_the_queue") else { return };
        let pool = driver.pool(Region::anonymous(1000 * 4096).unwrap(), 4096).unwrap();
        let mut receivers = Vec::new();
        let mut writers = Vec::new();
        for seed in 0..10 {
            let (near, mut far) = tcp("127.0.0.1");
            receivers.push(driver.socket(near).unwrap().receive(&pool).unwrap());
            writers.push(thread::spawn(move || {
                far.write_all(&pattern(seed, 400_000)).unwrap();
            }));
        }
        for (seed, receiver) in receivers.iter_mut().enumerate() {
            let mut got = Vec::new();
            driver
                .block_on(async {
                    while let Some(span) = receiver.next_span().await {
                        got.extend_from_slice(&span.unwrap());
                    }
                })
                .unwrap();
            assert!(got == pattern(seed, 400_000), "{seed}");
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn wake_ups_survive_a_full_queue() {
    within(LONG, || {
        let Some(driver) = tiny("wake_ups_survive_a_full_queue") else { return };
        let file = driver.file(std::fs::File::open("/dev/zero").unwrap()).unwrap();
        for _ in 0..20 {
            let reads: Vec<_> =
                (0..50).map(|_| file.read(Buffer::from(vec![1; 9])).unwrap()).collect();
            let (sender, receiver) = std::sync::mpsc::channel::<std::task::Waker>();
            let waking = thread::spawn(move || {
                for waker in receiver {
                    waker.wake();
                }
            });
            let mut polls = 0;
            driver
                .block_on(std::future::poll_fn(|context| {
                    sender.send(context.waker().clone()).unwrap();
                    polls += 1;
                    if polls > 20 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                }))
                .unwrap();
            drop(sender);
            waking.join().unwrap();
            for read in reads {
                assert_eq!(driver.block_on(read).unwrap().unwrap().result.unwrap(), 9);
            }
        }
    });
}

#[test]
fn a_cancellation_without_room_is_asked_for_again() {
    const NAME: &str = "a_cancellation_without_room_is_asked_for_again";
    within(LONG, || {
        let Some(driver) = tiny(NAME) else { return };
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let receiver = socket.receive(&pool).unwrap();
        driver.turn(Wait::No).unwrap();
        take_no_two_requests();
        let waiting = |near: UnixStream| driver.socket(near).unwrap().readable().unwrap();
        let pairs = (0..2).map(|_| UnixStream::pair().unwrap());
        let (waits, _others): (Vec<_>, Vec<_>) =
            pairs.map(|(near, far)| (waiting(near), far)).unzip();
        drop(receiver);
        while driver.in_flight() > waits.len() {
            driver.turn(Wait::Event).unwrap();
        }
        // Nobody takes bytes beside the next receiver.
        let mut receiver = socket.receive(&pool).unwrap();
        far.write_all(b"news").unwrap();
        let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        assert_eq!(&span[..], b"news");
    });
}
