//! The stages of sends at which something happens to them.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Buffer, Driver, Engine, Socket, Wait};
use rustix::io::ioctl_fionread;

use crate::traffic::{attached, narrow_tcp, pattern};

pub(crate) const LONG: Duration = Duration::from_secs(30);
/// More than the buffers of a narrow connection hold.
pub(crate) const STALLED: usize = 512 << 10;

/// The stage of a send when something happens to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    Accepted,
    Blocked,
    /// Taken by the kernel, and perhaps not returned.
    Sent,
    Returned,
}

pub(crate) const STAGES: [Stage; 4] =
    [Stage::Accepted, Stage::Blocked, Stage::Sent, Stage::Returned];

pub(crate) fn turn_for(driver: &Driver, time: Duration) {
    let end = Instant::now() + time;
    let mut left = time;
    while !left.is_zero() {
        driver.turn(Wait::AtMost(left)).unwrap();
        thread::sleep(Duration::from_millis(1));
        left = end.saturating_duration_since(Instant::now());
    }
}

/// Turns until nothing is under way.
pub(crate) fn settle(driver: &Driver) {
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(Duration::from_millis(50))).unwrap();
    }
}

/// A connection with an engine, and everything that a send of `len` bytes needs to reach a stage.
pub(crate) fn at_stage(
    driver: &Driver,
    engine: Engine,
    stage: Stage,
) -> (Socket, TcpStream, Vec<handoff::Sending<Buffer>>, Vec<u8>) {
    let (near, far) = narrow_tcp();
    let socket = attached(driver, near, engine);
    let lens: &[usize] = match stage {
        Stage::Accepted | Stage::Blocked => &[STALLED, 70_000, 0, 1000],
        Stage::Sent | Stage::Returned => &[1000, 60_000],
    };
    let mut sendings = Vec::new();
    let mut expected = Vec::new();
    for (seed, len) in lens.iter().enumerate() {
        expected.extend(pattern(seed, *len));
        sendings.push(socket.send(Buffer::from(pattern(seed, *len))).unwrap());
    }
    match stage {
        Stage::Accepted => {}
        Stage::Blocked => turn_for(driver, Duration::from_millis(10)),
        Stage::Sent => drop(driver.turn(Wait::No).unwrap()),
        Stage::Returned => {
            while ioctl_fionread(&far).unwrap() < expected.len() as u64 {
                driver.turn(Wait::AtMost(Duration::from_millis(10))).unwrap();
            }
            turn_for(driver, Duration::from_millis(10));
        }
    }
    (socket, far, sendings, expected)
}
