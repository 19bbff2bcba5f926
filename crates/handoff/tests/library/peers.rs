//! Peers that reset, stall, or close midway: what you are told, and that a stream never goes out of order.

use std::io::Read;
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, Sending, Socket, Wait};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::SockRef;

use crate::traffic::{attached, narrow_tcp, pattern, read_all, with_each_engine};

const LONG: Duration = Duration::from_secs(30);
const STALLED: usize = 2 << 20;

fn stalled(driver: &Driver, engine: Engine) -> (Socket, TcpStream, Vec<Sending<Buffer>>) {
    let (near, far) = narrow_tcp();
    let socket = attached(driver, near, engine);
    let sendings = [1000, STALLED, 1000, 0, STALLED, 1000]
        .into_iter()
        .enumerate()
        .map(|(seed, len)| {
            let message = socket.message(Buffer::from(pattern(seed, len)));
            message.header(&[seed as u8; 3]).send().unwrap()
        })
        .collect();
    for _ in 0..5 {
        driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
    }
    (socket, far, sendings)
}

/// Results of all sends; their buffers are back too.
fn results(driver: &Driver, sendings: Vec<Sending<Buffer>>) -> Vec<Result<usize, Error>> {
    driver
        .block_on(async {
            let mut results = Vec::new();
            for (seed, sending) in sendings.into_iter().enumerate() {
                let finished = sending.await.unwrap();
                let len = finished.buffer.len();
                assert!(finished.buffer[..] == pattern(seed, len));
                results.push(finished.sent);
            }
            results
        })
        .unwrap()
}

fn is_reset(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE))
}

/// The stalled send fails with its error; those before it are through, those after it refused.
fn check(engine: Engine, results: &[Result<usize, Error>]) {
    assert_eq!(*results[0].as_ref().unwrap(), 1003, "{engine}");
    let error = results[1].as_ref().unwrap_err();
    assert!(is_reset(error), "{engine}: {error}");
    for result in &results[2..] {
        let error = result.as_ref().unwrap_err();
        let Error::StreamBroken { sent, total } = error else { panic!("{engine}: {error}") };
        assert!(*sent > 0 && sent < total && *total == STALLED + 3, "{engine}: {error}");
    }
}

#[test]
fn a_reset_ends_the_send_and_refuses_what_follows() {
    with_each_engine(LONG, |driver, engine| {
        let (socket, far, sendings) = stalled(&driver, engine);
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        check(engine, &results(&driver, sendings));
        let refused = socket.send(Buffer::from(vec![7; 9])).unwrap_err();
        assert!(matches!(refused.error, Error::StreamBroken { .. }), "{engine}");
        assert_eq!(&refused.buffer[..], [7; 9]);
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn a_peer_that_closes_midway_resets() {
    with_each_engine(LONG, |driver, engine| {
        let (_socket, mut far, sendings) = stalled(&driver, engine);
        far.read_exact(&mut [0; 5000]).unwrap();
        drop(far);
        check(engine, &results(&driver, sendings));
    });
}

#[test]
fn a_peer_that_only_ends_its_own_side_still_gets_everything() {
    with_each_engine(LONG, |driver, engine| {
        let (socket, far, sendings) = stalled(&driver, engine);
        far.shutdown(Shutdown::Write).unwrap();
        driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
        let reader = read_all(far);
        let count = sendings.len();
        let expected: Vec<u8> = [1000, STALLED, 1000, 0, STALLED, 1000]
            .into_iter()
            .enumerate()
            .flat_map(|(seed, len)| [vec![seed as u8; 3], pattern(seed, len)].concat())
            .collect();
        assert_eq!(results(&driver, sendings).iter().filter(|sent| sent.is_ok()).count(), count);
        drop(socket);
        assert!(reader.join().unwrap() == expected, "{engine}");
    });
}

#[test]
fn our_own_end_of_the_stream_fails_later_sends_without_breaking_it() {
    with_each_engine(LONG, |driver, engine| {
        let (near, mut far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let first = socket.send(Buffer::from(pattern(1, 1000))).unwrap();
        assert_eq!(driver.block_on(async { first.await.unwrap().sent }).unwrap().unwrap(), 1000);
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
        for _ in 0..3 {
            let sendings: Vec<_> =
                (0..3).map(|_| socket.send(Buffer::from(pattern(0, 1000))).unwrap()).collect();
            for sending in sendings {
                let error =
                    driver.block_on(async { sending.await.unwrap().sent }).unwrap().unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EPIPE), "{engine}: {error}");
            }
        }
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        assert!(all == pattern(1, 1000));
    });
}

#[test]
fn a_connection_that_was_reset_before_a_send_fails_it() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        // The reset has come; to look takes no error from the socket.
        poll(&mut [PollFd::new(&socket, PollFlags::empty())], None).unwrap();
        for _ in 0..3 {
            let sending = socket.send(Buffer::from(pattern(1, 100_000))).unwrap();
            let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
            let error = finished.sent.unwrap_err();
            assert!(is_reset(&error), "{engine}: {error}");
            assert_eq!(finished.receipt.tally.total(), 0, "{engine}");
        }
    });
}

#[test]
fn a_datagram_nobody_listens_for_does_not_stop_the_socket() {
    with_each_engine(LONG, |driver, engine| {
        // Connected to another: the port is taken, and what comes from us is for nobody.
        let held = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = held.local_addr().unwrap();
        held.connect(nobody).unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(nobody).unwrap();
        let socket = attached(&driver, near, engine);
        let mut refused = 0;
        let mut seed = 0;
        // It is told of later than the next few leave.
        while seed < 20 || refused == 0 {
            seed += 1;
            let sending = socket.send(Buffer::from(pattern(seed, 3000))).unwrap();
            let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
            match finished.sent {
                Ok(sent) => assert_eq!(sent, 3000),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{engine}");
                    refused += 1;
                }
            }
            assert!(finished.buffer[..] == pattern(seed, 3000));
        }
        assert_eq!(driver.in_flight(), 0);
    });
}
