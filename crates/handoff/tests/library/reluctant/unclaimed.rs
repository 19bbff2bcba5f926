//! Sends that nobody waits for: they hold no descriptor and no operation, and each peer has its share of them.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use handoff::{LoanStats, Region};

use super::*;
use crate::traffic;

/// Whether a socket has a descriptor in this process.
fn is_open(inode: &str) -> bool {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .flatten()
        .any(|it| std::fs::read_link(it.path()).is_ok_and(|to| to.as_os_str() == inode))
}

/// What names an open socket, whatever its descriptor.
fn inode(socket: &impl AsRawFd) -> String {
    let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
    std::fs::read_link(link).unwrap().into_os_string().into_string().unwrap()
}

/// A driver with a ring that lends, and keeps connections without their descriptors; `None` if the kernel has no such.
fn parking(
    test: &str,
    ready: impl Fn(handoff::DriverBuilder) -> handoff::DriverBuilder,
) -> Option<Driver> {
    let driver = ready(Driver::builder()).build().unwrap();
    if let Some(reason) = driver.ring_unavailable() {
        traffic::skip(test, reason);
        return None;
    }
    Some(driver)
}

/// Lends to a peer that takes nothing, and lets go of everything.
fn leave(driver: &Driver, near: TcpStream, sends: usize) {
    let socket = attached(driver, near, Engine::UringZc);
    for seed in 0..sends {
        drop(socket.send(Buffer::from(pattern(seed, TAKEN))).unwrap());
    }
    driver.block_on(socket.flush()).unwrap().unwrap();
}

#[test]
fn a_descriptor_goes_with_its_handles_whatever_its_peer_takes() {
    const NAME: &str = "a_descriptor_goes_with_its_handles_whatever_its_peer_takes";
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        for peer in PEERS {
            for is_cut in [false, true] {
                let builder = |builder: handoff::DriverBuilder| builder.linger(40 * STEP);
                let Some(driver) = parking(NAME, builder) else { return };
                let (near, mut far) = road.connection(4096);
                let name = inode(&near);
                let socket = attached(&driver, near, Engine::UringZc);
                drop(taken(&driver, &socket));
                let stalled = is_cut.then(|| {
                    let sending = socket.send(Buffer::from(pattern(2, STALLED))).unwrap();
                    driver.turn(Wait::No).unwrap();
                    sending.cancel_on_drop()
                });
                drop((stalled, socket));
                // The kernel says that it has cancelled.
                let mut turns = 0;
                while is_open(&name) {
                    driver.turn(Wait::AtMost(STEP)).unwrap();
                    turns += 1;
                    assert!(turns < 10, "{peer:?}: the descriptor is open");
                }
                assert!(driver.loan_stats().unclaimed >= 2, "{:?}", driver.loan_stats());
                behave(&driver, peer, &mut far);
                until_free(&driver);
                let LoanStats { unclaimed, reset, .. } = driver.loan_stats();
                assert_eq!((unclaimed, reset), (0, 1), "{peer:?}");
                check_reset(peer, &mut far);
            }
        }
    });
}

#[test]
fn who_keeps_taking_gets_all_of_a_connection_without_a_descriptor() {
    const NAME: &str = "who_keeps_taking_gets_all_of_a_connection_without_a_descriptor";
    const LEN: usize = 512 << 10;
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        // Longer than the peer takes to make room for half of its window, by which it is seen to go on.
        let Some(driver) = parking(NAME, |builder| builder.linger(60 * STEP)) else { return };
        let (near, mut far) = road.connection(64 << 10);
        SockRef::from(&near).set_send_buffer_size(4 << 20).unwrap();
        let name = inode(&near);
        let socket = attached(&driver, near, Engine::UringZc);
        drop(socket.send(Buffer::from(pattern(0, LEN))).unwrap());
        driver.block_on(socket.flush()).unwrap().unwrap();
        drop(socket);
        assert!(!is_open(&name));
        far.set_nonblocking(true).unwrap();
        let (mut got, mut chunk) = (Vec::new(), vec![0; 4 << 10]);
        loop {
            driver.turn(Wait::AtMost(STEP)).unwrap();
            // So slowly that its time comes several times.
            std::thread::sleep(STEP / 2);
            match far.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => got.extend_from_slice(&chunk[..len]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        assert!(got == pattern(0, LEN), "{} bytes came", got.len());
        assert_eq!(driver.loan_stats(), LoanStats::default());
    });
}

