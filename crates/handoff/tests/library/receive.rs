//! Receiving into pools, with a ring and without: order, waiting for chunks, ends, and dropped spans and
//! receivers.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use handoff::{
    Buffer, DATAGRAM_HEAD, Datagram, Driver, Error, File, MappedSpan, Pool, ReceiveEngine,
    Receiver, Region, Socket, Span, SpanRef, Wait,
};
use io_uring::{IoUring, squeue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io_uring::IORING_OFF_SQES;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::pipe::{IoSliceRaw, SpliceFlags, pipe, splice, vmsplice};
use socket2::SockRef;

use crate::traffic::{
    drivers, pattern, read_all, skip, stay_on_one_processor, tcp, udp_pair, with_each_driver,
    within,
};

const LONG: Duration = Duration::from_secs(30);

fn pool(driver: &Driver, chunks: usize, chunk: usize) -> Pool {
    // A region is whole pages; chunks beyond those asked for are left over on purpose.
    assert_eq!(chunks * chunk % 4096, 0);
    driver.pool(Region::anonymous(chunks * chunk).unwrap(), chunk).unwrap()
}

fn receiving(driver: &Driver, pool: &Pool) -> (Receiver, TcpStream) {
    let (near, far) = tcp("127.0.0.1");
    (driver.socket(near).unwrap().receive(pool).unwrap(), far)
}

/// Waits a moment, without looking, for the driver to have something to take that comes of `act`. On some kernels
/// (6.1) it has nothing: a receive that took the last chunk ended with it.
fn until_it_tells(driver: &Driver, act: impl FnOnce()) {
    let fd = driver.as_fd();
    let tells = |millis: i64| {
        let time = Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap() > 0
    };
    // A driver with a ring tells at first, whatever there is.
    while tells(0) {
        driver.turn(Wait::No).unwrap();
    }
    act();
    tells(20);
}

fn bytes_of(span: &MappedSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    span.view().read(0, &mut bytes);
    bytes
}

/// A page of a ring, which user space writes and TCP takes: the kernel maps it into a window.
struct RingPage {
    start: *mut u8,
    _ring: IoUring,
}

impl RingPage {
    const LEN: usize = 4096;

    fn new() -> io::Result<Self> {
        // Its requests fill the page, and nobody submits any.
        let ring = IoUring::new((Self::LEN / size_of::<squeue::Entry>()) as u32)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let place = IORING_OFF_SQES;
        // SAFETY: a new mapping, which stays.
        let start = unsafe {
            let ring = BorrowedFd::borrow_raw(ring.as_raw_fd());
            mmap(std::ptr::null_mut(), Self::LEN, access, flags, ring, place)?
        };
        Ok(Self { start: start.cast(), _ring: ring })
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the mapping is ours and is written by this call only.
        unsafe { std::ptr::write_bytes(self.start, byte, Self::LEN) };
    }

    fn send(&self, to: &TcpStream) -> io::Result<()> {
        let (source, sink) = pipe()?;
        // SAFETY: the page stays mapped; that its bytes change is the purpose.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, Self::LEN) };
        // SAFETY: as above.
        let given =
            unsafe { vmsplice(&sink, &[IoSliceRaw::from_slice(bytes)], SpliceFlags::empty())? };
        let sent = splice(&source, None, to, None, given, SpliceFlags::empty())?;
        assert_eq!((given, sent), (Self::LEN, Self::LEN));
        Ok(())
    }
}

/// So a span is no slice: over loopback and veth its sender may still have the page.
#[test]
fn a_mapped_span_changes_with_the_page_that_its_sender_kept() {
    const TEST: &str = "a_mapped_span_changes_with_the_page_that_its_sender_kept";
    with_each_driver(LONG, |driver| {
        let window = driver.window(4, 8192).unwrap();
        let (near, far) = tcp("127.0.0.1");
        let page = match RingPage::new() {
            Ok(page) => page,
            Err(error) => return skip(TEST, &format!("no page of a ring: {error}")),
        };
        page.fill(0x41);
        if let Err(error) = page.send(&far) {
            return skip(TEST, &format!("no page of a ring can be sent: {error}"));
        }
        let socket = driver.socket(near).unwrap();
        let mut receiver = socket.receive_mapped(&window).unwrap();
        let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        assert_eq!(bytes_of(&span), [0x41; RingPage::LEN]);
        if receiver.tally().zero_copy == 0 {
            return skip(TEST, "the kernel copies pages of rings");
        }
        page.fill(0x42);
        assert_eq!(bytes_of(&span), [0x42; RingPage::LEN]);
    });
}

async fn next(receiver: &mut Receiver) -> Span {
    receiver.next_span().await.unwrap().unwrap()
}

fn next_spans(driver: &Driver, receiver: &mut Receiver, count: usize) -> Vec<Span> {
    let all = async {
        let mut spans = Vec::new();
        for _ in 0..count {
            spans.push(next(receiver).await);
        }
        spans
    };
    driver.block_on(all).unwrap()
}

#[test]
fn a_window_alone_receives_no_datagrams() {
    with_each_driver(LONG, |driver| {
        let socket = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let window = driver.window(2, 8192).unwrap();
        let refused = socket.receive_mapped(&window);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        // With a pool, they come there.
        let pool = pool(&driver, 1, 4096);
        let mut receiver = socket.receive_mapped(window.or(&pool)).unwrap();
        let to = SockRef::from(&socket).local_addr().unwrap().as_socket().unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"here", to).unwrap();
        let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        assert_eq!(bytes_of(&span), b"here");
    });
}

