//! Bytes that come by another way than the queue, wholly or partly: copied and reported, or received in
//! another way.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use handoff::{MappedSpan, Outcome, ReceiveEngine, Receiver, Region, RxBinding, Tally};
use handoff_testbed::helpers::byte_at;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};

use crate::rx_queue::receiving::{
    LONG, MIB, PAGE, QUEUE, area, bound, driver, exchange, expect_stream, receiver,
};
use crate::rx_queue::testbed::{QUEUES, Testbed, send};
use crate::traffic::{self, within};

#[test]
fn bytes_that_come_by_another_queue_are_counted_as_copied() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        testbed.fault("wrong_queue", 200_000);
        let driver = driver();
        let queue = bound(&testbed, &driver, 2_048);
        let tally = exchange(&testbed, &driver, &queue, false, MIB);
        assert_eq!(tally.outcome(), Outcome::Mixed, "{queue:?}");
        assert_eq!(Some(tally.copied), queue.stats().copied);
        assert_eq!(tally.zero_copy + tally.copied, MIB as u64);
    });
}

/// Bytes that the kernel copies are received plainly; bytes that only the NIC's memory has, from the queue
/// again.
#[test]
fn a_queue_that_copies_is_left_and_returned_to() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        testbed.fault("wrong_queue", 1_000_000);
        let driver = driver();
        let queue = bound(&testbed, &driver, 2_048);
        let pool = Region::anonymous(MIB).expect("memory");
        let pool = driver.pool(pool, 16 << 10).expect("a pool");
        let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&driver, far, queue.or(&pool));
        assert_eq!(receiver.engine().0, ReceiveEngine::Zcrx);
        let mut position = 0;
        let mut pass = |bytes: usize, receiver: &mut Receiver| {
            let part: Vec<u8> = (position..position + bytes).map(byte_at).collect();
            thread::scope(|scope| {
                scope.spawn(|| left.write_all(&part).expect("sends"));
                let mut got = Vec::new();
                let taking = async {
                    while got.len() < bytes {
                        let span = receiver.next_span().await.expect("goes on");
                        got.extend_from_slice(&span.expect("receives"));
                    }
                };
                driver.block_on(taking).expect("runs");
                assert!(got == part, "what arrived differs");
            });
            position += bytes;
        };
        pass(MIB, &mut receiver);
        // All may have been in the ring before the receive could leave the queue.
        for _ in 0..16 {
            if receiver.engine().0 == ReceiveEngine::Multishot {
                break;
            }
            pass(4 << 10, &mut receiver);
        }
        let (engine, reason) = receiver.engine();
        assert_eq!(engine, ReceiveEngine::Multishot, "{reason}");
        assert!(reason.contains("copied"), "{reason}");
        testbed.fault("wrong_queue", 0);
        pass(MIB, &mut receiver);
        let (engine, reason) = receiver.engine();
        assert_eq!(engine, ReceiveEngine::Zcrx, "{reason}");
        let tally = receiver.tally();
        assert!(tally.zero_copy > MIB as u64 / 2 && tally.copied > MIB as u64 / 2, "{tally:?}");
    });
}

/// The words lie in the queue's memory or not, in one packet or several; the next receiver gets what
/// follows them.
#[test]
fn a_receiver_takes_the_words_that_it_was_asked_for() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        let driver = driver();
        let queue = bound(&testbed, &driver, 2_048);
        for (wrong, words) in [(0, 40_usize), (0, 20_000), (1_000_000, 40), (300_000, 50_000)] {
            testbed.fault("wrong_queue", wrong);
            let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            let total = words + 30_000;
            let sender = thread::spawn(move || {
                let all: Vec<u8> = (0..total).map(byte_at).collect();
                left.write_all(&all).expect("sends");
            });
            let socket = driver.socket(far).expect("attaches");
            let most = u32::try_from(words).expect("is small").try_into().expect("is not zero");
            let mut got = Vec::new();
            for (intake, len) in [(queue.take(most), words), ((&queue).into(), total - words)] {
                let mut receiver = socket.receive(intake).expect("receives");
                let begin = got.len();
                let taking = async {
                    while let Some(span) = receiver.next_span().await {
                        got.extend_from_slice(&span.expect("receives"));
                    }
                };
                driver.block_on(taking).expect("runs");
                assert_eq!(got.len() - begin, len, "{wrong} of a million led astray");
            }
            sender.join().expect("ends");
            let sent: Vec<u8> = (0..total).map(byte_at).collect();
            assert!(got == sent, "what arrived differs");
            // A stream that ends before.
            let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            left.write_all(&sent[..words / 2]).expect("sends");
            drop(left);
            let socket = driver.socket(far).expect("attaches");
            let mut receiver = socket.receive(queue.take(most)).expect("receives");
            let mut got = 0;
            let taking = async {
                while let Some(span) = receiver.next_span().await {
                    got += span.expect("receives").len();
                }
            };
            driver.block_on(taking).expect("runs");
            assert_eq!(got, words / 2);
        }
    });
}

