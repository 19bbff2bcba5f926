//! Sends over loopback with every engine: what arrives is what was lent, and the buffer comes back.

use std::future::IntoFuture;
use std::io::Read;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Engine, Outcome, Region, Socket, Wait};

use crate::traffic::{
    self, attached, drivers, engines, filled, narrow_tcp, pattern, read_all, tcp, udp_pair,
    with_each_driver, within,
};

#[test]
fn tcp_delivers_every_size_in_order() {
    let sizes = [0, 1, 63, 1000, 4096, 5001, 65536, 1 << 20, 4 << 20];
    for address in ["127.0.0.1", "::1"] {
        for driver in drivers() {
            for engine in engines(&driver) {
                for registered in [false, true] {
                    if registered && driver.ring_unavailable().is_some() {
                        continue;
                    }
                    let (near, far) = tcp(address);
                    let reader = read_all(far);
                    let mut region = Region::anonymous(16 << 20).unwrap();
                    if registered {
                        driver.register(&region).unwrap();
                    }
                    let socket = attached(&driver, near, engine);
                    let mut expected = Vec::new();
                    let mut sendings = Vec::new();
                    for (seed, len) in sizes.into_iter().enumerate() {
                        expected.extend(pattern(seed, len));
                        sendings.push((len, socket.send(filled(&mut region, seed, len)).unwrap()));
                    }
                    driver
                        .block_on(async {
                            for (seed, (len, sending)) in sendings.into_iter().enumerate() {
                                let finished = sending.await.unwrap();
                                assert_eq!(finished.sent.unwrap(), len, "{engine} {address}");
                                assert_eq!(
                                    finished.receipt.tally.total(),
                                    len as u64,
                                    "{engine} {address}"
                                );
                                assert_eq!(&finished.buffer[..], &pattern(seed, len)[..]);
                                if len > 0 && engine != Engine::Auto {
                                    // Loopback always copies, and the kernel says so.
                                    assert_eq!(
                                        finished.receipt.tally.outcome(),
                                        Outcome::Copied,
                                        "{engine}"
                                    );
                                }
                            }
                        })
                        .unwrap();
                    let stats = socket.send_stats();
                    assert_eq!(stats.messages, sizes.len() as u64);
                    assert_eq!(stats.returned.total(), expected.len() as u64);
                    drop(socket);
                    assert_eq!(driver.in_flight(), 0);
                    assert!(reader.join().unwrap() == expected, "{engine} {address} {registered}");
                }
            }
        }
    }
}

/// Sends a buffer, and checks that it was sent whole and comes back unchanged.
fn send_and_take_back(driver: &handoff::Driver, socket: &Socket, len: usize) {
    let sending = socket.send(Buffer::from(pattern(3, len))).unwrap();
    let finished = driver.block_on(sending.into_future()).unwrap().unwrap();
    assert_eq!(finished.sent.unwrap(), len);
    assert!(finished.buffer[..] == pattern(3, len)[..]);
}

#[test]
fn a_socket_attached_twice_gives_every_buffer_back() {
    within(Duration::from_secs(60), || {
        for engine in [Engine::MsgZerocopy, Engine::Auto] {
            for (first, second) in drivers().into_iter().zip(drivers()) {
                let (near, mut far) = tcp("127.0.0.1");
                let reader =
                    thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
                let sockets =
                    [&first, &second].map(|it| (it, it.socket(near.try_clone().unwrap()).unwrap()));
                for (place, (_, socket)) in sockets.iter().enumerate() {
                    // One of them has the numbers of the open socket, and the other says why it does not.
                    let set = socket.set_engine(engine);
                    if let Err(error) = set {
                        assert!(place == 1 && error.to_string().contains("SO_ZEROCOPY"), "{error}");
                    } else {
                        assert!(place == 0 || engine == Engine::Auto);
                    }
                }
                for _ in 0..20 {
                    for (driver, socket) in &sockets {
                        send_and_take_back(driver, socket, 100_000);
                    }
                }
                drop((sockets, near));
                assert_eq!(reader.join().unwrap(), 40 * 100_000);
            }
        }
    });
}

