//! Received spans that leave the driver's thread (`Span::into_send`), from every intake, and how their chunks come home.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use handoff::{
    DATAGRAM_HEAD, Driver, Engine, Error, Pool, Receiver, Region, RingUse, SendSpan, Wait,
};

use crate::traffic::{attached, drivers, pattern, tcp, udp_pair, with_each_driver, within};

const LONG: Duration = Duration::from_secs(30);
const CHUNK: usize = 4096;

fn pool(driver: &Driver, chunks: usize) -> Pool {
    driver.pool(Region::anonymous(chunks * CHUNK).unwrap(), CHUNK).unwrap()
}

fn receiving(driver: &Driver, pool: &Pool) -> (Receiver, TcpStream) {
    let (near, far) = tcp("127.0.0.1");
    (driver.socket(near).unwrap().receive(pool).unwrap(), far)
}

fn next(driver: &Driver, receiver: &mut Receiver) -> SendSpan {
    let span = driver.block_on(receiver.next_span()).unwrap().expect("there is more").unwrap();
    let at = span.as_ptr();
    let sent = span.into_send().unwrap();
    assert!(ptr::eq(sent.as_ptr(), at), "it was copied");
    sent
}

/// Takes what the peer sends to another thread, through a pool that has less room.
fn goes_through(driver: &Driver, taken: impl Fn(SendSpan) -> Bytes + Send + 'static) {
    const LEN: usize = 40 * CHUNK;
    let pool = pool(driver, 4);
    let (mut receiver, mut far) = receiving(driver, &pool);
    let sender = thread::spawn(move || far.write_all(&pattern(1, LEN)).unwrap());
    let (to_worker, work) = mpsc::channel();
    let worker = thread::spawn(move || {
        let mut got = Vec::new();
        for span in work {
            let bytes: Bytes = taken(span);
            // Parts of it hold the chunk, too.
            let parts = [bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..)];
            drop(bytes);
            parts.iter().for_each(|part| got.extend_from_slice(part));
        }
        got
    });
    driver
        .block_on(async {
            while let Some(span) = receiver.next_span().await {
                to_worker.send(span.unwrap().into_send().unwrap()).unwrap();
            }
        })
        .unwrap();
    drop(to_worker);
    sender.join().unwrap();
    assert!(worker.join().unwrap() == pattern(1, LEN), "what arrived differs");
    while pool.held() > 0 {
        driver.turn(Wait::Event).unwrap();
    }
}

#[test]
fn spans_of_a_pool_go_to_another_thread_and_their_chunks_come_back() {
    with_each_driver(LONG, |driver| {
        goes_through(&driver, Bytes::from);
        goes_through(&driver, |span| Bytes::copy_from_slice(&span));
    });
}

/// The driver sleeps in a turn of its own while another thread has all chunks.
#[test]
fn a_chunk_from_another_thread_wakes_who_waits_for_one() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 2);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(&pattern(1, 3 * CHUNK)).unwrap();
        let sent = [next(&driver, &mut receiver), next(&driver, &mut receiver)];
        // It starves now.
        while driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap() > 0 {}
        assert_eq!(pool.held(), 2);
        let worker = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            drop(sent);
        });
        let third = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        assert!(!third.is_empty());
        worker.join().unwrap();
        let held = third.into_send().unwrap();
        // With spans that nobody has taken.
        drop((receiver, far));
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            drop(held);
        });
        // A loop of one's own sleeps, and is woken.
        while pool.held() > 0 {
            driver.turn(Wait::Event).unwrap();
        }
    });
}

#[test]
fn how_many_are_out_is_bounded_and_told() {
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).send_spans(1).build().unwrap();
        let pool = pool(&driver, 4);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(&pattern(1, 2 * CHUNK)).unwrap();
        let sent = next(&driver, &mut receiver);
        let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        let refused = span.into_send().expect_err("one is out");
        assert!(matches!(refused.error, Error::SpansAway { limit: 1 }));
        assert!(refused.error.to_string().contains("DriverBuilder::send_spans"));
        // The span is here as before; and as soon as the first is dropped, it may go.
        thread::spawn(move || drop(sent)).join().unwrap();
        assert!(refused.buffer.into_send().is_ok());
    }
}

#[test]
fn a_split_span_leaves_by_its_last_part_and_others_are_told() {
    for driver in drivers() {
        let pool = pool(&driver, 4);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(b"header, payload").unwrap();
        let mut payload = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        let header = payload.split_to(8);
        let refused = payload.into_send().expect_err("a part is here");
        assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
        assert_eq!((&header[..], &refused.buffer[..]), (&b"header, "[..], &b"payload"[..]));
        drop(header);
        let sent = refused.buffer.into_send().unwrap();
        let got = thread::spawn(move || Bytes::from(sent)).join().unwrap();
        assert_eq!(got, "payload");
    }
}

