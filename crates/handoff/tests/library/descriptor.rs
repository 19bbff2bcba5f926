//! The driver's descriptor in a foreign event loop: it is readable whenever there is something to take.

use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Region, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::traffic::{attached, narrow_tcp, pattern, with_each_engine};

#[test]
fn the_descriptor_tells_of_all_that_happens() {
    with_each_engine(Duration::from_secs(90), |driver, engine| {
        if engine == Engine::MsgZerocopy && driver.ring_unavailable().is_some() {
            // A socket with an error pending is looked at again a moment later, only by a turn.
            return;
        }
        let (near, mut far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let (tell, waits) = mpsc::channel();
        let reader = thread::spawn(move || {
            waits.recv().unwrap();
            far.read_exact(&mut vec![0; 2 << 20]).unwrap();
            far
        });
        let (sent, loan) = socket.send(Buffer::from(pattern(1, 2 << 20))).unwrap().split();
        drop(sent);
        let mut loan = Some(loan);
        while let Some(waiting) = loan.take() {
            driver.turn(Wait::No).unwrap();
            let Err(again) = waiting.try_take() else { break };
            loan = Some(again);
            // It reads from the first time on.
            let _ = tell.send(());
            // As long as the reader takes: only a descriptor that tells nothing is waited for in vain.
            assert!(is_readable(&driver, 60), "{engine}: {:?}", driver.ring_unavailable());
        }
        reader.join().unwrap();
    });
}

/// Whether the descriptor is so before the time is over.
fn is_readable(driver: &Driver, seconds: i64) -> bool {
    let fd = driver.as_fd();
    let patience = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap() == 1
}

#[test]
fn the_descriptor_tells_of_what_was_begun_since_the_last_turn() {
    with_each_engine(Duration::from_secs(90), |driver, engine| {
        let silent = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 1 << 12).unwrap();
        // It is readable at first, so that what was there before is looked at.
        driver.as_fd();
        while is_readable(&driver, 0) {
            driver.turn(Wait::No).unwrap();
        }
        let receiving = silent.receive(&pool).unwrap();
        assert!(is_readable(&driver, 0), "{engine}: {:?}", driver.ring_unavailable());
        while is_readable(&driver, 0) {
            driver.turn(Wait::No).unwrap();
        }
        drop(receiving);
    });
}