#[test]
fn spans_come_in_order_until_the_end() {
    with_each_driver(LONG, |driver| {
        for (chunks, chunk) in [(1, 4096), (3, 4096), (4096, 1), (64, 16384)] {
            let pool = pool(&driver, chunks, chunk);
            assert_eq!((pool.chunk(), pool.chunks()), (chunk, chunks));
            let len = if chunk == 1 { 10_000 } else { 1_000_000 };
            let (mut receiver, mut far) = receiving(&driver, &pool);
            let writer = thread::spawn(move || far.write_all(&pattern(5, len)).unwrap());
            let mut got = Vec::new();
            driver
                .block_on(async {
                    while let Some(span) = receiver.next_span().await {
                        got.extend_from_slice(&span.unwrap());
                    }
                    assert!(receiver.next_span().await.is_none());
                })
                .unwrap();
            assert!(got == pattern(5, len));
            assert_eq!(receiver.tally().copied, len as u64);
            assert_eq!(pool.held(), 0);
            writer.join().unwrap();
            drop(receiver);
            assert_eq!(driver.in_flight(), 0);
        }
    });
}

#[test]
fn a_visit_lends_all_that_is_there_and_what_is_kept_stays() {
    with_each_driver(LONG, |driver| {
        for (chunks, chunk) in [(1, 4096), (4096, 1), (64, 16384)] {
            let pool = pool(&driver, chunks, chunk);
            let len = if chunk == 1 { 10_000 } else { 1_000_000 };
            let (mut receiver, mut far) = receiving(&driver, &pool);
            let writer = thread::spawn(move || far.write_all(&pattern(5, len)).unwrap());
            let expected = pattern(5, len);
            let (mut got, mut kept, mut visits) = (Vec::new(), None, 0);
            let mut visitor = |span: SpanRef<'_>| {
                let at = got.len();
                got.extend_from_slice(&span);
                visits += 1;
                // Spans kept before go back.
                if visits % 3 == 0 && chunks > 1 {
                    kept = Some((span.keep(), at));
                    assert!(pool.held() > 0);
                }
                if let Some((span, at)) = &kept {
                    assert!(span[..] == expected[*at..at + span.len()]);
                }
            };
            let all = async {
                loop {
                    receiver.spans_there().await.unwrap();
                    if let Some(end) = receiver.visit(&mut visitor) {
                        break end;
                    }
                }
            };
            driver.block_on(all).unwrap().unwrap();
            assert!(receiver.visit(|_| panic!("the stream has ended")).unwrap().is_ok());
            driver.block_on(receiver.spans_there()).unwrap().unwrap();
            assert!(got == expected);
            assert_eq!(receiver.tally().copied, len as u64);
            writer.join().unwrap();
            // A span outlives its receiver.
            drop(receiver);
            assert_eq!(pool.held(), usize::from(kept.is_some()));
            assert_eq!(kept.is_some(), chunks > 1);
            drop(kept);
            assert_eq!((pool.held(), driver.in_flight()), (0, 0));
        }
    });
}

