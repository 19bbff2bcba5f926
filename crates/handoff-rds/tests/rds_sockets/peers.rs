//! Two hosts with RDS, and what tests do with them.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::{Completion, Error, Received};
use handoff_testbed::{Pair, PairEnd, load};

use crate::timeout::STEP;
pub(crate) use crate::timeout::{LONG, Timeout};

/// A payload that knows its number.
pub(crate) type Numbered = (Vec<u8>, u32);

pub(crate) struct Peers {
    pub(crate) pair: Pair,
}

impl Peers {
    pub(crate) fn new() -> Self {
        load("rds_tcp", &[]).expect("the lab's kernel has it");
        Self { pair: Pair::new(9000).expect("the lab's kernel has veth") }
    }

    pub(crate) fn left(&self, port: u16) -> Socket<Numbered> {
        bind(&self.pair.left, self.pair.left.v4().into(), port)
    }

    pub(crate) fn right(&self, port: u16) -> Socket<Numbered> {
        bind(&self.pair.right, self.pair.right.v4().into(), port)
    }

    /// Sets the cable's left end `up` or `down`.
    pub(crate) fn set_link(&self, state: &str) {
        let end = &self.pair.left;
        let mut command = Command::new("ip");
        command.args(["link", "set", end.device(), state]);
        let status = end.namespace().attach(&mut command).status().expect("the guest has ip");
        assert!(status.success());
    }
}

pub(crate) fn bind(end: &PairEnd, address: IpAddr, port: u16) -> Socket<Numbered> {
    let socket = end.namespace().run(|| Socket::bind((address, port).into()));
    socket.expect("enters").expect("binds")
}

/// Bytes that tell which message they are of.
pub(crate) fn pattern(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number as usize * 131 + at * 7 + at / 251) as u8).collect()
}

/// Sends, waiting where the buffer is full or the receiver congested, and does `meanwhile`.
pub(crate) fn send_waiting(
    socket: &Socket<Numbered>,
    to: SocketAddr,
    mut payload: Numbered,
    cookie: u32,
    mut meanwhile: impl FnMut(),
) {
    let mut timeout = Timeout::new();
    while let Err(refused) = socket.send(to, payload, cookie, Mode::Lend) {
        match refused.error {
            Error::Full { .. } => {
                socket.wait_writable(Duration::from_millis(20)).expect("waits");
            }
            Error::Congested(_) => {
                socket.wait_readable(Duration::from_millis(20)).expect("waits");
            }
            other => panic!("{other}"),
        }
        assert!(!timeout.is_over(), "never accepted");
        meanwhile();
        payload = refused.payload;
    }
}

pub(crate) fn receive(socket: &Socket<Numbered>) -> Received {
    let mut timeout = Timeout::new();
    loop {
        if let Some(received) = socket.receive().expect("receives") {
            return received;
        }
        socket.wait_readable(STEP).expect("waits");
        assert!(!timeout.is_over(), "nothing came");
    }
}

/// Waits until `count` completions are there, and takes them.
pub(crate) fn complete(socket: &Socket<Numbered>, count: usize) -> Vec<Completion<Numbered>> {
    let mut timeout = Timeout::new();
    let mut batch = Vec::new();
    while batch.len() < count {
        if socket.completions(count - batch.len(), &mut batch).expect("reads") == 0 {
            assert!(!timeout.is_over(), "{} of {count} came back", batch.len());
            socket.wait_readable(STEP).expect("waits");
        }
    }
    batch
}
