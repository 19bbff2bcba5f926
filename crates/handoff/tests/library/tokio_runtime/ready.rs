//! Readiness, and calls that never wait: what is held comes first, and nothing is overtaken.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use futures_lite::future::poll_once;
use handoff::tokio::{TcpStream, UdpSocket, UnixDatagram, UnixStream};
use handoff::{Buffer, Driver, Engine, Region};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::task::{spawn_local, yield_now};

use super::{Impatient, LONG, builders, each_engine};
use crate::traffic::{assert_same, narrow_tcp, pattern, tcp, within};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn on_each_driver(test: impl AsyncFn(Driver)) {
    for builder in builders() {
        handoff::tokio::run_with(builder, async |driver| test(driver).await).unwrap();
    }
}

fn would_block<T: std::fmt::Debug>(over: std::io::Result<T>) {
    assert_eq!(over.unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// The text is one for both families.
macro_rules! goes_both_ways {
    ($near:ident, $far:ident) => {{
        would_block($near.try_read(&mut [0; 9]));
        assert!(poll_once($near.readable()).await.is_none());
        let readable = $near.readable();
        let writing = async {
            yield_now().await;
            assert_eq!($far.try_write(b"hello ").unwrap(), 6);
            let slices = [IoSlice::new(b"wor"), IoSlice::new(b""), IoSlice::new(b"ld")];
            assert_eq!($far.try_write_vectored(&slices).unwrap(), 5);
        };
        tokio::join!(async { readable.await.unwrap() }, writing);
        // What is there is told again and again.
        poll_once($near.readable()).await.unwrap().unwrap();
        assert_eq!($near.try_read(&mut []).unwrap(), 0);
        let (mut one, mut other) = ([0; 4], [0; 100]);
        let mut into =
            [IoSliceMut::new(&mut []), IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
        assert_eq!($near.try_read_vectored(&mut into).unwrap(), 11);
        assert!(one == *b"hell" && other[..7] == *b"o world");
        would_block($near.try_read_vectored(&mut [IoSliceMut::new(&mut [0; 3])]));
        assert!(poll_once($near.readable()).await.is_none());
        $far.try_write(b"again").unwrap();
        let mut behind = Vec::from(*b"and ");
        $near.readable().await.unwrap();
        assert_eq!($near.try_read_buf(&mut behind).unwrap(), 5);
        assert_eq!(behind, b"and again");
        let told = $near.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        would_block(told);
        drop($far);
        let mut ready = $near.ready(Interest::READABLE).await.unwrap();
        while !ready.is_read_closed() {
            yield_now().await;
            ready = $near.ready(Interest::READABLE).await.unwrap();
        }
        assert!(ready.is_readable() && !ready.is_writable(), "{ready:?}");
        assert_eq!($near.try_read(&mut [0; 9]).unwrap(), 0);
    }};
}

#[test]
fn streams_are_read_and_written_without_a_wait() {
    on_each_driver(async |driver| {
        let (near, far) = tcp("127.0.0.1");
        let [near, far] =
            [near, far].map(|it| TcpStream::try_from(driver.socket(it).unwrap()).unwrap());
        goes_both_ways!(near, far);
        let (near, far) = UnixStream::pair(&driver).unwrap();
        goes_both_ways!(near, far);
    });
}

#[test]
fn a_write_that_does_not_wait_overtakes_no_send() {
    const BYTES: usize = 4 << 20;
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (near, far) = narrow_tcp();
            let [near, mut far] =
                [near, far].map(|it| TcpStream::try_from(driver.socket(it).unwrap()).unwrap());
            near.socket().set_engine(engine).unwrap();
            poll_once(near.writable()).await.expect("there is room").unwrap();
            let sending = near.socket().send(Buffer::from(pattern(1, BYTES))).unwrap();
            would_block(near.try_write(b"behind"));
            assert!(poll_once(near.writable()).await.is_none());
            would_block(near.try_io(Interest::WRITABLE, || Ok(())));
            let reading = spawn_local(async move {
                let mut got = vec![0; BYTES + 6];
                far.read_exact(&mut got).await.unwrap();
                got
            });
            loop {
                near.writable().await.unwrap();
                match near.try_write(b"behind") {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    written => break assert_eq!(written.unwrap(), 6),
                }
            }
            assert_eq!(sending.await.unwrap().sent.unwrap(), BYTES);
            assert_same(&reading.await.unwrap(), &[&pattern(1, BYTES)[..], b"behind"].concat());
        });
    });
}

