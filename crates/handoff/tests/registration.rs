//! Memory that leaves the ring's table while sends of it are accepted and not yet looked at.

#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

use std::io::Read;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use handoff::{Driver, Engine, Region, Socket};
use traffic::{filled, pattern, tcp, within};

const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 8192;

/// A driver with a registered region, unless there is no ring.
fn registered(test: &str, count: usize) -> Option<(Driver, Region)> {
    let driver = Driver::builder().build().unwrap();
    if let Some(reason) = driver.ring_unavailable() {
        traffic::skip(test, reason);
        return None;
    }
    let region = Region::anonymous(count * LEN).unwrap();
    driver.register(&region).unwrap();
    Some((driver, region))
}

/// Accepts sends, takes their memory out of the table before the driver turns, and says whether all
/// arrive as `receive` reads them.
fn leaves_midway(
    driver: &Driver,
    mut region: Region,
    socket: &Socket,
    count: usize,
    receive: impl FnOnce() -> Vec<Vec<u8>> + Send + 'static,
) {
    socket.set_engine(Engine::UringZc).unwrap();
    let far = thread::spawn(receive);
    let sendings: Vec<_> =
        (0..count).map(|seed| socket.send(filled(&mut region, seed, LEN)).unwrap()).collect();
    driver.unregister(&region).unwrap();
    driver
        .block_on(async {
            for (seed, sending) in sendings.into_iter().enumerate() {
                let finished = sending.await;
                assert_eq!(finished.sent.unwrap(), LEN);
                assert_eq!(&finished.buffer[..], pattern(seed, LEN));
            }
        })
        .unwrap();
    for (seed, message) in far.join().unwrap().into_iter().enumerate() {
        assert!(message == pattern(seed, LEN), "message {seed} arrived changed");
    }
}

#[test]
fn datagrams_of_memory_that_left_the_table() {
    const COUNT: usize = 8;
    within(LONG, || {
        let test = "datagrams_of_memory_that_left_the_table";
        let Some((driver, region)) = registered(test, COUNT) else { return };
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let socket = driver.socket(near).unwrap();
        leaves_midway(&driver, region, &socket, COUNT, move || {
            let mut message = vec![0; LEN + 1];
            let mut next = || far.recv(&mut message).map(|len| message[..len].to_vec()).unwrap();
            (0..COUNT).map(|_| next()).collect()
        });
    });
}

/// More than one chain of links, so that the later ones are laid out without registration.
#[test]
fn a_stream_of_memory_that_left_the_table() {
    const COUNT: usize = 80;
    within(LONG, || {
        let test = "a_stream_of_memory_that_left_the_table";
        let Some((driver, region)) = registered(test, COUNT) else { return };
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        leaves_midway(&driver, region, &socket, COUNT, move || {
            let mut message = vec![0; LEN];
            let mut next = || far.read_exact(&mut message).map(|()| message.clone()).unwrap();
            (0..COUNT).map(|_| next()).collect()
        });
    });
}