#[test]
fn a_visitor_may_send_turn_the_driver_and_panic() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 16, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        let (near, mut onward) = tcp("127.0.0.1");
        let relay = driver.socket(near).unwrap();
        far.write_all(&pattern(5, 10_000)).unwrap();
        let (mut got, mut sends, mut panics) = (Vec::new(), Vec::new(), 0);
        while got.len() < 10_000 {
            driver.block_on(receiver.spans_there()).unwrap().unwrap();
            let visit = AssertUnwindSafe(|| {
                let end = receiver.visit(|span| {
                    got.extend_from_slice(&span);
                    sends.push(relay.send(Buffer::from(span.to_vec())).unwrap());
                    driver.turn(Wait::No).unwrap();
                    assert!(got.ends_with(&span), "it was lent meanwhile");
                    let held = pool.held();
                    if sends.len() % 4 == 0 {
                        panic!("a visitor's");
                    }
                    drop(span);
                    assert!(pool.held() < held, "what is dropped is given back");
                });
                assert!(end.is_none());
            });
            panics += usize::from(catch_unwind(visit).is_err());
        }
        assert!(got == pattern(5, 10_000));
        assert!(panics > 0 && panics == sends.len() / 4, "{panics} of {}", sends.len());
        assert_eq!(pool.held(), 0);
        let all = async {
            for sending in sends {
                sending.await.unwrap().sent.unwrap();
            }
        };
        driver.block_on(all).unwrap();
        let mut relayed = vec![0; 10_000];
        onward.read_exact(&mut relayed).unwrap();
        assert!(relayed == got);
    });
}

#[test]
fn a_visit_tells_of_an_error_once_and_of_a_driver_that_went() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(b"handoff").unwrap();
        driver.block_on(receiver.spans_there()).unwrap().unwrap();
        let mut got = Vec::new();
        assert!(receiver.visit(|span| got.extend_from_slice(&span)).is_none());
        assert_eq!(got, b"handoff");
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        driver.block_on(receiver.spans_there()).unwrap().unwrap();
        let error = receiver.visit(|_| panic!("there is nothing")).unwrap().unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(receiver.visit(|_| panic!("there is nothing")).unwrap().is_ok());

        let (mut receiver, _far) = receiving(&driver, &pool);
        let mut there = Box::pin(receiver.spans_there());
        assert!(there.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(driver);
        let mut context = Context::from_waker(Waker::noop());
        assert!(there.as_mut().poll(&mut context).is_ready());
        drop(there);
        let told = receiver.visit(|_| panic!("there is nothing")).unwrap().unwrap_err();
        assert!(matches!(told, Error::DriverGone), "{told}");
    });
}