#[test]
fn waits_that_are_given_up_at_each_poll_lose_nothing() {
    const BYTES: usize = 300_000;
    within(LONG, || {
        on_each_driver(async |driver| {
            Impatient::each(async |impatient| {
                let (near, far) = narrow_tcp();
                let [near, far] =
                    [near, far].map(|it| TcpStream::try_from(driver.socket(it).unwrap()).unwrap());
                let writer = async {
                    let bytes = pattern(1, BYTES);
                    let mut left = &bytes[..];
                    while !left.is_empty() {
                        impatient.again(async || near.writable().await).await.unwrap();
                        match near.try_write(left) {
                            Ok(written) => left = &left[written..],
                            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                        }
                    }
                    drop(near);
                };
                let reader = async {
                    let mut got = Vec::new();
                    loop {
                        impatient.again(async || far.readable().await).await.unwrap();
                        match far.try_read_buf(&mut got) {
                            Ok(0) => break got,
                            Ok(_) => {}
                            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                        }
                    }
                };
                let ((), got) = tokio::join!(writer, reader);
                assert_same(&got, &pattern(1, BYTES));
            })
            .await;
        });
    });
}

/// A write that was given up waits for room that its peer may never make.
#[test]
fn a_full_stream_is_shut_down_at_once() {
    on_each_driver(async |driver| {
        let (near, _far) = narrow_tcp();
        let mut near = TcpStream::try_from(driver.socket(near).unwrap()).unwrap();
        let bytes = pattern(1, 1 << 20);
        while let Some(written) = poll_once(near.write(&bytes)).await {
            assert!(written.unwrap() > 0);
        }
        poll_once(near.shutdown()).await.expect("it waits for nobody").unwrap();
    });
}

#[test]
fn one_receiver_at_a_time_is_told_and_a_dropped_one_comes_first() {
    on_each_driver(async |driver| {
        let (near, mut far) = UnixStream::pair(&driver).unwrap();
        let pool = driver.pool(Region::anonymous(1 << 14).unwrap(), 4096).unwrap();
        let receiver = near.socket().receive(&pool).unwrap();
        for error in [
            near.try_read(&mut [0]).unwrap_err(),
            near.readable().await.unwrap_err(),
            near.try_io(Interest::READABLE, || Ok(())).unwrap_err(),
        ] {
            assert!(error.to_string().contains("has a receiver"), "{error}");
        }
        drop(receiver);
        reads_what_comes(&near, &mut far).await;
        // One into a buffer, which the kernel has when it is dropped.
        let mut receiving = near.socket().receive_into(Buffer::from(vec![0; 9])).unwrap();
        assert!(poll_once(&mut receiving).await.is_none());
        yield_now().await;
        drop(receiving);
        reads_what_comes(&near, &mut far).await;
    });
}

/// What is written from now on is what can be read.
async fn reads_what_comes(near: &UnixStream, far: &mut UnixStream) {
    assert!(poll_once(near.readable()).await.is_none());
    would_block(near.try_read(&mut [0]));
    let mut got = [0; 9];
    let (readable, ()) = tokio::join!(near.readable(), async {
        // The kernel lets go of what was dropped.
        for _ in 0..20 {
            yield_now().await;
        }
        far.write_all(b"word").await.unwrap();
    });
    readable.unwrap();
    assert_eq!(near.try_read(&mut got).unwrap(), 4);
    assert_eq!(&got[..4], b"word");
}

