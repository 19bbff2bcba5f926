//! Connecting and accepting: bursts, failures, ends, with a ring and without.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Error, Listener, Socket, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Type};

use crate::traffic::{alone, assert_same, pattern, telling, with_each_driver, without_ring};

const LONG: Duration = Duration::from_secs(60);
/// The wait for events that must not come.
const SHORT: Duration = Duration::from_millis(20);

fn listener(driver: &Driver, backlog: i32) -> (Listener, SocketAddr) {
    let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(backlog).unwrap();
    let listener = driver.listen(socket.into()).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A port without a listener, which is nobody else's as long as the socket lives.
fn nobody() -> (socket2::Socket, SocketAddr) {
    let held = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = held.local_addr().unwrap().as_socket().unwrap();
    (held, address)
}

/// Turns until nothing is under way.
fn settle(driver: &Driver) {
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(SHORT)).unwrap();
    }
}

fn name_of(socket: &Socket) -> SocketAddr {
    SockRef::from(socket).local_addr().unwrap().as_socket().unwrap()
}

#[test]
fn a_connection_is_made_and_accepted_and_carries_bytes() {
    with_each_driver(LONG, |driver| {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let address = listener.local_addr().unwrap();
            let mut listener = driver.listen(listener).unwrap();
            let exchange = async {
                let near = driver.connect(address).unwrap().await.unwrap();
                let (far, peer) = listener.accept().await.unwrap();
                assert_eq!(peer, name_of(&near));
                let sent = near.send(Buffer::from(pattern(1, 10_000))).unwrap();
                let got = far.receive_exact(Buffer::from(vec![0; 10_000])).unwrap().await.unwrap();
                assert_same(&got.buffer, &pattern(1, 10_000));
                assert_eq!(sent.await.unwrap().sent.unwrap(), 10_000);
                far.shutdown(Shutdown::Write).unwrap();
                let end = near.receive_into(Buffer::from(vec![0; 9])).unwrap().await.unwrap();
                assert_eq!(end.result.unwrap(), 0);
                let kept = near.clone();
                drop(near);
                let sent =
                    kept.send(Buffer::from(vec![5; 5])).unwrap().await.unwrap().sent.unwrap();
                let got = far.receive_exact(Buffer::from(vec![0; sent])).unwrap().await.unwrap();
                assert_eq!(&got.buffer[..], [5; 5]);
            };
            driver.block_on(exchange).unwrap();
        }
        settle(&driver);
    });
}

#[test]
fn a_burst_of_a_thousand_connections_is_accepted_whole() {
    const BURST: usize = 1_000;
    // Both ends of each connection are here.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 4_096);
        let clients = thread::spawn(move || {
            let clients: Vec<_> =
                (0..BURST).map(|_| TcpStream::connect(address).unwrap()).collect();
            for (number, mut client) in clients.iter().enumerate() {
                client.write_all(&(number as u32).to_le_bytes()).unwrap();
            }
            let names = clients.iter().map(|client| client.local_addr().unwrap());
            (names.collect::<Vec<_>>(), clients)
        });
        let served = async {
            let mut served = Vec::new();
            for _ in 0..BURST {
                served.push(listener.accept().await.unwrap());
            }
            served
        };
        let served = driver.block_on(served).unwrap();
        let (names, clients) = clients.join().unwrap();
        let mut seen = vec![false; BURST];
        for (socket, peer) in served {
            let number = driver.block_on(socket.receive_exact(Buffer::from(vec![0; 4])).unwrap());
            let number =
                u32::from_le_bytes(*number.unwrap().unwrap().buffer.first_chunk().unwrap());
            assert_eq!(names[number as usize], peer);
            assert!(!std::mem::replace(&mut seen[number as usize], true));
        }
        assert!(seen.iter().all(|seen| *seen));
        assert!(listener.try_accept().is_none());
        drop((listener, clients));
    });
}