/// The sender's pages cannot be mapped.
#[test]
fn a_window_that_serves_too_little_is_left() {
    with_each_driver(LONG, |driver| {
        let (window, pool) = (driver.window(8, 65_536).unwrap(), pool(&driver, 16, 16_384));
        for (with_pool, len) in [(false, 3_000_000), (true, 3_000_000)] {
            let (near, mut far) = tcp("127.0.0.1");
            let socket = driver.socket(near).unwrap();
            let mut receiver = match with_pool {
                true => socket.receive_mapped(window.or(&pool)),
                false => socket.receive_mapped(&window),
            }
            .unwrap();
            let writer = thread::spawn(move || far.write_all(&pattern(5, len)).unwrap());
            let mut got = Vec::new();
            driver
                .block_on(async {
                    while let Some(span) = receiver.next_span().await {
                        got.extend(bytes_of(&span.unwrap()));
                    }
                })
                .unwrap();
            assert!(got == pattern(5, len));
            let (engine, reason) = receiver.engine();
            let left = engine != ReceiveEngine::TcpZerocopyReceive;
            let copied = receiver.tally().copied;
            assert_eq!(left, with_pool && copied * 2 > len as u64, "{reason}");
            assert!(!left || reason.contains("whole pages"), "{reason}");
            writer.join().unwrap();
            drop((receiver, socket));
            assert_eq!((window.held(), pool.held(), driver.in_flight()), (0, 0, 0));
        }
    });
}

#[test]
fn a_receiver_without_chunks_waits_for_one() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(&pattern(5, 10_000)).unwrap();
        let mut held = next_spans(&driver, &mut receiver, 4);
        assert_eq!(pool.held(), 4);
        for _ in 0..3 {
            driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
            assert!(receiver.try_next_span().is_none());
        }
        let mut got: Vec<u8> = held.iter().flat_map(|span| span.to_vec()).collect();
        // Parts of a span hold its chunk together.
        let mut rest = held.pop().unwrap();
        let part = rest.split_to(10);
        drop(rest);
        driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
        assert!(receiver.try_next_span().is_none());
        drop(part);
        driver
            .block_on(async {
                while got.len() < 10_000 {
                    got.extend_from_slice(&next(&mut receiver).await);
                }
            })
            .unwrap();
        assert!(got == pattern(5, 10_000));
        assert_eq!(pool.held(), 3);
    });
}

#[test]
fn a_receiver_that_goes_while_it_wants_chunks_is_forgotten() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(&pattern(5, 4096)).unwrap();
        let held = next_spans(&driver, &mut receiver, 4);
        until_it_tells(&driver, || far.write_all(b"more").unwrap());
        drop(receiver);
        driver.turn(Wait::No).unwrap();
        // The same records serve others before the chunks come back.
        let (mut other, mut far) = receiving(&driver, &pool);
        let (near, _peer) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let sending = socket.send(Buffer::from(vec![1; 10])).unwrap();
        drop(held);
        far.write_all(b"handoff").unwrap();
        assert_eq!(&driver.block_on(next(&mut other)).unwrap()[..], b"handoff");
        driver.block_on(async { sending.await.unwrap().sent.unwrap() }).unwrap();
    });
}