#[test]
fn datagrams_are_looked_at_and_taken_without_a_wait() {
    on_each_driver(async |driver| {
        let [near, far] = [(); 2].map(|()| UdpSocket::bind(&driver, ANY).unwrap());
        let (from, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
        would_block(far.try_recv_from(&mut [0; 9]));
        would_block(far.try_peek_sender());
        assert!(poll_once(far.readable()).await.is_none());
        near.writable().await.unwrap();
        assert_eq!(near.try_send_to(b"datagram", to).unwrap(), 8);
        far.readable().await.unwrap();
        let mut got = [0; 4];
        assert_eq!(far.peek_sender().await.unwrap(), from);
        assert_eq!(far.peek_from(&mut got).await.unwrap(), (4, from));
        assert_eq!(far.try_peek(&mut got).unwrap(), 4);
        let mut behind = Vec::from(*b"a ");
        assert_eq!(far.try_recv_buf_from(&mut behind).unwrap(), (8, from));
        assert_eq!(behind, b"a datagram");
        would_block(far.try_recv(&mut got));
        near.connect(to).unwrap();
        near.send(b"one").await.unwrap();
        assert_eq!(near.try_send(b"two").unwrap(), 3);
        assert_eq!(far.recv_buf_from(&mut behind).await.unwrap(), (3, from));
        assert_eq!(far.recv_buf(&mut behind).await.unwrap(), 3);
        assert_eq!(behind, b"a datagramonetwo");
    });
}

#[test]
fn unix_datagrams_are_looked_at_and_taken_without_a_wait() {
    on_each_driver(async |driver| {
        let directory = tempfile::tempdir().unwrap();
        let names = ["near", "far"].map(|name| directory.path().join(name));
        let near = UnixDatagram::bind(&driver, &names[0]).unwrap();
        let far = UnixDatagram::bind(&driver, &names[1]).unwrap();
        would_block(far.try_recv(&mut [0; 9]));
        assert_eq!(near.try_send_to(b"datagram", &names[1]).unwrap(), 8);
        let mut got = [0; 9];
        far.readable().await.unwrap();
        let (len, sender) = far.try_peek_from(&mut got).unwrap();
        assert_eq!((len, sender.as_path()), (8, Some(&*names[0])));
        let (len, sender) = far.try_recv_from(&mut got).unwrap();
        assert_eq!((len, sender.as_path()), (8, Some(&*names[0])));
        near.connect(&names[1]).unwrap();
        let mut sent = 0;
        // As many as its peer has room for.
        while near.try_send(b"x").is_ok() {
            sent += 1;
        }
        assert!(poll_once(near.writable()).await.is_none());
        for _ in 0..sent {
            assert_eq!(far.recv(&mut got).await.unwrap(), 1);
        }
        near.writable().await.unwrap();
        assert_eq!(near.try_send(b"y").unwrap(), 1);
    });
}

/// What poll(2) tells within so many milliseconds.
fn told(socket: &impl std::os::fd::AsFd, events: PollFlags, millis: i64) -> PollFlags {
    let mut asked = [PollFd::new(socket, events)];
    let time = Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 };
    poll(&mut asked, Some(&time)).unwrap();
    asked[0].revents()
}

/// Poll(2) tells of it as of an error, and only the driver's turns take it.
#[test]
fn a_send_that_returned_is_nothing_to_read() {
    on_each_driver(async |driver| {
        let (near, mut far) = tcp("127.0.0.1");
        let near = TcpStream::try_from(driver.socket(near).unwrap()).unwrap();
        if near.socket().set_engine(Engine::MsgZerocopy).is_err() {
            return;
        }
        let sending = near.socket().send(Buffer::from(pattern(1, 50_000))).unwrap();
        // Without a turn of the driver, which would take the news.
        let mut got = vec![0; 50_000];
        while told(&far, PollFlags::IN, 0).is_empty() {
            yield_now().await;
        }
        std::io::Read::read_exact(&mut far, &mut got).unwrap();
        if told(near.socket(), PollFlags::empty(), 900).is_empty() {
            // A turn of the driver was faster.
            assert_eq!(sending.await.unwrap().sent.unwrap(), 50_000);
            return;
        }
        assert!(poll_once(near.readable()).await.is_none());
        assert_eq!(sending.await.unwrap().sent.unwrap(), 50_000);
    });
}

