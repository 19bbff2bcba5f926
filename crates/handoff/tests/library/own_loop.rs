//! A thread that owns its loop and turns the driver: no wait sleeps through an event, and accepted
//! operations are done.

use std::io::Read;
use std::net::UdpSocket;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use handoff::{Buffer, Driver, Engine, Error, Region, Wait};

use crate::traffic::{
    self, attached, filled, narrow_tcp, patience, pattern, read_all, tcp, udp, with_each_engine,
    within, without_ring,
};

const LONG: Duration = Duration::from_secs(30);
/// More than the buffers of a narrow connection hold.
const BLOCKED: usize = 1 << 20;

#[test]
fn a_wait_does_not_sleep_through_a_send_that_is_over_already() {
    with_each_engine(LONG, |driver, engine| {
        let (socket, _far) = udp(&driver, engine);
        let mut buffer = Buffer::from(pattern(1, 3000));
        for _ in 0..40 {
            let (sent, mut loan) = socket.send(buffer).unwrap().split();
            drop(sent);
            buffer = loop {
                driver.turn(Wait::Event).unwrap();
                match loan.try_take() {
                    Ok(back) => break back.buffer,
                    Err(again) => loan = again,
                }
            };
        }
    });
}

/// The futures of an owner that polls them after each turn. One of them waits once, as it does after many that were
/// ready at once.
#[test]
fn a_wait_does_not_sleep_through_a_future_that_waits_once() {
    const FUTURES: usize = 300;
    with_each_engine(LONG, |driver, engine| {
        let (socket, _far) = udp(&driver, engine);
        // Something is expected, but nothing comes.
        let silent = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let _silent = silent.receive_into(Buffer::from(vec![0; 100])).unwrap();
        driver.turn(Wait::No).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut many: Vec<_> = (0..FUTURES)
            .map(|_| socket.send(Buffer::from(pattern(1, 100))).unwrap().split().0)
            .collect();
        while !many.is_empty() {
            driver.turn(Wait::Event).unwrap();
            many.retain_mut(|sent| Pin::new(sent).poll(&mut context).is_pending());
        }
    });
}

#[test]
fn a_wait_does_not_sleep_through_sends_that_end_with_the_stream() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(2 << 20).unwrap();
        let (first, _loan) = socket.send(filled(&mut region, 1, BLOCKED)).unwrap().split();
        let mut others: Vec<_> = (0..50)
            .map(|seed| socket.send(filled(&mut region, seed, 100)).unwrap().split().0)
            .collect();
        driver.turn(Wait::AtMost(Duration::from_millis(20))).unwrap();
        // Closed with bytes unread: a reset.
        drop(far);
        let mut waiting = Some(first);
        while let Some(sent) = waiting.take() {
            match sent.try_take() {
                Ok(result) => assert!(result.is_err(), "{engine}"),
                Err(again) => {
                    waiting = Some(again);
                    driver.turn(Wait::Event).unwrap();
                }
            }
        }
        while let Some(sent) = others.pop() {
            match sent.try_take() {
                Ok(result) => {
                    assert!(matches!(result, Err(Error::StreamBroken { .. })), "{result:?}");
                }
                Err(again) => {
                    others.push(again);
                    driver.turn(Wait::Event).unwrap();
                }
            }
        }
    });
}

#[test]
fn a_blocked_send_is_cancelled() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(2 << 20).unwrap();
        let (mut sent, loan) = socket.send(filled(&mut region, 1, BLOCKED)).unwrap().split();
        driver.turn(Wait::AtMost(Duration::from_millis(20))).unwrap();
        sent.cancel();
        sent.cancel();
        let error = loop {
            match sent.try_take() {
                Ok(result) => break result.unwrap_err(),
                Err(again) => sent = again,
            }
            driver.turn(Wait::Event).unwrap();
        };
        let Error::Canceled { done } = error else { panic!("{engine}: {error}") };
        assert!(done > 0 && done < BLOCKED, "{engine}: {done}");
        let refused = socket.send(filled(&mut region, 1, 10)).unwrap_err();
        assert!(matches!(refused.error, Error::StreamBroken { sent, .. } if sent == done));
        let reader = read_all(far);
        let back = driver.block_on(loan).unwrap().unwrap();
        assert_eq!(back.receipt.tally.total(), done as u64, "{engine}");
        drop(socket);
        assert!(reader.join().unwrap() == pattern(1, BLOCKED)[..done], "{engine}");
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn empty_pieces_take_no_room_in_a_message() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(2 << 20).unwrap();
        let lens = [0, 5, 0, 0, BLOCKED, 0, 70_000, 0];
        let pieces: Vec<_> =
            lens.iter().enumerate().map(|(seed, len)| filled(&mut region, seed, *len)).collect();
        let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let sending = socket.send(pieces).unwrap();
        let empty: Vec<_> = (0..3).map(|_| region.take(0).unwrap()).collect();
        let empty = socket.send(empty).unwrap();
        let none = socket.send(Vec::<Buffer>::new()).unwrap();
        // Blocked midway, so that it continues from within the pieces.
        driver.turn(Wait::AtMost(Duration::from_millis(20))).unwrap();
        let reader = read_all(far);
        let back = driver
            .block_on(async {
                let back = sending.await.unwrap();
                assert_eq!(empty.await.unwrap().sent.unwrap(), 0);
                assert_eq!(none.await.unwrap().sent.unwrap(), 0);
                back
            })
            .unwrap();
        assert_eq!(back.sent.unwrap(), expected.len(), "{engine}");
        assert_eq!(back.buffer.len(), lens.len());
        drop(socket);
        assert!(reader.join().unwrap() == expected, "{engine}");
    });
}