/// Completions that are in the queue when the receiver goes.
#[test]
fn a_receiver_goes_before_it_is_told_that_there_are_no_chunks() {
    within(LONG, || {
        let driver = Driver::builder().entries(2).build().unwrap();
        let pool = pool(&driver, 4, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        driver.turn(Wait::No).unwrap();
        far.write_all(&pattern(5, 4096)).unwrap();
        let held = next_spans(&driver, &mut receiver, 4);
        until_it_tells(&driver, || far.write_all(b"more").unwrap());
        // Fills the submission queue, which enters the kernel without looking at completions.
        let file = driver.file(fs::File::open("/dev/zero").unwrap()).unwrap();
        let reads: Vec<_> = (0..8).map(|_| file.read(Buffer::from(vec![1; 10])).unwrap()).collect();
        drop(receiver);
        driver.turn(Wait::No).unwrap();
        drop(held);
        driver.turn(Wait::No).unwrap();
        for read in reads {
            assert_eq!(&driver.block_on(read).unwrap().unwrap().buffer[..], [0; 10]);
        }
        assert_eq!((driver.in_flight(), pool.held()), (0, 0));
    });
}

#[test]
fn receivers_share_a_pool() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 8, 512);
        let (mut receivers, fars): (Vec<_>, Vec<_>) =
            (0..20).map(|_| receiving(&driver, &pool)).unzip();
        let writers: Vec<_> = fars
            .into_iter()
            .enumerate()
            .map(|(seed, mut far)| {
                thread::spawn(move || far.write_all(&pattern(seed, 20_000)).unwrap())
            })
            .collect();
        let mut got = vec![Vec::new(); receivers.len()];
        let mut open = receivers.len();
        while open > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(100))).unwrap();
            for (receiver, got) in receivers.iter_mut().zip(&mut got) {
                while let Some(span) = receiver.try_next_span() {
                    match span {
                        Some(span) => got.extend_from_slice(&span.unwrap()),
                        None if got.len() == 20_000 => {
                            got.push(0);
                            open -= 1;
                            break;
                        }
                        None => break,
                    }
                }
            }
        }
        for (seed, got) in got.iter().enumerate() {
            assert!(got[..20_000] == pattern(seed, 20_000), "{seed}");
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn datagrams_come_one_by_one_also_empty_ones() {
    with_each_driver(LONG, |driver| {
        stay_on_one_processor();
        let (far, near) = udp_pair();
        let pool = pool(&driver, 4, 1024);
        let mut receiver = driver.socket(near).unwrap().receive(&pool).unwrap();
        // More empty datagrams than chunks; they keep none.
        let lens = [5, 0, 1024, 2000, 0, 0, 0, 0, 0, 0, 1];
        for (seed, len) in lens.into_iter().enumerate() {
            far.send(&pattern(seed, len)).unwrap();
        }
        for (seed, len) in lens.into_iter().enumerate() {
            let span = driver.block_on(next(&mut receiver)).unwrap();
            assert!(span[..] == pattern(seed, len)[..len.min(1024)], "{seed} {}", span.len());
        }
        assert_eq!(pool.held(), 0);
    });
}

/// A datagram socket of the driver, and where to send to it.
fn bound(driver: &Driver, to: &str) -> (Socket, SocketAddr) {
    let here = UdpSocket::bind((to, 0)).unwrap();
    let address = here.local_addr().unwrap();
    (driver.socket(here).unwrap(), address)
}

#[test]
fn each_datagram_names_its_sender_and_its_length() {
    with_each_driver(LONG, |driver| {
        stay_on_one_processor();
        for host in ["127.0.0.1", "::1"] {
            let Ok(first) = UdpSocket::bind((host, 0)) else {
                println!("SKIPPED: no {host}");
                continue;
            };
            let senders = [first, UdpSocket::bind((host, 0)).unwrap()];
            let (socket, here) = bound(&driver, host);
            // Chunks that lie at odd places.
            let chunk = DATAGRAM_HEAD + 999;
            let pool = driver.pool(Region::anonymous(4096).unwrap(), chunk).unwrap();
            assert_eq!(pool.chunks(), 3);
            let mut receiver = socket.receive(pool.with_senders()).unwrap();
            // More than chunks; empty ones, too, and two that have no room.
            let lens = [5, 0, 999, 1000, 3000, 0, 0, 0, 1];
            for (seed, len) in lens.into_iter().enumerate() {
                senders[seed % 2].send_to(&pattern(seed, len), here).unwrap();
            }
            let mut copied = 0;
            // There is an order only between those of one sender.
            let mut left = [0, 1].map(|from| lens.into_iter().enumerate().skip(from).step_by(2));
            for _ in lens {
                let span = driver.block_on(next(&mut receiver)).unwrap();
                let sender = span.datagram().unwrap().sender;
                let from = senders.iter().position(|it| it.local_addr().unwrap() == sender);
                let (seed, len) = left[from.unwrap()].next().unwrap();
                assert!(span[..] == pattern(seed, len)[..len.min(999)], "{seed} {}", span.len());
                assert_eq!(span.datagram(), Some(Datagram { sender, len }));
                copied += span.len() as u64;
            }
            assert_eq!((pool.held(), receiver.tally().copied), (0, copied));
        }
    });
}

#[test]
fn parts_of_a_datagram_know_its_sender_and_go_back_to_it() {
    with_each_driver(LONG, |driver| {
        let (socket, here) = bound(&driver, "127.0.0.1");
        let pool = pool(&driver, 4, 1024);
        let mut receiver = socket.receive(pool.with_senders()).unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = peer.local_addr().unwrap();
        peer.send_to(b"headbody", here).unwrap();
        driver.block_on(receiver.spans_there()).unwrap().unwrap();
        let mut kept = Vec::new();
        receiver.visit(|span| {
            assert_eq!(span.datagram(), Some(Datagram { sender, len: 8 }));
            kept.push(span.keep());
        });
        // The parts outlive the receiver, and one is lent.
        drop(receiver);
        let mut body = kept.pop().unwrap();
        let head = body.split_to(4);
        let sending = socket.message(body).to(head.datagram().unwrap().sender).send().unwrap();
        driver.block_on(sending.into_future()).unwrap().unwrap().sent.unwrap();
        let mut back = [0; 16];
        assert_eq!(peer.recv(&mut back).unwrap(), 4);
        assert_eq!(&back[..4], b"body");
        assert_eq!((&head[..], head.datagram()), (&b"head"[..], Some(Datagram { sender, len: 8 })));
        drop(head);
        while pool.held() > 0 {
            driver.turn(Wait::Event).unwrap();
        }

        // The same chunks without senders.
        let mut plain = socket.receive(&pool).unwrap();
        peer.send_to(&[7; 1024], here).unwrap();
        let span = driver.block_on(next(&mut plain)).unwrap();
        assert_eq!((span.len(), span.datagram()), (1024, None));
    });
}

#[test]
fn receivers_of_senders_come_and_go_beside_others_and_lose_no_chunk() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (kept, kept_at) = bound(&driver, "127.0.0.1");
        let (plain, plain_at) = bound(&driver, "127.0.0.1");
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = peer.local_addr().unwrap();
        let mut others = plain.receive(&pool).unwrap();
        let (mut held, mut seen) = (Vec::new(), 0);
        for round in 0..200 {
            let mut receiver = kept.receive(pool.with_senders()).unwrap();
            for len in [0, 5, 0, round % 3] {
                peer.send_to(&pattern(round, len), kept_at).unwrap();
                peer.send_to(&pattern(round, 9 + len), plain_at).unwrap();
            }
            // Some rounds end before anything has come, others with spans that nobody has taken, or with kept ones.
            for _ in 0..round % 4 {
                driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
                if round % 8 < 4 {
                    held.extend(receiver.try_next_span().flatten().map(Result::unwrap));
                }
                while let Some(Some(span)) = others.try_next_span() {
                    assert_eq!(span.unwrap().datagram(), None);
                }
            }
            seen += held.len();
            held.drain(..held.len().saturating_sub(2));
            for span in &held {
                let len = span.len();
                assert!(len <= 5);
                assert_eq!(span.datagram(), Some(Datagram { sender, len }));
            }
        }
        assert!(seen > 100, "{seen}");
        drop((held, others));
        while pool.held() > 0 || driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
        // All four chunks serve, each for one datagram.
        stay_on_one_processor();
        let (last, last_at) = bound(&driver, "127.0.0.1");
        let mut receiver = last.receive(pool.with_senders()).unwrap();
        for seed in 0..4 {
            peer.send_to(&pattern(seed, 960), last_at).unwrap();
        }
        let spans = next_spans(&driver, &mut receiver, 4);
        for (seed, span) in spans.iter().enumerate() {
            assert!(span[..] == pattern(seed, 960), "{seed}");
            assert_eq!(span.datagram(), Some(Datagram { sender, len: 960 }));
        }
        assert_eq!(pool.held(), 4);
    });
}