#[test]
fn a_task_that_finds_readiness_for_ever_lets_others_run() {
    within(LONG, || {
        on_each_driver(async |driver| {
            let near = UdpSocket::bind(&driver, ANY).unwrap();
            let stop = std::rc::Rc::new(std::cell::Cell::new(false));
            let stops = stop.clone();
            spawn_local(async move { stops.set(true) });
            while !stop.get() {
                near.writable().await.unwrap();
            }
        });
    });
}

#[test]
fn a_wait_for_neither_direction_is_refused() {
    on_each_driver(async |driver| {
        let (near, _far) = UnixStream::pair(&driver).unwrap();
        for interest in [Interest::ERROR, Interest::PRIORITY] {
            let error = near.ready(interest).await.unwrap_err();
            assert!(error.to_string().contains("readable or writable"), "{error}");
        }
    });
}

/// Poll(2) does not look at its room.
#[test]
fn a_peer_that_a_datagram_socket_is_not_connected_to_is_waited_for() {
    within(LONG, || {
        on_each_driver(async |driver| {
            let directory = tempfile::tempdir().unwrap();
            let name = directory.path().join("far");
            let near = UnixDatagram::unbound(&driver).unwrap();
            let far = UnixDatagram::bind(&driver, &name).unwrap();
            while near.try_send_to(b"x", &name).is_ok() {}
            assert!(poll_once(near.writable()).await.is_none());
            assert!(poll_once(near.ready(Interest::READABLE | Interest::WRITABLE)).await.is_none());
            let writing = async {
                loop {
                    near.writable().await.unwrap();
                    match near.try_send_to(b"last", &name) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        written => break assert_eq!(written.unwrap(), 4),
                    }
                }
            };
            let reading = async {
                let mut got = [0; 9];
                while far.recv(&mut got).await.unwrap() < 4 {}
            };
            tokio::join!(writing, reading);
        });
    });
}

#[test]
fn a_datagram_overtakes_no_send_that_was_accepted() {
    on_each_driver(async |driver| {
        let (near, far) = UnixDatagram::pair(&driver).unwrap();
        let sending = near.socket().send(Buffer::from(b"first".to_vec())).unwrap();
        near.send(b"second").await.unwrap();
        let mut got = [0; 9];
        assert_eq!(far.recv(&mut got).await.unwrap(), 5);
        assert_eq!(far.recv(&mut got).await.unwrap(), 6);
        assert_eq!(sending.await.unwrap().sent.unwrap(), 5);
    });
}

#[test]
fn a_wait_for_room_is_not_over_when_the_peer_only_ends_its_direction() {
    within(LONG, || {
        on_each_driver(async |driver| {
            let (near, mut far) = narrow_tcp();
            let near = TcpStream::try_from(driver.socket(near).unwrap()).unwrap();
            far.shutdown(std::net::Shutdown::Write).unwrap();
            // The kernel moves what it has to the peer, and acknowledges some of it later.
            let mut written = 0;
            while !told(near.socket(), PollFlags::OUT, 300).is_empty() {
                while let Ok(more) = near.try_write(&[7; 4096]) {
                    written += more;
                }
            }
            let mut waiting = near.socket().writable().unwrap();
            for _ in 0..20 {
                assert!(poll_once(&mut waiting).await.is_none());
                yield_now().await;
            }
            std::io::Read::read_exact(&mut far, &mut vec![0; written]).unwrap();
            waiting.await.unwrap();
        });
    });
}
