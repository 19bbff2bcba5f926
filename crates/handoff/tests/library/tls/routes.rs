//! Files and streams to TLS connections, and from them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::Shutdown;
use std::pin::pin;

use futures_lite::future::{poll_once, try_zip};
use handoff::tls::Ciphering;
use handoff::{Driver, Error, Route, RouteEngine, Tally};
use tempfile::TempDir;

use super::fixture::{end_in_time, pair, reader, slow_reader, to_peer, writer};
use crate::traffic::{assert_same, drivers, pattern, tcp};

/// More than goes at once.
const LEN: usize = 3_000_001;

fn file_of(bytes: &[u8]) -> (TempDir, File) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    fs::write(&path, bytes).expect("written");
    (directory, File::open(path).expect("opened"))
}

/// A file goes behind its head, by the best engine and by the others.
pub(super) fn a_file_goes(driver: &Driver, ciphering: Ciphering, best: RouteEngine) {
    let bytes = pattern(1, LEN);
    let (_directory, content) = file_of(&bytes);
    let file = driver.file(content).expect("attached");
    for first in [RouteEngine::ALL[0], RouteEngine::Memory, RouteEngine::Copy] {
        let (socket, peer) = to_peer(driver, ciphering, reader);
        let mut route = Route::new(driver, (&file, 0..u64::MAX), &socket)
            .head(b"the head".to_vec())
            .starting_with(first);
        let carried = driver.block_on(route.run()).expect("driven");
        carried.result.expect("carried");
        let expected = if first == RouteEngine::ALL[0] { best } else { first };
        assert_eq!((carried.bytes, carried.engine), (LEN as u64, expected));
        let given = match ciphering {
            Ciphering::User => carried.given.copied,
            _ => carried.given.ciphered + 8,
        };
        assert!(given >= LEN as u64, "{:?}", carried.given);
        drop(route);
        socket.shutdown(Shutdown::Write).expect("an end");
        let got = peer.join().expect("the peer is content").expect("a proper end");
        assert_same(&got[8..], &bytes);
        assert_eq!(&got[..8], b"the head");
    }
}

/// What a peer sends goes into a file, and its end is the file's; a cut is told.
pub(super) fn a_stream_becomes_a_file(driver: &Driver, ciphering: Ciphering) {
    let bytes = pattern(2, LEN);
    for cuts_off in [false, true] {
        let sent = bytes.clone();
        let (socket, peer) =
            to_peer(driver, ciphering, |identity, far| writer(identity, far, sent, cuts_off));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let file = driver.file(File::create_new(&path).expect("made")).expect("attached");
        let mut route = Route::new(driver, &socket, (&file, 0));
        let carried = driver.block_on(route.run()).expect("driven");
        match (cuts_off, carried.result) {
            (false, Ok(())) => {}
            (true, Err(Error::Tls { reason })) if reason.contains("close-notify") => {}
            (_, result) => panic!("{cuts_off}: {result:?}"),
        }
        assert_eq!((carried.bytes, carried.engine), (LEN as u64, RouteEngine::Memory));
        assert_same(&fs::read(&path).expect("read"), &bytes);
        drop((route, socket));
        peer.join().expect("the peer is content");
    }
}

/// From TLS into the clear, and from there to TLS, at the same time.
pub(super) fn streams_are_relayed(driver: &Driver, ciphering: Ciphering) {
    let bytes = pattern(4, LEN);
    let sent = bytes.clone();
    let (from, writing) =
        to_peer(driver, ciphering, |identity, far| writer(identity, far, sent, false));
    let (to, reading) = to_peer(driver, ciphering, reader);
    let (out, back) = tcp("127.0.0.1");
    let (out, back) = (driver.socket(out).unwrap(), driver.socket(back).unwrap());
    let (mut outward, mut inward) =
        (Route::new(driver, &from, &out), Route::new(driver, &back, &to));
    let carried = driver.block_on(try_zip(
        async {
            let carried = outward.run().await;
            out.shutdown(Shutdown::Write)?;
            carried.result.map(|()| carried.bytes)
        },
        async {
            let carried = inward.run().await;
            let given = carried.given;
            carried.result.map(|()| (carried.bytes, given))
        },
    ));
    let (outward_bytes, (inward_bytes, given)) = carried.expect("driven").expect("carried");
    assert_eq!((outward_bytes, inward_bytes), (LEN as u64, LEN as u64));
    let all = LEN as u64;
    let expected = match ciphering {
        Ciphering::User => Tally { copied: all, ..Tally::default() },
        _ => Tally { ciphered: all, ..Tally::default() },
    };
    assert_eq!(given, expected);
    to.shutdown(Shutdown::Write).expect("an end");
    assert_same(&reading.join().expect("joins").expect("a proper end"), &bytes);
    drop((outward, inward, from, to));
    writing.join().expect("the peer is content");
}

/// A route that is dropped midway has its peer see no proper end, although the connection is ended as usual.
pub(super) fn a_route_given_up_is_no_end(driver: &Driver, ciphering: Ciphering) {
    let (_directory, content) = file_of(&pattern(1, 64 << 20));
    let file = driver.file(content).expect("attached");
    let (socket, (go_on, peer)) = to_peer(driver, ciphering, slow_reader);
    let ended = driver.block_on(async {
        let mut route = Route::new(driver, (&file, 0..u64::MAX), &socket);
        {
            let mut run = pin!(route.run());
            for _ in 0..50 {
                assert!(poll_once(&mut run).await.is_none(), "its peer reads nothing");
                driver.sleep(std::time::Duration::from_millis(1)).await?;
            }
        }
        go_on.send(()).expect("it waits");
        drop(route);
        // What was accepted goes out.
        socket.flush().await?;
        end_in_time(&socket).await
    });
    ended.expect("driven").expect("ended");
    let seen =
        peer.join().expect("the peer is content").map(|it| it.len()).expect_err("no whole stream");
    assert_eq!(seen, ErrorKind::UnexpectedEof);
}

#[test]
fn in_user_space_a_file_goes_through_memory() {
    for driver in drivers() {
        a_file_goes(&driver, Ciphering::User, RouteEngine::Memory);
    }
}

#[test]
fn in_user_space_a_stream_becomes_a_file() {
    for driver in drivers() {
        a_stream_becomes_a_file(&driver, Ciphering::User);
    }
}

#[test]
fn in_user_space_streams_are_relayed() {
    for driver in drivers() {
        streams_are_relayed(&driver, Ciphering::User);
    }
}

#[test]
fn in_user_space_a_route_given_up_is_no_end() {
    for driver in drivers() {
        a_route_given_up_is_no_end(&driver, Ciphering::User);
    }
}

/// The route alone receives, and says so.
#[test]
fn a_route_is_the_only_receiver_of_a_tls_connection() {
    let driver = Driver::new().expect("a driver");
    let (socket, other) = pair(&driver, Ciphering::User);
    let receiving = socket.receive_into(handoff::Buffer::from(vec![0; 10])).expect("accepted");
    let mut route = Route::new(&driver, &socket, &other);
    let error = driver.block_on(route.run()).expect("driven").result.expect_err("another");
    assert!(error.to_string().contains("receiver"), "{error}");
    drop(receiving);
}
