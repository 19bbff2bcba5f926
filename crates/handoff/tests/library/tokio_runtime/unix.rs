//! Unix sockets with tokio's traits: reads and writes as of TCP, names, datagrams, and futures dropped at each poll.

use std::time::Duration;

use handoff::UnixAddress;
use handoff::tokio::{OtherSocket, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::task::spawn_local;

use super::{Impatient, builders};
use crate::traffic::pattern;

fn on_each_driver(test: impl AsyncFn(handoff::Driver)) {
    for builder in builders() {
        handoff::tokio::run_with(builder, async |driver| test(driver).await).unwrap();
    }
}

#[test]
fn a_stream_is_read_written_split_and_ended() {
    on_each_driver(async |driver| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut listener = UnixListener::bind(&driver, &path).unwrap();
        assert_eq!(listener.local_addr().unwrap().as_path(), Some(&*path));
        let near = UnixStream::connect(&driver, &path).await.unwrap();
        let (mut far, peer) = listener.accept().await.unwrap();
        assert!(peer.is_unnamed() && near.local_addr().unwrap().is_unnamed());
        assert_eq!(near.peer_addr().unwrap(), listener.local_addr().unwrap());
        assert_eq!(far.peer_cred().unwrap().pid, Some(std::process::id()));
        let (mut read, mut write) = near.into_split();
        let echo = spawn_local(async move {
            let (mut from, mut to) = tokio::io::split(&mut far);
            tokio::io::copy(&mut from, &mut to).await.unwrap();
            to.shutdown().await.unwrap();
        });
        let writing = spawn_local(async move {
            write.write_all(&pattern(1, 1 << 20)).await.unwrap();
            write
        });
        let mut got = vec![0; 1 << 20];
        read.read_exact(&mut got).await.unwrap();
        assert!(got == pattern(1, 1 << 20));
        let write = writing.await.unwrap();
        let (other, _far) = UnixStream::pair(&driver).unwrap();
        let (_, others) = other.into_split();
        let unfit = UnixStream::reunite(read, others).unwrap_err();
        let mut near = UnixStream::reunite(unfit.0, write).unwrap();
        near.shutdown().await.unwrap();
        assert_eq!(near.read(&mut got).await.unwrap(), 0, "the end");
        echo.await.unwrap();
        drop(listener);
        assert!(!path.exists());
    });
}

#[test]
fn tokio_copies_between_streams_of_both_families() {
    on_each_driver(async |driver| {
        let (near, mut inner) = UnixStream::pair(&driver).unwrap();
        let (mut outer, far) = UnixStream::pair(&driver).unwrap();
        let relay = spawn_local(async move {
            copy_bidirectional(&mut inner, &mut outer).await.unwrap();
        });
        let (mut near, mut far) = (near, TcpStream::try_from(far.into_socket()).unwrap());
        near.write_all(b"there").await.unwrap();
        far.write_all(b"and back").await.unwrap();
        near.shutdown().await.unwrap();
        far.shutdown().await.unwrap();
        let mut got = [String::new(), String::new()];
        far.read_to_string(&mut got[0]).await.unwrap();
        near.read_to_string(&mut got[1]).await.unwrap();
        assert_eq!(got, ["there", "and back"]);
        relay.await.unwrap();
    });
}

#[test]
fn datagrams_wait_for_room_and_tell_their_senders() {
    on_each_driver(async |driver| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let far = UnixDatagram::bind(&driver, &path).unwrap();
        let near = UnixDatagram::bind_addr(&driver, &UnixAddress::unnamed()).unwrap();
        near.send_to(b"hello", &path).await.unwrap();
        let mut got = [0; 100];
        let (bytes, from) = far.recv_from(&mut got).await.unwrap();
        assert_eq!((bytes, from), (5, near.local_addr().unwrap()));
        // More than there is room for, not connected and connected.
        for connected in [false, true] {
            let name = far.local_addr().unwrap();
            let sender = UnixDatagram::unbound(&driver).unwrap();
            if connected {
                sender.connect(&path).unwrap();
                assert_eq!(sender.peer_addr().unwrap(), name);
            }
            let sending = spawn_local(async move {
                for number in 0..100u8 {
                    match connected {
                        true => sender.send(&[number]).await.unwrap(),
                        false => sender.send_to_addr(&[number], &name).await.unwrap(),
                    };
                }
            });
            driver.sleep(Duration::from_millis(2)).await.unwrap();
            for number in 0..100u8 {
                let (bytes, from) = far.recv_from(&mut got).await.unwrap();
                assert_eq!((bytes, got[0]), (1, number));
                assert!(from.is_unnamed());
            }
            sending.await.unwrap();
        }
        let error = UnixDatagram::bind(&driver, &path).unwrap_err();
        assert!(matches!(error, handoff::Error::NameInUse { .. }));
    });
}

#[test]
fn a_dropped_future_moves_nothing() {
    on_each_driver(async |driver| {
        Impatient::each(async |impatient| {
            let (near, far) = UnixDatagram::pair(&driver).unwrap();
            let receiving = spawn_local(async move {
                let mut got = [0; 8];
                for number in 0..40u8 {
                    assert_eq!(far.recv(&mut got).await.unwrap(), 1);
                    assert_eq!(got[0], number);
                }
            });
            for number in 0..40u8 {
                let bytes = [number];
                impatient.again(async || near.send(&bytes).await).await.unwrap();
            }
            receiving.await.unwrap();
        })
        .await;
    });
}

#[test]
fn sockets_of_other_kinds_come_back() {
    on_each_driver(async |driver| {
        let (datagrams, _far) = UnixDatagram::pair(&driver).unwrap();
        let OtherSocket { socket, error } =
            UnixStream::try_from(datagrams.into_socket()).unwrap_err();
        assert!(error.to_string().contains("no Unix stream"));
        let OtherSocket { socket, .. } = UdpSocket::try_from(socket).unwrap_err();
        UnixDatagram::try_from(socket).unwrap();
        let (stream, _far) = UnixStream::pair(&driver).unwrap();
        assert!(UnixDatagram::try_from(stream.into_socket()).is_err());
    });
}