#[test]
fn a_socket_attached_again_gives_every_buffer_back() {
    with_each_driver(Duration::from_secs(60), |driver| {
        // A driver that goes with nothing out, and one that goes with a send that its peer does not
        // take.
        for stalled in [false, true] {
            let (near, far) = narrow_tcp();
            let mut peer = far.try_clone().unwrap();
            {
                let earlier = traffic::without_ring();
                let socket = earlier.socket(near.try_clone().unwrap()).unwrap();
                socket.set_engine(Engine::MsgZerocopy).unwrap();
                if stalled {
                    let region = &mut Region::anonymous(8 << 10).unwrap();
                    drop(socket.send(filled(region, 1, 8 << 10)).unwrap());
                    drop(socket.send(Buffer::from(vec![1; 32 << 10])).unwrap());
                } else {
                    let mut got = vec![0; 1000];
                    let sending = socket.send(Buffer::from(vec![1; 1000])).unwrap();
                    peer.read_exact(&mut got).unwrap();
                    earlier.block_on(sending.into_future()).unwrap().unwrap();
                }
            }
            let reader =
                thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()).unwrap());
            let socket = driver.socket(near).unwrap();
            let error = socket.set_engine(Engine::MsgZerocopy).unwrap_err();
            assert!(error.to_string().contains("SO_ZEROCOPY"), "{error}");
            for _ in 0..20 {
                send_and_take_back(&driver, &socket, 100_000);
            }
            drop((socket, far));
            reader.join().unwrap();
        }
    });
}

#[test]
fn a_socket_that_was_not_sent_on_may_be_attached_again() {
    let (near, mut far) = tcp("127.0.0.1");
    for _ in 0..3 {
        let driver = traffic::without_ring();
        let socket = driver.socket(near.try_clone().unwrap()).unwrap();
        socket.set_engine(Engine::MsgZerocopy).unwrap();
    }
    let driver = traffic::without_ring();
    let socket = driver.socket(near).unwrap();
    socket.set_engine(Engine::MsgZerocopy).unwrap();
    send_and_take_back(&driver, &socket, 1000);
    far.read_exact(&mut [0; 1000]).unwrap();
}

#[test]
fn udp_delivers_datagrams_whole() {
    for address in ["127.0.0.1", "::1"] {
        for driver in drivers() {
            for engine in engines(&driver) {
                for connected in [false, true] {
                    let far = UdpSocket::bind((address, 0)).unwrap();
                    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                    let near = UdpSocket::bind((address, 0)).unwrap();
                    if connected {
                        near.connect(far.local_addr().unwrap()).unwrap();
                    }
                    let mut region = Region::anonymous(1 << 20).unwrap();
                    let socket = attached(&driver, near, engine);
                    let mut space = vec![0; 70_000];
                    for (seed, len) in [0, 1, 1472, 9000, 60_000].into_iter().enumerate() {
                        let header = b"header".as_slice();
                        let message = socket.message(filled(&mut region, seed, len)).header(header);
                        let message =
                            if connected { message } else { message.to(far.local_addr().unwrap()) };
                        let finished = driver
                            .block_on(message.send().unwrap().into_future())
                            .unwrap()
                            .unwrap();
                        assert_eq!(
                            finished.sent.unwrap(),
                            len + header.len(),
                            "{engine} {address}"
                        );
                        assert_eq!(finished.receipt.tally.total(), (len + header.len()) as u64);
                        let got = far.recv(&mut space).unwrap();
                        assert_eq!(&space[..6], header);
                        assert!(space[6..got] == pattern(seed, len), "{engine} {address} {len}");
                    }
                }
            }
        }
    }
}

#[test]
fn headers_and_pieces_keep_their_order_on_a_stream() {
    for driver in drivers() {
        for engine in engines(&driver) {
            let (near, far) = tcp("127.0.0.1");
            let reader = read_all(far);
            let mut region = Region::anonymous(32 << 20).unwrap();
            if driver.ring_unavailable().is_none() {
                driver.register(&region).unwrap();
            }
            let socket = attached(&driver, near, engine);
            let mut expected = Vec::new();
            let mut loans = Vec::new();
            for seed in 0..100 {
                let header = pattern(seed + 1000, seed % 65);
                expected.extend(&header);
                let pieces: Vec<Buffer> = (0..seed % 5)
                    .map(|piece| {
                        let len = 1 + 7919 * seed * (piece + 1) % 70_000;
                        expected.extend(pattern(seed + piece, len));
                        filled(&mut region, seed + piece, len)
                    })
                    .collect();
                loans.push(socket.message(pieces).header(&header).send().unwrap());
            }
            driver
                .block_on(async {
                    for sending in loans {
                        sending.await.unwrap().sent.unwrap();
                    }
                })
                .unwrap();
            drop(socket);
            assert!(reader.join().unwrap() == expected, "{engine}");
        }
    }
}

#[test]
fn a_group_returns_at_once() {
    for driver in drivers() {
        for engine in engines(&driver) {
            let (near, _far) = udp_pair();
            let socket = attached(&driver, near, engine);
            let mut region = Region::anonymous(1 << 20).unwrap();
            let mut buffers = region.chunks(4096);
            let mut back = Vec::new();
            for _ in 0..3 {
                let mut group = driver.group();
                for buffer in buffers.drain(..) {
                    drop(socket.message(buffer).send_in(&mut group).unwrap());
                }
                let mut on_loan = group.flush();
                let tally = loop {
                    match on_loan.try_take(&mut back) {
                        Ok(receipt) => break receipt.tally,
                        Err(again) => on_loan = again,
                    }
                    driver.turn(Wait::Event).unwrap();
                };
                assert_eq!(back.len(), 256);
                assert_eq!(tally.total(), 1 << 20);
                buffers.append(&mut back);
            }
            assert_eq!(driver.in_flight(), 0);
        }
    }
}