#[test]
fn a_message_of_a_header_alone_is_sent_at_once() {
    with_each_engine(LONG, |driver, engine| {
        let (near, mut far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(4096).unwrap();
        // A busy machine may be late once; a kernel that waits for more bytes is late each time.
        let mut soonest = LONG;
        for _ in 0..4 {
            let buffer = region.take(0).unwrap();
            let start = Instant::now();
            let sending = socket.message(buffer).header(b"header").send().unwrap();
            assert_eq!(driver.block_on(async { sending.await.unwrap().sent }).unwrap().unwrap(), 6);
            let mut got = [0; 6];
            far.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"header");
            soonest = soonest.min(start.elapsed());
        }
        assert!(soonest < patience(Duration::from_millis(100)), "{engine} {soonest:?}");
    });
}

#[test]
fn a_ring_of_two_entries_takes_any_number_of_sends() {
    within(LONG, || {
        for entries in [0, 1, 2, 3] {
            let driver = Driver::builder().entries(entries).build().unwrap();
            if let Some(reason) = driver.ring_unavailable() {
                return traffic::skip("a_ring_of_two_entries_takes_any_number_of_sends", reason);
            }
            let (near, mut far) = tcp("127.0.0.1");
            let socket = driver.socket(near).unwrap();
            socket.set_engine(Engine::UringZc).unwrap();
            let mut region = Region::anonymous(1 << 20).unwrap();
            let sendings: Vec<_> = (0..100)
                .map(|seed| {
                    let buffer = filled(&mut region, seed, seed * 10);
                    socket.message(buffer).header(&pattern(seed, seed % 20)).send().unwrap()
                })
                .collect();
            let expected: Vec<u8> = (0..100)
                .flat_map(|seed| [pattern(seed, seed % 20), pattern(seed, seed * 10)].concat())
                .collect();
            driver
                .block_on(async {
                    for sending in sendings {
                        sending.await.unwrap().sent.unwrap();
                    }
                })
                .unwrap();
            let mut got = vec![0; expected.len()];
            far.read_exact(&mut got).unwrap();
            assert!(got == expected);
        }
    });
}

#[test]
fn a_group_or_a_pool_of_another_driver_is_refused() {
    let (one, other) = (Driver::new().unwrap(), Driver::new().unwrap());
    for (one, other) in
        [(one, other), (without_ring(), without_ring()), (without_ring(), Driver::new().unwrap())]
    {
        let (near, _far) = tcp("127.0.0.1");
        let socket = one.socket(near).unwrap();
        let mut group = other.group();
        let refused = socket.message(Buffer::from(vec![7; 9])).send_in(&mut group).unwrap_err();
        assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
        assert_eq!(&refused.buffer[..], [7; 9]);
        let pool = other.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let error = socket.receive(&pool).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        assert_eq!((one.in_flight(), other.in_flight()), (0, 0));
    }
}

#[test]
fn nothing_waits_for_a_driver_that_is_gone() {
    with_each_engine(LONG, |driver, engine| {
        let (near, _far) = traffic::narrow_tcp();
        let socket = attached(&driver, near, engine);
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let mut receiver = socket.receive(&pool).unwrap();
        // Not taken by the peer; behind it one that never starts.
        let stalled = socket.send(Buffer::from(pattern(1, 4 << 20))).unwrap().split().0;
        let behind = socket.send(Buffer::from(pattern(2, 10))).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = driver.file(reader).unwrap();
        let read = file.read(Buffer::from(vec![0; 9])).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(driver);
        // Another runtime, which turns no driver.
        let other = Driver::builder().ring(handoff::RingUse::Avoid).build().unwrap();
        other
            .block_on(async {
                assert!(stalled.await.is_err(), "{engine}");
                let behind = behind.await.unwrap();
                assert!(behind.sent.is_err() && behind.buffer[..] == pattern(2, 10)[..]);
                assert!(read.await.unwrap().result.is_err());
                let end = receiver.next_span().await;
                assert!(matches!(end, Some(Err(Error::DriverGone))), "{engine}: {end:?}");
            })
            .unwrap();
        let refused = socket.send(Buffer::from(pattern(3, 10))).unwrap_err();
        assert!(matches!(refused.error, Error::DriverGone), "{engine}: {}", refused.error);
        assert!(refused.buffer[..] == pattern(3, 10)[..]);
        assert!(matches!(socket.receive(&pool).unwrap_err(), Error::DriverGone));
        let refused = file.read(Buffer::from(vec![0; 9])).unwrap_err();
        assert!(matches!(refused.error, Error::DriverGone));
    });
}

#[test]
fn a_future_whose_driver_nobody_turns_says_so_once() {
    use std::sync::atomic::Ordering::SeqCst;

    for turned in [false, true] {
        for driver in traffic::drivers() {
            let warnings = std::sync::Arc::default();
            let counting = traffic::Warnings(std::sync::Arc::clone(&warnings));
            tracing::subscriber::with_default(counting, || {
                if turned {
                    driver.turn(Wait::No).unwrap();
                }
                let (near, _far) = tcp("127.0.0.1");
                let socket = driver.socket(near).unwrap();
                let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
                let mut receiver = socket.receive(&pool).unwrap();
                for _ in 0..3 {
                    let next = pin!(receiver.next_span());
                    assert!(next.poll(&mut Context::from_waker(Waker::noop())).is_pending());
                }
            });
            assert_eq!(warnings.load(SeqCst), usize::from(!turned));
        }
    }
}