/// The bytes stay, and the kernel receives nothing over them, when the driver, its pool and its sockets are gone.
#[test]
fn spans_outlive_their_driver() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 2);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(&pattern(1, 2 * CHUNK)).unwrap();
        let first = next(&driver, &mut receiver);
        let second = next(&driver, &mut receiver);
        let expected = [first.to_vec(), second.to_vec()];
        // Starves, and would take any chunk.
        let _ = far.write(&pattern(9, CHUNK));
        driver.turn(Wait::No).unwrap();
        drop(driver);
        let refused = receiver_ends(&mut receiver);
        assert!(matches!(refused, None | Some(Error::DriverGone)), "{refused:?}");
        assert_eq!(&first[..], expected[0]);
        let dropped_by_other = thread::spawn(move || drop(first));
        dropped_by_other.join().unwrap();
        drop((receiver, pool));
        assert_eq!(&second[..], expected[1]);
        let bytes = Bytes::from(second);
        thread::spawn(move || assert_eq!(bytes, expected[1])).join().unwrap();
    });
}

/// Takes the rest.
fn receiver_ends(receiver: &mut Receiver) -> Option<Error> {
    loop {
        match receiver.try_next_span() {
            Some(Some(Ok(_))) => {}
            Some(Some(Err(error))) => return Some(error),
            _ => return None,
        }
    }
}

#[test]
fn nothing_leaves_a_driver_that_is_gone() {
    for driver in drivers() {
        let pool = pool(&driver, 2);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(b"late").unwrap();
        let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        drop(driver);
        let refused = span.into_send().expect_err("nobody turns it");
        assert!(matches!(refused.error, Error::DriverGone));
        assert_eq!(&refused.buffer[..], b"late");
    }
}

#[test]
fn a_datagram_has_its_sender_on_another_thread_and_an_empty_one_too() {
    with_each_driver(LONG, |driver| {
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), DATAGRAM_HEAD + 512).unwrap();
        let (near, far) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        far.send_to(b"who is it?", near.local_addr().unwrap()).unwrap();
        far.send_to(b"", near.local_addr().unwrap()).unwrap();
        let mut receiver = driver.socket(near).unwrap().receive(pool.with_senders()).unwrap();
        let sent = [next(&driver, &mut receiver), next(&driver, &mut receiver)];
        let sender = far.local_addr().unwrap();
        let told = thread::spawn(move || {
            sent.map(|span| (span.to_vec(), span.datagram().unwrap().sender))
        });
        let expected = [(b"who is it?".to_vec(), sender), (Vec::new(), sender)];
        assert_eq!(told.join().unwrap(), expected);
        // Without senders an empty one has no chunk.
        let pool = self::pool(&driver, 2);
        let (near, far) = udp_pair();
        far.send_to(b"", near.local_addr().unwrap()).unwrap();
        let mut receiver = driver.socket(near).unwrap().receive(&pool).unwrap();
        let sent = next(&driver, &mut receiver);
        assert!(thread::spawn(move || sent.is_empty()).join().unwrap());
    });
}

/// A span is lent by the driver of another thread, from where it was received.
#[test]
fn another_driver_lends_it_on() {
    within(LONG, || {
        for driver in drivers() {
            let pool = pool(&driver, 4);
            let (mut receiver, mut far) = receiving(&driver, &pool);
            far.write_all(&pattern(3, CHUNK)).unwrap();
            let sent = next(&driver, &mut receiver);
            let len = sent.len();
            let other = thread::spawn(move || {
                let driver = Driver::new().unwrap();
                let (near, mut far) = tcp("127.0.0.1");
                let socket = attached(&driver, near, Engine::Auto);
                let finished = driver.block_on(async { socket.send(sent).unwrap().await });
                let finished = finished.unwrap().unwrap();
                assert_eq!(finished.sent.unwrap(), len);
                let mut got = vec![0; len];
                std::io::Read::read_exact(&mut far, &mut got).unwrap();
                assert!(got == finished.buffer[..]);
            });
            other.join().unwrap();
            while pool.held() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
        }
    });
}

/// Mapped pages leave where the caller vouches for the peer, and stay mapped.
#[test]
fn mapped_pages_leave_where_the_peer_is_trusted() {
    with_each_driver(LONG, |driver| {
        let window = driver.window(4, 1 << 16).unwrap();
        let (near, mut far) = tcp("127.0.0.1");
        // SAFETY: the peer is this test, which writes from memory of its own by copying.
        let intake = unsafe { handoff::MappedIntake::from(&window).trust_peers() };
        let mut receiver = driver.socket(near).unwrap().receive(intake).unwrap();
        far.write_all(&pattern(5, 10_000)).unwrap();
        let mut got = Vec::new();
        while got.len() < 10_000 {
            let sent = next(&driver, &mut receiver);
            got.extend(thread::spawn(move || Bytes::from(sent).to_vec()).join().unwrap());
        }
        assert!(got == pattern(5, 10_000));
        while window.held() > 0 {
            driver.turn(Wait::Event).unwrap();
        }
    });
}