fn into_parts(socket: &Socket, buffer: Buffer) -> (handoff::Sent, handoff::OnLoan<Buffer>) {
    socket.send(buffer).unwrap().split()
}

#[test]
fn a_stalled_peer_holds_only_its_stream() {
    for driver in drivers() {
        for engine in engines(&driver) {
            let (near, far) = narrow_tcp();
            let socket = attached(&driver, near, engine);
            let mut region = Region::anonymous(8 << 20).unwrap();
            let (sent, loan) = into_parts(&socket, filled(&mut region, 1, 4 << 20));
            let (second, second_loan) = into_parts(&socket, filled(&mut region, 2, 1 << 20));
            driver.turn(Wait::No).unwrap();
            driver.turn(Wait::AtMost(Duration::from_millis(50))).unwrap();
            let sent = sent.try_take().expect_err("the peer does not read");
            let reader = read_all(far);
            driver
                .block_on(async {
                    assert_eq!(sent.await.unwrap(), 4 << 20);
                    assert_eq!(second.await.unwrap(), 1 << 20);
                    loan.await.unwrap();
                    second_loan.await.unwrap();
                })
                .unwrap();
            drop(socket);
            let mut expected = pattern(1, 4 << 20);
            expected.extend(pattern(2, 1 << 20));
            assert!(reader.join().unwrap() == expected, "{engine}");
        }
    }
}

#[test]
fn a_bad_address_does_not_turn_the_socket_to_copying() {
    for driver in drivers() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let before = socket.choice(1 << 15);
        for (address, sent) in [
            ("127.0.0.1:0".parse().unwrap(), false),
            ("[::1]:9".parse().unwrap(), false),
            (far.local_addr().unwrap(), true),
        ] {
            let message = socket.message(Buffer::from(pattern(1, 1 << 15))).to(address);
            let finished = driver.block_on(message.send().unwrap().into_future()).unwrap().unwrap();
            assert_eq!(finished.sent.is_ok(), sent, "{address}: {:?}", finished.sent);
            assert_eq!(socket.choice(1 << 15), before, "{address}");
        }
    }
}

#[test]
fn attaching_leaves_the_open_socket_as_it_was() {
    use rustix::fs::{OFlags, fcntl_getfl};

    within(Duration::from_secs(120), || {
        for nonblocking in [true, false] {
            for driver in drivers() {
                for engine in engines(&driver) {
                    let (near, mut far) = narrow_tcp();
                    near.set_nonblocking(nonblocking).unwrap();
                    let twin = near.try_clone().unwrap();
                    let is_as_it_was = || {
                        let flags = fcntl_getfl(&twin).unwrap();
                        assert_eq!(flags.contains(OFlags::NONBLOCK), nonblocking, "{engine}");
                    };
                    let socket = driver.socket(near).unwrap();
                    is_as_it_was();
                    socket.set_engine(engine).unwrap();
                    let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
                    let mut receiver = socket.receive(&pool).unwrap();
                    // Many of them find no room, and wait for it.
                    let sendings: Vec<_> = (0..40)
                        .map(|seed| {
                            let buffer = Buffer::from(pattern(seed, 100_000));
                            socket.message(buffer).header(b"header").send().unwrap()
                        })
                        .collect();
                    for _ in 0..5 {
                        driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
                    }
                    // A wait lets the thread sleep: nothing polls again and again.
                    let asleep = std::time::Instant::now();
                    let mut events = 0;
                    while asleep.elapsed() < Duration::from_millis(20) {
                        events += driver.turn(Wait::AtMost(Duration::from_millis(20))).unwrap();
                    }
                    assert!(events < 100, "{engine}: {events} events while nothing happens");
                    let reader = thread::spawn(move || {
                        for seed in 0..40 {
                            let mut got = vec![0; 100_006];
                            far.read_exact(&mut got).unwrap();
                            assert!(got == [b"header", &pattern(seed, 100_000)[..]].concat());
                        }
                        std::io::Write::write_all(&mut far, b"answer").unwrap();
                    });
                    driver
                        .block_on(async {
                            for sending in sendings {
                                assert_eq!(
                                    sending.await.unwrap().sent.unwrap(),
                                    100_006,
                                    "{engine}"
                                );
                            }
                            let span = receiver.next_span().await.unwrap().unwrap();
                            assert_eq!(&span[..], b"answer");
                            assert!(receiver.next_span().await.is_none());
                        })
                        .unwrap();
                    reader.join().unwrap();
                    is_as_it_was();
                }
            }
        }
    });
}