#[test]
fn senders_are_refused_where_there_are_none() {
    with_each_driver(LONG, |driver| {
        let tight = pool(&driver, 64, DATAGRAM_HEAD);
        let (socket, _) = bound(&driver, "127.0.0.1");
        let refused = socket.receive(tight.with_senders()).unwrap_err().to_string();
        assert!(refused.contains("larger"), "{refused}");
        let (near, _far) = tcp("127.0.0.1");
        let pool = pool(&driver, 4, 1024);
        let refused = driver.socket(near).unwrap().receive(pool.with_senders()).unwrap_err();
        assert!(refused.to_string().contains("UDP"), "{refused}");
        // Neither took the socket's receiver.
        socket.receive(pool.with_senders()).unwrap();
    });
}

#[test]
fn a_reset_is_told_after_what_came_before() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(b"handoff").unwrap();
        let span = driver.block_on(next(&mut receiver)).unwrap();
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        let error = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
        assert!(driver.block_on(receiver.next_span()).unwrap().is_none());
        assert_eq!(&span[..], b"handoff");
    });
}

/// A stream that is received into a pool, and whose spans are lent on: to a socket and a file.
struct Onward {
    receiver: Receiver,
    socket: Socket,
    sink: File,
    file: fs::File,
    writer: JoinHandle<()>,
    reader: JoinHandle<Vec<u8>>,
    len: usize,
}

