//! The owned halves of a connection: in two tasks, dropped at every wait, dropped in every order.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use handoff::tokio::{ReuniteError, TcpStream};
use handoff::{Buffer, Driver, Engine, Region};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{spawn_local, yield_now};
use tokio::time::timeout;

use crate::tokio_runtime::{Impatient, LONG, each_engine};
use crate::traffic::{assert_same, attached, narrow_tcp, pattern, tcp, within};

const BYTES: usize = 1 << 20;

/// A stream by this engine, and the other end.
fn stream(
    driver: &Driver,
    engine: Engine,
    (near, far): (std::net::TcpStream, std::net::TcpStream),
) -> (TcpStream, std::net::TcpStream) {
    let socket = attached(driver, near, engine);
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (TcpStream::try_from(socket).unwrap(), far)
}

/// Waits for the end, and lets others go on meanwhile.
async fn end(far: &mut std::net::TcpStream) {
    far.set_nonblocking(true).unwrap();
    loop {
        match far.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => yield_now().await,
            read => break assert_eq!(read.unwrap(), 0),
        }
    }
    far.set_nonblocking(false).unwrap();
}

/// Sends everything back on a thread, and then ends.
fn echo(mut far: std::net::TcpStream) {
    let mut back = far.try_clone().unwrap();
    std::thread::spawn(move || {
        std::io::copy(&mut far, &mut back).unwrap();
        back.shutdown(std::net::Shutdown::Write).unwrap();
    });
}

#[test]
fn halves_go_to_two_tasks_and_meet_again() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (stream, far) = stream(driver, engine, narrow_tcp());
            echo(far);
            let addresses = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let (mut read, mut write) = stream.into_split();
            let writing = spawn_local(async move {
                write.write_all(&pattern(1, BYTES)).await.unwrap();
                // Lent bytes go behind earlier writes, and before later ones.
                let lent = Buffer::from(pattern(2, BYTES));
                let sending = write.socket().send(lent).unwrap();
                write.write_all(&pattern(3, 100)).await.unwrap();
                assert_eq!(sending.await.unwrap().sent.unwrap(), BYTES);
                write
            });
            let reading = spawn_local(async move {
                let mut got = vec![0; 2 * BYTES + 100];
                read.read_exact(&mut got).await.unwrap();
                (read, got)
            });
            let write = writing.await.unwrap();
            let (read, got) = reading.await.unwrap();
            assert_same(&got, &[pattern(1, BYTES), pattern(2, BYTES), pattern(3, 100)].concat());
            assert_eq!((read.local_addr().unwrap(), write.peer_addr().unwrap()), addresses);
            let mut stream = write.reunite(read).unwrap();
            stream.write_all(b"whole").await.unwrap();
            let mut whole = [0; 5];
            stream.read_exact(&mut whole).await.unwrap();
            assert_eq!(&whole, b"whole");
            stream.shutdown().await.unwrap();
            assert_eq!(stream.read(&mut whole).await.unwrap(), 0, "{engine}");
        });
    });
}

#[test]
fn halves_lose_nothing_to_reads_and_writes_that_are_given_up() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            Impatient::each(async |impatient| {
                let (stream, far) = stream(driver, engine, narrow_tcp());
                echo(far);
                let (mut read, mut write) = stream.into_split();
                let writer = async {
                    let bytes = pattern(1, BYTES);
                    let mut left = &bytes[..];
                    while !left.is_empty() {
                        let written = impatient.again(async || write.write(left).await).await;
                        left = &left[written.unwrap()..];
                    }
                    impatient.again(async || write.shutdown().await).await.unwrap();
                };
                let reader = async {
                    let (mut got, mut part) = (Vec::new(), vec![0; 30_000]);
                    let mut seen = [0; 1];
                    let peek = async || read.peek(&mut seen).await;
                    assert_eq!(impatient.again(peek).await.unwrap(), 1);
                    assert_eq!(seen, pattern(1, 1)[..]);
                    loop {
                        match impatient.again(async || read.read(&mut part).await).await.unwrap() {
                            0 => break got,
                            read => got.extend_from_slice(&part[..read]),
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

#[test]
fn a_write_half_that_is_dropped_ends_the_writing_behind_its_sends() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (stream, mut far) = stream(driver, engine, narrow_tcp());
            let (mut read, mut write) = stream.into_split();
            write.write_all(b"before").await.unwrap();
            // More than there is room for: the end cannot be sent yet.
            let sends: Vec<_> = (0..3)
                .map(|seed| {
                    write.socket().send(Buffer::from(pattern(seed, BYTES))).unwrap().split()
                })
                .collect();
            drop(write);
            let reader = std::thread::spawn(move || {
                let mut got = Vec::new();
                far.read_to_end(&mut got).unwrap();
                far.write_all(b"behind the end").unwrap();
                got
            });
            for (sent, _loan) in sends {
                assert_eq!(sent.await.unwrap(), BYTES, "{engine}");
            }
            let mut late = vec![0; 14];
            read.read_exact(&mut late).await.unwrap();
            assert_eq!(late, b"behind the end");
            let expected: Vec<u8> = (0..3).flat_map(|seed| pattern(seed, BYTES)).collect();
            assert_same(&reader.join().unwrap(), &[&b"before"[..], &expected].concat());
        });
    });
}