#[test]
fn seven_hundred_peers_that_take_nothing_leave_room_for_others() {
    const NAME: &str = "seven_hundred_peers_that_take_nothing_leave_room_for_others";
    const CROWD: usize = 700;
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        let Some(driver) = parking(NAME, |builder| builder.in_flight(512)) else { return };
        let mut fars = Vec::new();
        for _ in 0..CROWD {
            let (near, far) = road.connection(4096);
            let name = inode(&near);
            leave(&driver, near, 1);
            assert!(fars.len() >= 400 || !is_open(&name));
            fars.push(far);
        }
        let LoanStats { unclaimed, reset, .. } = driver.loan_stats();
        assert_eq!((unclaimed, reset), (CROWD, 0));
        let (near, far) = road.connection(64 << 10);
        let socket = attached(&driver, near, Engine::UringZc);
        let reader = traffic::read_all(far);
        // As many as there is room for.
        let sendings: Vec<_> =
            (0..512).map(|seed| socket.send(Buffer::from(pattern(seed, 1000))).unwrap()).collect();
        let refused = socket.send(Buffer::from(vec![0])).unwrap_err();
        assert!(matches!(refused.error, Error::Busy { limit: 512 }), "{}", refused.error);
        driver
            .block_on(async {
                for sending in sendings {
                    assert_eq!(sending.await.unwrap().sent.unwrap(), 1000);
                }
            })
            .unwrap();
        drop(socket);
        assert_eq!(reader.join().unwrap().len(), 512_000);
    });
}

#[test]
fn a_peer_has_no_more_than_its_share() {
    const NAME: &str = "a_peer_has_no_more_than_its_share";
    /// A quarter of the budget.
    const SHARE: usize = 10;
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        let Some(driver) = parking(NAME, |builder| builder.unclaimed_loans(4 * SHARE)) else {
            return;
        };
        let (near, mut other) = road.connection_to(road.0.right.v6().into(), 4096);
        leave(&driver, near, 2);
        let mut fars = Vec::new();
        for _ in 0..3 * SHARE {
            let (near, far) = road.connection(4096);
            leave(&driver, near, 1);
            fars.push(far);
        }
        while driver.in_flight() > SHARE + 2 {
            driver.turn(Wait::AtMost(STEP)).unwrap();
        }
        let LoanStats { unclaimed, reset, .. } = driver.loan_stats();
        assert_eq!((unclaimed, reset), (SHARE + 2, 2 * SHARE as u64));
        // The eldest were reset, and none of another peer.
        for (number, far) in fars.iter_mut().enumerate() {
            if number < 2 * SHARE {
                check_reset(Peer::TakesNothing, far);
            }
        }
        for far in fars[2 * SHARE..].iter_mut().chain([&mut other]) {
            far.set_nonblocking(true).unwrap();
            let error = far.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        }
    });
}

#[test]
fn a_socket_that_is_held_copies_where_its_peer_has_its_share() {
    const NAME: &str = "a_socket_that_is_held_copies_where_its_peer_has_its_share";
    const SHARE: usize = 2;
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        let Some(driver) =
            parking(NAME, |builder| builder.unclaimed_loans(4 * SHARE).linger(2 * STEP))
        else {
            return;
        };
        let (near, _far) = road.connection(4096);
        let socket = attached(&driver, near, Engine::Auto);
        assert_eq!(socket.choice(1 << 20).engine, Engine::UringZc);
        for seed in 0..SHARE {
            drop(socket.send(Buffer::from(pattern(seed, 64 << 10))).unwrap());
        }
        driver.block_on(socket.flush()).unwrap().unwrap();
        let choice = socket.choice(1 << 20);
        assert_eq!(choice.engine, Engine::Copy);
        assert!(choice.reason.contains("unclaimed_loans"), "{}", choice.reason);
        let copied = socket.send(Buffer::from(pattern(2, 64 << 10))).unwrap();
        let receipt = driver.block_on(async { copied.await.unwrap().receipt }).unwrap();
        assert_eq!(receipt.engine, Some(Engine::Copy));
        socket.set_engine(Engine::UringZc).unwrap();
        let refused = socket.send(Buffer::from(vec![0; 64 << 10])).unwrap_err();
        assert!(matches!(refused.error, Error::Busy { limit: SHARE }), "{}", refused.error);
        // What is out for long on a stream that somebody holds is told, and the stream goes on.
        while driver.loan_stats().overdue < SHARE as u64 {
            driver.turn(Wait::AtMost(STEP)).unwrap();
        }
        let LoanStats { unclaimed, overdue, reset } = driver.loan_stats();
        assert_eq!((unclaimed, overdue, reset), (SHARE, SHARE as u64, 0));
        socket.abort();
        until_free(&driver);
    });
}