impl Onward {
    fn new(driver: &Driver, pool: &Pool, len: usize) -> Self {
        let (receiver, mut far) = receiving(driver, pool);
        let (near, peer) = tcp("127.0.0.1");
        let file = tempfile::tempfile().unwrap();
        Self {
            receiver,
            socket: driver.socket(near).unwrap(),
            sink: driver.file(file.try_clone().unwrap()).unwrap(),
            file,
            writer: thread::spawn(move || far.write_all(&pattern(3, len)).unwrap()),
            reader: read_all(peer),
            len,
        }
    }

    /// All of it has arrived at both.
    fn check(self) {
        let Self { socket, mut file, writer, reader, len, .. } = self;
        drop(socket);
        let mut written = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut written).unwrap();
        assert!(written == pattern(3, len));
        assert!(reader.join().unwrap() == written);
        writer.join().unwrap();
    }
}

#[test]
fn received_spans_are_lent_on() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 2, 2048);
        let mut onward = Onward::new(&driver, &pool, 50_000);
        let Onward { receiver, socket, sink, .. } = &mut onward;
        let mut offset = 0;
        driver
            .block_on(async {
                while let Some(span) = receiver.next_span().await {
                    let mut span = span.unwrap();
                    let len = span.len();
                    let head = span.split_to(len / 2);
                    let first = sink.write_at(head, offset).unwrap().await.unwrap();
                    assert_eq!(first.result.unwrap(), len / 2);
                    let rest = sink.write_at(span, offset + len as u64 / 2).unwrap().await.unwrap();
                    rest.result.unwrap();
                    socket.send(first.buffer).unwrap().await.unwrap().sent.unwrap();
                    socket.send(rest.buffer).unwrap().await.unwrap().sent.unwrap();
                    offset += len as u64;
                }
            })
            .unwrap();
        assert_eq!(pool.held(), 0);
        onward.check();
    });
}

#[test]
fn spans_are_lent_on_together() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 16, 512);
        let mut onward = Onward::new(&driver, &pool, 200_000);
        let Onward { receiver, socket, sink, .. } = &mut onward;
        let (mut offset, mut most) = (0, 0);
        driver
            .block_on(async {
                while let Some(span) = receiver.next_span().await {
                    let mut spans = vec![span.unwrap()];
                    while let Some(Some(span)) = receiver.try_next_span() {
                        spans.push(span.unwrap());
                    }
                    most = most.max(spans.len());
                    let lens: Vec<_> = spans.iter().map(|span| span.len()).collect();
                    let sent = socket.send(spans).unwrap().await.unwrap();
                    assert_eq!(sent.sent.unwrap(), lens.iter().sum::<usize>());
                    // They come back unchanged.
                    assert!(sent.buffer.iter().map(|span| span.len()).eq(lens));
                    let written = sink.write_at(sent.buffer, offset).unwrap().await.unwrap();
                    offset += written.result.unwrap() as u64;
                }
            })
            .unwrap();
        // Without a ring they come one by one.
        let least = if receiver.engine().0 == ReceiveEngine::Multishot { 2 } else { 1 };
        assert!((least..=16).contains(&most), "{most} at a time");
        assert_eq!(pool.held(), 0);
        onward.check();
    });
}