#[test]
fn the_order_in_which_halves_go_decides_when_the_peer_reads_an_end() {
    const SHORT: Duration = Duration::from_millis(20);
    within(LONG, || {
        each_engine(async |driver, engine| {
            let open = || stream(driver, engine, tcp("127.0.0.1"));
            let mut byte = [0; 1];
            // The reader goes first: nothing ends before the writer does.
            let (stream, mut far) = open();
            let (read, mut write) = stream.into_split();
            drop(read);
            write.write_all(b"a").await.unwrap();
            far.read_exact(&mut byte).unwrap();
            far.set_read_timeout(Some(SHORT)).unwrap();
            assert!(far.read(&mut byte).is_err(), "{engine}");
            drop(write);
            end(&mut far).await;
            // The writer goes first: the reader still reads.
            let (stream, mut far) = open();
            let (mut read, write) = stream.into_split();
            drop(write);
            end(&mut far).await;
            far.write_all(b"b").unwrap();
            read.read_exact(&mut byte).await.unwrap();
            assert_eq!(&byte, b"b");
            // Forgotten, it ends nothing; the last of both does.
            let (stream, mut far) = open();
            let (mut read, write) = stream.into_split();
            write.forget();
            far.set_read_timeout(Some(SHORT)).unwrap();
            assert!(far.read(&mut byte).is_err(), "{engine}");
            assert!(timeout(SHORT, read.read(&mut byte)).await.is_err());
            drop(read);
            end(&mut far).await;
            // Joined again, and dropped as a whole while a clone of its socket is there: nothing ends.
            let (stream, mut far) = open();
            let (read, write) = stream.into_split();
            let stream = read.reunite(write).unwrap();
            let socket = stream.socket().clone();
            drop(stream);
            far.set_read_timeout(Some(SHORT)).unwrap();
            assert!(far.read(&mut byte).is_err(), "{engine}");
            drop(socket);
        });
    });
}

#[test]
fn halves_of_two_streams_come_back_as_they_were() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (one, mut far_of_one) = stream(driver, engine, tcp("127.0.0.1"));
            let (other, mut far_of_other) = stream(driver, engine, tcp("127.0.0.1"));
            let (read, own) = one.into_split();
            let (others, write) = other.into_split();
            let error = read.reunite(write).unwrap_err();
            assert!(error.to_string().contains("not of one stream"), "{error}");
            let ReuniteError(read, mut write) = error;
            // Nothing has ended: both go on.
            write.write_all(b"c").await.unwrap();
            let mut byte = [0; 1];
            far_of_other.read_exact(&mut byte).unwrap();
            far_of_one.write_all(b"d").unwrap();
            let mut one = read.reunite(own).unwrap();
            one.read_exact(&mut byte).await.unwrap();
            assert_eq!(&byte, b"d");
            let _other = write.reunite(others).unwrap();
        });
    });
}

#[test]
fn a_write_half_beside_a_lane_ends_nothing() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            // Lanes lend by the ring alone.
            if !matches!(engine, Engine::Auto | Engine::UringZc)
                || driver.ring_unavailable().is_some()
            {
                return;
            }
            let mut region = Region::anonymous(1 << 16).unwrap();
            let buffer = region.take(1 << 12).unwrap();
            let (stream, mut far) = stream(driver, engine, tcp("127.0.0.1"));
            let (_read, write) = stream.into_split();
            let lane = write.socket().lane(&region, 4).unwrap();
            drop(write);
            lane.push(buffer).unwrap();
            let mut got = vec![0; 1 << 12];
            let reader = std::thread::spawn(move || {
                far.read_exact(&mut got).unwrap();
                got
            });
            while !reader.is_finished() {
                yield_now().await;
            }
            assert_same(&reader.join().unwrap(), &[0; 1 << 12]);
        });
    });
}