#[test]
fn without_a_device_everything_is_copied() {
    within(LONG, || {
        let driver = driver();
        let queue = driver.rx_queue(area(256), &RxBinding::without_device()).expect("binds");
        let (left, far) = traffic::tcp("127.0.0.1");
        let mut receiver = receiver(&driver, left, &queue);
        assert_eq!(receiver.engine().0, ReceiveEngine::ZcrxNodev);
        // Many times the area, so that the refill queue must be flushed for it.
        let sender = send(far, 8 * MIB);
        driver.block_on(expect_stream(&mut receiver, 8 * MIB)).expect("runs");
        assert_eq!(receiver.tally(), Tally { copied: 8 * MIB as u64, ..Tally::default() });
        assert!(queue.stats().flushes > 0, "{queue:?}");
        drop(receiver);
        sender.join().expect("ends");
    });
}

#[test]
fn whole_pages_are_mapped_and_the_rest_is_copied() {
    within(LONG, || {
        // A page and the headers in each packet.
        let testbed = Testbed::new(4_148);
        for driver in traffic::drivers() {
            let window = driver.window(64, 16 * PAGE).expect("maps");
            let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
            let socket = driver.socket(far).expect("attaches");
            let mut receiver = socket.receive_mapped(&window).expect("starts");
            let sender = send(left, MIB + 1_000);
            let mut kept = Vec::new();
            let is_part = |span: &MappedSpan, position: usize| {
                let mut bytes = vec![0; span.len()];
                span.view().read(0, &mut bytes);
                bytes.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at))
            };
            let taking = async {
                let mut position = 0;
                while let Some(span) = receiver.next_span().await {
                    let span = span.expect("receives");
                    assert!(is_part(&span, position), "differs from {position}");
                    let end = position + span.len();
                    if kept.len() < 8 {
                        kept.push((position, span));
                    }
                    position = end;
                }
                position
            };
            assert_eq!(driver.block_on(taking).expect("runs"), MIB + 1_000);
            assert_eq!(receiver.engine().0, ReceiveEngine::TcpZerocopyReceive);
            let tally = receiver.tally();
            assert!(tally.zero_copy > MIB as u64 / 2, "{tally:?}");
            assert_eq!(tally.zero_copy + tally.copied, MIB as u64 + 1_000);
            drop((receiver, socket));
            assert_eq!(window.held(), kept.len());
            for (position, span) in kept {
                assert!(is_part(&span, position), "a kept span has changed");
            }
            sender.join().expect("ends");
        }
    });
}

/// Makes the kernel do the connection's TLS, with keys that both ends know.
fn tls(sender: &TcpStream, receiver: &TcpStream) {
    for socket in [sender, receiver] {
        setsockopt(socket, TcpUlp::default(), b"tls").expect("the lab's kernel has it");
    }
    let keys = libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_3_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [1; 8],
        key: [2; 16],
        salt: [3; 4],
        rec_seq: [0; 8],
    };
    setsockopt(sender, TcpTlsTx, &TlsCryptoInfo::Aes128Gcm(keys)).expect("takes the keys");
    setsockopt(receiver, TcpTlsRx, &TlsCryptoInfo::Aes128Gcm(keys)).expect("takes the keys");
}

/// The NIC has put the cipher into our memory, not what was sent.
#[test]
fn a_connection_whose_tls_the_kernel_does_is_refused_and_received_into_a_pool() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 1_024);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUES[1]);
        tls(&left, &far);
        let refused = far.try_clone().expect("a second descriptor");
        let mut refused = receiver(&driver, refused, &queue);
        let first = driver.block_on(async { refused.next_span().await }).expect("runs");
        let error = first.expect("told").expect_err("an error").to_string();
        assert!(error.contains("not where it does TLS"), "{error}");
        drop(refused);
        let pool = driver.pool(area(64), PAGE).expect("a pool");
        let mut receiver = receiver(&driver, far, queue.or(&pool));
        let sender = send(left, MIB);
        driver.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
        assert_eq!(receiver.tally(), Tally { copied: MIB as u64, ..Tally::default() });
        sender.join().expect("ends");
    });
}