#[test]
fn receivers_dropped_and_forgotten_leave_their_chunks() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        for stage in 0..4 {
            let (mut receiver, mut far) = receiving(&driver, &pool);
            if stage > 0 {
                driver.turn(Wait::No).unwrap();
            }
            far.write_all(&pattern(1, 2000)).unwrap();
            if stage > 1 {
                driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
            }
            let span = (stage > 2).then(|| driver.block_on(next(&mut receiver)).unwrap());
            drop(receiver);
            while driver.in_flight() > 0 {
                driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
            }
            assert_eq!(pool.held(), usize::from(span.is_some()), "{stage}");
        }
        assert_eq!(pool.held(), 0);
        let (receiver, mut far) = receiving(&driver, &pool);
        driver.turn(Wait::No).unwrap();
        far.write_all(b"handoff").unwrap();
        std::mem::forget(receiver);
        driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
        assert_eq!(driver.in_flight(), 1);
    });
}

#[test]
fn a_dropped_receiver_leaves_what_comes_later_to_the_next() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let receiver = socket.receive(&pool).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(receiver);
        while driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
        }
        far.write_all(b"handoff").unwrap();
        let mut receiver = socket.receive(&pool).unwrap();
        assert_eq!(&driver.block_on(next(&mut receiver)).unwrap()[..], b"handoff");
    });
}

#[test]
fn spans_and_pools_outlive_their_driver() {
    with_each_driver(LONG, |driver| {
        let pool = pool(&driver, 4, 1024);
        let (mut receiver, mut far) = receiving(&driver, &pool);
        far.write_all(b"handoff").unwrap();
        let span = driver.block_on(next(&mut receiver)).unwrap();
        drop((driver, receiver));
        assert_eq!(&span[..], b"handoff");
        assert_eq!(pool.held(), 1);
        drop(span);
        assert_eq!(pool.held(), 0);
    });
}

#[test]
fn pools_are_refused_with_the_reason() {
    for driver in drivers() {
        let mut cut = Region::anonymous(4096).unwrap();
        let _buffer = cut.take(1).unwrap();
        for (region, chunk) in [
            (cut, 512),
            (Region::anonymous(4096).unwrap(), 0),
            (Region::anonymous(4096).unwrap(), 5000),
        ] {
            let error = driver.pool(region, chunk).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
    }
}

#[test]
fn a_receiver_that_waits_can_be_dropped() {
    for driver in drivers() {
        let pool = pool(&driver, 2, 4096);
        let (receiver, _far) = receiving(&driver, &pool);
        driver.turn(Wait::No).unwrap();
        drop(receiver);
        driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
        assert_eq!(driver.in_flight(), 0);
    }
}

#[test]
fn a_socket_has_one_receiver_at_a_time() {
    for driver in drivers() {
        let pool = pool(&driver, 4, 1024);
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let first = socket.receive(&pool).unwrap();
        let refused = socket.clone().receive(&pool).unwrap_err();
        assert!(refused.to_string().contains("receiver"), "{refused}");
        drop(first);
        let mut second = socket.receive(&pool).unwrap();
        far.write_all(b"handoff").unwrap();
        let span = driver.block_on(second.next_span()).unwrap().unwrap().unwrap();
        assert_eq!(&span[..], b"handoff");
    }
}