#[test]
fn a_datagram_that_is_out_for_long_is_told() {
    const NAME: &str = "a_datagram_that_is_out_for_long_is_told";
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        let Some(driver) = parking(NAME, |builder| builder.linger(2 * STEP)) else { return };
        let Pair { left, right, .. } = &road.0;
        let [a, b, c, d] = right.v4().octets();
        // Nobody answers there, so the kernel keeps the datagram until it has given up asking.
        let nobody = Ipv4Addr::new(a, b, c, d + 77);
        let near = left.namespace().run(|| UdpSocket::bind((left.v4(), 0)).unwrap()).unwrap();
        near.connect((nobody, 9)).unwrap();
        let name = inode(&near);
        let socket = attached(&driver, near, Engine::UringZc);
        drop(socket.send(Buffer::from(pattern(0, 8000))).unwrap());
        drop(socket);
        while driver.loan_stats().overdue == 0 {
            driver.turn(Wait::AtMost(STEP)).unwrap();
        }
        assert!(!is_open(&name));
        assert_eq!(driver.loan_stats(), LoanStats { unclaimed: 1, overdue: 1, reset: 0 });
        until_free(&driver);
        assert_eq!(driver.loan_stats().unclaimed, 0);
    });
}

#[test]
fn a_group_that_is_dropped_leaves_its_sends_to_the_budget() {
    const NAME: &str = "a_group_that_is_dropped_leaves_its_sends_to_the_budget";
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        let Some(driver) = parking(NAME, |builder| builder.in_flight(4).linger(10 * STEP)) else {
            return;
        };
        let (near, mut far) = road.connection(4096);
        let socket = attached(&driver, near, Engine::UringZc);
        let mut group = driver.group();
        for seed in 0..4 {
            let buffer = Buffer::from(pattern(seed, TAKEN));
            drop(socket.message(buffer).send_in(&mut group).unwrap());
        }
        driver.block_on(socket.flush()).unwrap().unwrap();
        assert_eq!((group.on_loan(), driver.loan_stats().unclaimed), (4, 0));
        assert!(socket.send(Buffer::from(vec![0])).is_err());
        drop(group);
        assert_eq!(driver.loan_stats().unclaimed, 4);
        drop(socket.send(Buffer::from(vec![0])).unwrap());
        drop(socket);
        until_free(&driver);
        check_reset(Peer::TakesNothing, &mut far);
    });
}

#[test]
fn a_closed_lane_keeps_no_descriptor() {
    const NAME: &str = "a_closed_lane_keeps_no_descriptor";
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        for goes_first in ["lane", "socket"] {
            let Some(driver) = parking(NAME, |builder| builder.linger(10 * STEP)) else { return };
            let (near, mut far) = road.connection(4096);
            let name = inode(&near);
            let socket = attached(&driver, near, Engine::Auto);
            let mut region = Region::anonymous(2 * TAKEN).unwrap();
            let lane = socket.lane(&region, 2).unwrap();
            for _ in 0..2 {
                lane.push(region.take(TAKEN).unwrap()).unwrap();
            }
            while socket.send_stats().messages < 2 {
                driver.turn(Wait::AtMost(STEP)).unwrap();
            }
            assert!(lane.take().is_none());
            match goes_first {
                "lane" => drop((lane, socket)),
                _ => drop((socket, lane)),
            }
            assert!(!is_open(&name), "{goes_first}");
            until_free(&driver);
            assert_eq!(driver.loan_stats().reset, 1, "{goes_first}");
            check_reset(Peer::TakesNothing, &mut far);
        }
    });
}