#[test]
fn connections_that_nobody_takes_are_not_accepted_without_end() {
    if !alone("connections::connections_that_nobody_takes_are_not_accepted_without_end") {
        return;
    }
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 4_096);
        let connect = |count: usize| -> Vec<_> {
            (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
        };
        let mut clients = connect(100);
        let before = open_files();
        let _first = driver.block_on(listener.accept()).unwrap().unwrap();
        while open_files() < before + 64 {
            driver.turn(Wait::AtMost(SHORT)).unwrap();
        }
        take_in(&driver);
        // Enough wait to be taken.
        clients.extend(connect(100));
        let before = open_files();
        take_in(&driver);
        assert_eq!(open_files(), before);
        for _ in 1..200 {
            driver.block_on(listener.accept()).unwrap().unwrap();
        }
    });
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Turns until a turn opens no more files.
fn take_in(driver: &Driver) {
    let mut before = 0;
    while std::mem::replace(&mut before, open_files()) != before {
        driver.turn(Wait::AtMost(SHORT)).unwrap();
    }
}

#[test]
fn a_paused_listener_leaves_connections_in_the_kernel() {
    if !alone("connections::a_paused_listener_leaves_connections_in_the_kernel") {
        return;
    }
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 64);
        let wait = driver.timeout(SHORT, listener.accept());
        assert!(matches!(driver.block_on(wait).unwrap(), Err(Error::TimedOut { .. })));
        listener.pause();
        take_in(&driver);
        let clients: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
        let before = open_files();
        take_in(&driver);
        assert_eq!(open_files(), before);
        let mut peers: Vec<_> =
            (0..10).map(|_| driver.block_on(listener.accept()).unwrap().unwrap().1).collect();
        peers.sort();
        let mut names: Vec<_> = clients.iter().map(|it| it.local_addr().unwrap()).collect();
        names.sort();
        assert_eq!(peers, names);
    });
}

#[test]
fn a_full_table_of_descriptors_is_told_once_and_the_listener_goes_on() {
    if !alone("connections::a_full_table_of_descriptors_is_told_once_and_the_listener_goes_on") {
        return;
    }
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 64);
        let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let limit = getrlimit(Resource::Nofile);
        let most = open_files() as u64 + 5;
        let is_free = |fd: &u64| !std::fs::exists(format!("/proc/self/fd/{fd}")).unwrap();
        let free = (0..most).filter(is_free).count();
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }).unwrap();
        let mut accepted = Vec::new();
        let error = loop {
            match driver.block_on(listener.accept()).unwrap() {
                Ok(connection) => accepted.push(connection),
                Err(error) => break error,
            }
        };
        let told = error.to_string();
        assert!(
            matches!(error, Error::NoDescriptor { limit: Some(limit), .. } if limit == most),
            "{told}"
        );
        assert!(told.contains("ulimit -n"), "{told}");
        assert_eq!(accepted.len(), free);
        // Connecting needs one as well.
        let refused = driver.connect(address).unwrap_err();
        assert!(matches!(refused, Error::NoDescriptor { .. }), "{refused}");
        // It is not reported again, however long that lasts.
        let wait = driver.timeout(Duration::from_millis(200), listener.accept());
        assert!(matches!(driver.block_on(wait).unwrap(), Err(Error::TimedOut { .. })));
        let room = accepted.drain(2..).count();
        for _ in 0..room {
            accepted.push(driver.block_on(listener.accept()).unwrap().unwrap());
        }
        // Once more, since some came in between.
        let error = driver.block_on(listener.accept()).unwrap().unwrap_err();
        assert!(matches!(error, Error::NoDescriptor { .. }), "{error}");
        setrlimit(Resource::Nofile, limit).unwrap();
        while accepted.len() + room < clients.len() {
            accepted.push(driver.block_on(listener.accept()).unwrap().unwrap());
        }
    });
}

#[test]
fn a_listener_that_stops_listening_says_so() {
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 64);
        let other = listener.as_fd().try_clone_to_owned().unwrap();
        let (accepting, waits) = telling(listener.accept());
        let closing = thread::spawn(move || {
            waits.recv().unwrap();
            SockRef::from(&other).shutdown(Shutdown::Both).unwrap();
        });
        let first = driver.block_on(accepting).unwrap();
        closing.join().unwrap();
        let others = [(); 2].map(|()| driver.block_on(listener.accept()).unwrap());
        for accepted in [first].into_iter().chain(others) {
            let error = accepted.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
        }
        assert!(TcpStream::connect(address).is_err());
    });
}

