//! Thousands of sockets on one driver, most of them beyond the table of files, each with sends under way;
//! and many groups.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, RingUse, Wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::traffic::{self, patience, pattern};

const SOCKETS: usize = 2000;

#[test]
fn two_thousand_connections_send_at_once() {
    const NAME: &str = "crowd::two_thousand_connections_send_at_once";
    if !traffic::alone(NAME) {
        return;
    }
    let needed = 2 * SOCKETS as u64 + 100;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let maximum = limit.maximum.map(|maximum| maximum.max(needed));
        let raised = Rlimit { current: Some(needed), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            return traffic::skip(NAME, &format!("{needed} open files: {error}"));
        }
    }
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).in_flight(3 * SOCKETS).build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = thread::spawn(move || {
            (0..SOCKETS).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>()
        });
        let sockets: Vec<_> = (0..SOCKETS)
            .map(|_| driver.socket(TcpStream::connect(address).unwrap()).unwrap())
            .collect();
        let ports: Vec<_> = sockets
            .iter()
            .map(|socket| socket2::SockRef::from(socket).local_addr().unwrap().as_socket().unwrap())
            .collect();
        let engines = traffic::engines(&driver);
        let mut groups: Vec<_> = (0..50).map(|_| driver.group()).collect();
        let mut sends = Vec::new();
        for (number, socket) in sockets.iter().enumerate() {
            socket.set_engine(engines[number % engines.len()]).unwrap();
            for part in 0..3 {
                let buffer = Buffer::from(pattern(number + part, 1000));
                let group = &mut groups[(number * 3 + part) % 50];
                sends.push(socket.message(buffer).send_in(group).unwrap());
            }
        }
        assert_eq!(driver.in_flight(), 3 * SOCKETS);
        driver
            .block_on(async {
                for sent in sends {
                    assert_eq!(sent.await.unwrap(), 1000);
                }
            })
            .unwrap();
        drop(sockets);
        let mut fars = acceptor.join().unwrap();
        for far in &mut fars {
            let peer = far.peer_addr().unwrap();
            let number = ports.iter().position(|address| *address == peer).unwrap();
            let mut got = Vec::new();
            // The last handle is gone, so the end comes once the kernel has let go.
            driver.turn(Wait::No).unwrap();
            far.set_read_timeout(Some(patience(Duration::from_secs(2)))).unwrap();
            let mut space = vec![0; 3000];
            far.read_exact(&mut space).unwrap();
            got.extend_from_slice(&space);
            let expected: Vec<u8> = (0..3).flat_map(|part| pattern(number + part, 1000)).collect();
            assert!(got == expected, "{number}");
        }
        let mut back = 0;
        for group in groups {
            back += driver.block_on(group.flush()).unwrap().unwrap().buffer.len();
        }
        assert_eq!(back, 3 * SOCKETS);
        assert_eq!(driver.in_flight(), 0);
        for far in &mut fars {
            assert_eq!(far.read(&mut [0]).unwrap(), 0, "a socket without handles is closed");
        }
    }
}

#[test]
fn slots_and_descriptors_come_back() {
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).registered_files(4).build().unwrap();
        for round in 0..50 {
            let pairs: Vec<_> = (0..8).map(|_| traffic::tcp("127.0.0.1")).collect();
            for (near, mut far) in pairs {
                let socket = driver.socket(near).unwrap();
                let sending = socket.send(Buffer::from(pattern(round, 500))).unwrap();
                drop(socket);
                driver.block_on(async { sending.await.unwrap().sent.unwrap() }).unwrap();
                let mut got = Vec::new();
                far.read_to_end(&mut got).unwrap();
                assert!(got == pattern(round, 500));
            }
        }
    }
}
