//! TLS connections with tokio's traits.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream as Plain;
use std::sync::Arc;
use std::thread;

use futures_lite::future::{poll_once, zip};
use handoff::tls::Ciphering;
use handoff::tokio::{Buffers, TcpStream, run_with};
use handoff::{BufferPool, Driver, DriverBuilder, Engine, Region, RingUse};
use rustls::{ClientConnection, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::yield_now;

use super::fixture::{Identity, localhost, reader, slow_reader, writer};
use crate::traffic::{assert_same, narrow_tcp, pattern, tcp};

const LEN: usize = 1_000_001;
const CUT: usize = 3_000_001;

fn builders() -> [DriverBuilder; 2] {
    [RingUse::Prefer, RingUse::Avoid].map(|ring| Driver::builder().ring(ring))
}

fn each(test: impl AsyncFn(&Driver)) {
    for builder in builders() {
        run_with(builder, async |driver: Driver| test(&driver).await).expect("runs");
    }
}

fn stream(driver: &Driver, socket: Plain) -> TcpStream {
    TcpStream::try_from(driver.socket(socket).expect("attached")).expect("a stream")
}

/// A stream of ours to a peer in a thread.
async fn to_peer<T>(
    driver: &Driver,
    ciphering: Ciphering,
    (near, far): (Plain, Plain),
    peer: impl FnOnce(&Identity, Plain) -> T,
) -> (TcpStream, T) {
    let identity = Identity::new();
    let peer = peer(&identity, far);
    let connector = identity.connector(ciphering);
    let made = connector.connect_stream(stream(driver, near), localhost()).await;
    (made.expect("a handshake").0, peer)
}

/// A server of tokio's `copy` over both halves, and a client of rustls in a thread.
pub(super) fn tokio_copies_over_tls(ciphering: Ciphering, engine: Engine) {
    each(async |driver| {
        let identity = Identity::new();
        let (near, far) = tcp("127.0.0.1");
        let config = identity.client(super::fixture::BOTH);
        let client = thread::spawn(move || {
            let connection = ClientConnection::new(Arc::new(config), localhost()).expect("one");
            let mut stream = StreamOwned::new(connection, far);
            let bytes = pattern(1, LEN);
            let mut socket = stream.sock.try_clone().expect("a descriptor");
            let mut got = Vec::new();
            for part in bytes.chunks(100_000) {
                stream.write_all(part).expect("sent");
                let mut back = vec![0; part.len()];
                stream.read_exact(&mut back).expect("received");
                got.extend(back);
            }
            stream.conn.send_close_notify();
            stream.flush().expect("sent");
            socket.shutdown(std::net::Shutdown::Write).expect("ended");
            let end = stream.read(&mut [0]).expect("a proper end");
            let _ = socket.read(&mut [0]);
            (got, end)
        });
        let acceptor = identity.acceptor(ciphering);
        let (stream, session) =
            acceptor.accept_stream(stream(driver, near)).await.expect("a handshake");
        assert_eq!(session.engine, engine, "{}", session.reason);
        let (mut read, mut write) = stream.into_split();
        assert_eq!(tokio::io::copy(&mut read, &mut write).await.expect("copied"), LEN as u64);
        write.shutdown().await.expect("an end");
        let joined = spawn_join(client).await;
        assert_same(&joined.0, &pattern(1, LEN));
        assert_eq!(joined.1, 0);
    });
}

/// Joins a thread while the driver goes on.
async fn spawn_join<T>(thread: thread::JoinHandle<T>) -> T {
    while !thread.is_finished() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    thread.join().expect("the peer is content")
}

/// Polls it once, again and again.
async fn again<T>(mut make: impl AsyncFnMut() -> T) -> T {
    loop {
        if let Some(output) = poll_once(make()).await {
            return output;
        }
        yield_now().await;
    }
}

/// Reads, writes and peeks that are given up have moved nothing.
pub(super) fn nothing_is_lost_to_what_is_given_up(ciphering: Ciphering) {
    each(async |driver| {
        let identity = Identity::new();
        let (near, far) = narrow_tcp();
        let (connector, acceptor) = (identity.connector(ciphering), identity.acceptor(ciphering));
        let (near, far) = zip(
            connector.connect_stream(stream(driver, near), localhost()),
            acceptor.accept_stream(stream(driver, far)),
        )
        .await;
        let (mut near, mut far) = (near.expect("a handshake").0, far.expect("a handshake").0);
        let bytes = pattern(2, LEN);
        let writing = async {
            let mut left = &bytes[..];
            while !left.is_empty() {
                let written = again(async || near.write(left).await).await.expect("written");
                left = &left[written..];
            }
            again(async || near.shutdown().await).await.expect("an end");
        };
        let reading = async {
            let (mut got, mut part) = (Vec::new(), vec![0; 30_000]);
            let mut peeked = [0; 100];
            loop {
                let seen = again(async || far.peek(&mut peeked).await).await.expect("peeked");
                let read = again(async || far.read(&mut part).await).await.expect("read");
                if read == 0 {
                    assert_eq!(seen, 0);
                    return got;
                }
                assert_same(&part[..seen.min(read)], &peeked[..seen.min(read)]);
                got.extend_from_slice(&part[..read]);
            }
        };
        let ((), got) = zip(writing, reading).await;
        assert_same(&got, &bytes);
    });
}

/// A peer that ends without a word: an error of reads, and of buffers.
pub(super) fn a_cut_is_an_error(ciphering: Ciphering) {
    each(async |driver| {
        for by_buffers in [false, true] {
            // More than comes before the kernel has the keys, which it takes from nobody whose peer has ended.
            let sent = pattern(3, CUT);
            let (mut stream, peer) =
                to_peer(driver, ciphering, tcp("127.0.0.1"), |identity, far| {
                    writer(identity, far, sent, true)
                })
                .await;
            let mut got = Vec::new();
            let error = if by_buffers {
                let pool = BufferPool::new(Region::anonymous(1 << 16).unwrap(), 1 << 12).unwrap();
                let mut arriving = Buffers::new(stream.into_socket(), &pool).unwrap();
                loop {
                    match futures_util::StreamExt::next(&mut arriving).await {
                        Some(Ok(buffer)) => got.extend_from_slice(&buffer),
                        Some(Err(error)) => break std::io::Error::from(error),
                        None => panic!("no end came"),
                    }
                }
            } else {
                let error = stream.read_to_end(&mut got).await.expect_err("no end came");
                drop(stream);
                error
            };
            assert!(error.to_string().contains("close-notify"), "{error}");
            assert_same(&got, &pattern(3, CUT));
            spawn_join(peer).await;
        }
    });
}

/// A dropped write half ends the writing behind all that was written, when its peer makes room.
pub(super) fn a_dropped_half_ends_properly(ciphering: Ciphering) {
    each(async |driver| {
        let (stream, (go_on, peer)) = to_peer(driver, ciphering, narrow_tcp(), slow_reader).await;
        let (read, mut write) = stream.into_split();
        let bytes = pattern(4, 8 << 20);
        let mut written = 0;
        // As much as there is room for.
        while let Some(now) = poll_once(write.write(&bytes[written..])).await {
            written += now.expect("written");
        }
        drop(write);
        go_on.send(()).expect("it waits");
        let got = spawn_join(peer).await.expect("a proper end");
        assert_same(&got, &bytes[..written]);
        drop(read);
    });
}

/// A future is dropped at once where a write is accepted: what it said is sent.
#[test]
fn a_dropped_stream_sends_what_it_accepted() {
    each(async |driver| {
        let (mut stream, peer) = to_peer(driver, Ciphering::User, tcp("127.0.0.1"), reader).await;
        stream.write_all(b"that is all").await.expect("written");
        drop(stream);
        let error = spawn_join(peer).await.expect_err("nobody said that it was the end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    });
}

/// What is deciphered and not taken counts as readable, and calls that do not wait go by the cipher or not at all.
pub(super) fn calls_that_do_not_wait_go_by_the_cipher(ciphering: Ciphering) {
    each(async |driver| {
        let identity = Identity::new();
        let (near, far) = narrow_tcp();
        let (connector, acceptor) = (identity.connector(ciphering), identity.acceptor(ciphering));
        let (near, far) = zip(
            connector.connect_stream(stream(driver, near), localhost()),
            acceptor.accept_stream(stream(driver, far)),
        )
        .await;
        let (near, mut far) = (near.expect("a handshake").0, far.expect("a handshake").0);
        near.writable().await.expect("room");
        assert_eq!(near.try_write(b"one record").expect("written"), 10);
        let mut got = [0; 4];
        far.readable().await.expect("something");
        while let Err(error) = far.try_read(&mut got) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            far.readable().await.expect("something");
        }
        assert_eq!(&got, b"one ");
        poll_once(far.readable()).await.expect("the rest is held").expect("something");
        let mut rest = Vec::new();
        assert_eq!(far.try_read_buf(&mut rest).expect("held"), 6);
        assert_eq!(rest, b"record");
        let error = far.try_read(&mut got).expect_err("all was taken");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let error = near.try_io(tokio::io::Interest::WRITABLE, || Ok(())).expect_err("refused");
        assert!(error.to_string().contains("beside its cipher"), "{error}");
        // Until there is no room, and then behind that.
        let bytes = pattern(5, LEN);
        let writing = async {
            let mut left = &bytes[..];
            let mut full = 0;
            while !left.is_empty() {
                match near.try_write(left) {
                    Ok(written) => left = &left[written..],
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        full += 1;
                        near.writable().await.expect("room");
                    }
                }
            }
            full
        };
        let mut got = vec![0; LEN];
        let (full, read) = zip(writing, far.read_exact(&mut got)).await;
        read.expect("read");
        assert!(full > 0);
        assert_same(&got, &bytes);
    });
}

#[test]
fn in_user_space_calls_that_do_not_wait_go_by_the_cipher() {
    calls_that_do_not_wait_go_by_the_cipher(Ciphering::User);
}

#[test]
fn in_user_space_tokio_copies_over_tls() {
    tokio_copies_over_tls(Ciphering::User, Engine::UserTls);
}

#[test]
fn in_user_space_nothing_is_lost_to_what_is_given_up() {
    nothing_is_lost_to_what_is_given_up(Ciphering::User);
}

#[test]
fn in_user_space_a_cut_is_an_error_of_streams() {
    a_cut_is_an_error(Ciphering::User);
}

#[test]
fn in_user_space_a_dropped_half_ends_properly() {
    a_dropped_half_ends_properly(Ciphering::User);
}
