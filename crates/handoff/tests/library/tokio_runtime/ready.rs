//! Readiness, and calls that never wait: what is held comes first, and nothing is overtaken.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use futures_lite::future::poll_once;
use handoff::tokio::{TcpStream, UdpSocket, UnixDatagram, UnixStream};
use handoff::{Buffer, Driver, Region};
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