#[test]
fn a_connection_that_was_reset_before_is_nobodys() {
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 64);
        let client = TcpStream::connect(address).unwrap();
        let name = client.local_addr().unwrap();
        // Once it is in the queue: otherwise the reset might come first.
        poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        // The reset removes it from the kernel's table.
        let ends = format!(":{:04X} 0100007F:{:04X} ", address.port(), name.port());
        while std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&ends) {
            thread::yield_now();
        }
        let next = TcpStream::connect(address).unwrap();
        let (_, peer) = driver.block_on(listener.accept()).unwrap().unwrap();
        assert_eq!(peer, next.local_addr().unwrap());
    });
}

#[test]
fn a_dropped_listener_closes_what_nobody_took() {
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 64);
        let mut clients: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        let (_taken, taken) = driver.block_on(listener.accept()).unwrap().unwrap();
        drop(listener);
        settle(&driver);
        for client in clients.iter_mut().filter(|it| it.local_addr().unwrap() != taken) {
            // An end or a reset.
            assert!(matches!(client.read(&mut [0; 9]), Ok(0) | Err(_)));
        }
        // The kernel closes it a moment later.
        while TcpStream::connect(address).is_ok() {
            driver.turn(Wait::AtMost(SHORT)).unwrap();
        }
    });
}

#[test]
fn a_listener_outlives_its_driver_and_says_so() {
    if !alone("connections::a_listener_outlives_its_driver_and_says_so") {
        return;
    }
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listener(&driver, 64);
        let wait = driver.timeout(SHORT, listener.accept());
        assert!(driver.block_on(wait).unwrap().is_err());
        let before = open_files();
        drop(driver);
        let _client = TcpStream::connect(address).unwrap();
        let accepted = without_ring().block_on(listener.accept()).unwrap();
        assert!(matches!(accepted, Err(Error::DriverGone)), "{accepted:?}");
        drop(listener);
        assert!(open_files() <= before);
    });
}

#[test]
fn a_connection_that_nobody_takes_is_refused() {
    with_each_driver(LONG, |driver| {
        let (_held, nobody) = nobody();
        let error = driver.block_on(driver.connect(nobody).unwrap()).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{error}");
        assert_eq!(driver.in_flight(), 0);
    });
}

/// A listener whose backlog is full, so that a connection to it gets no answer.
fn silent() -> (TcpListener, SocketAddr, Vec<socket2::Socket>) {
    let listener = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    let full = (0..4).map(|_| {
        let client = socket2::Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
        let _ = client.connect(&address.into());
        client
    });
    let full = full.collect();
    // With one in the queue it is full.
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&second)).unwrap();
    (listener, address, full)
}

#[test]
fn a_connection_without_an_answer_is_given_up_by_time_cancel_or_drop() {
    with_each_driver(LONG, |driver| {
        let (_listener, address, _full) = silent();
        let connecting = driver.connect(address).unwrap();
        let gave_up = driver.block_on(driver.timeout(SHORT, connecting)).unwrap();
        assert!(matches!(gave_up, Err(Error::TimedOut { after: SHORT })), "{gave_up:?}");
        let connecting = driver.connect(address).unwrap();
        let over = driver.block_on(driver.cancel_after(SHORT, connecting)).unwrap();
        assert!(matches!(over, Err(Error::Canceled { done: 0 })), "{over:?}");
        settle(&driver);
    });
}

#[test]
fn a_socket_of_ones_own_connects_blocking_or_not() {
    with_each_driver(LONG, |driver| {
        for nonblocking in [false, true] {
            let (mut listener, address) = listener(&driver, 64);
            let own = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            own.set_nonblocking(nonblocking).unwrap();
            own.set_tcp_nodelay(true).unwrap();
            let socket = driver.socket(own).unwrap();
            let connected = driver.block_on(socket.connect(address).unwrap()).unwrap().unwrap();
            assert!(SockRef::from(&connected).tcp_nodelay().unwrap());
            assert_eq!(SockRef::from(&socket).nonblocking().unwrap(), nonblocking);
            let (_far, peer) = driver.block_on(listener.accept()).unwrap().unwrap();
            assert_eq!(peer, name_of(&socket));
            let again = driver.block_on(socket.connect(address).unwrap()).unwrap();
            assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EISCONN));
            let nobody = driver.socket(
                socket2::Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap(),
            );
            let (_held, closed) = self::nobody();
            let refused = nobody.unwrap().connect(closed).unwrap();
            let error = driver.block_on(refused).unwrap().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
        }
    });
}
