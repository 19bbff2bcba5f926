//! Two hosts joined by the software NIC, and streams from one to the other.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::thread;

use handoff_testbed::helpers::bytes_at;
use handoff_testbed::{Pair, PairEnd};

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const PORT: u16 = 4_000;

pub(crate) fn pair(mtu: u32) -> Pair {
    Pair::wire(mtu).expect("a pair of NICs")
}

pub(crate) fn stream_of(bytes: usize) -> Vec<u8> {
    bytes_at(0, bytes)
}

/// Runs a command at this end, with its interfaces in /sys, and returns what it printed.
#[track_caller]
pub(crate) fn run(end: &PairEnd, script: &str) -> String {
    end.shell(script).unwrap_or_else(|reason| panic!("{reason}"))
}

/// Runs a command that must be refused, and returns the reason.
#[track_caller]
pub(crate) fn refused(end: &PairEnd, script: &str) -> String {
    end.shell(script).expect_err(script)
}

/// The index of the interface at this end, in its namespace.
pub(crate) fn interface_index(end: &PairEnd) -> u32 {
    let index = run(end, &format!("cat /sys/class/net/{}/ifindex", end.device()));
    index.trim().parse().expect("a number")
}

pub(crate) fn set_fault(end: &PairEnd, fault: &str, value: u32) {
    run(end, &format!("echo {value} > /sys/class/net/{}/wire/{fault}", end.device()));
}

pub(crate) fn counters(end: &PairEnd) -> BTreeMap<String, u64> {
    run(end, &format!("ethtool -S {}", end.device()))
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

pub(crate) fn steer(end: &PairEnd, queue: u32) {
    let device = end.device();
    run(end, &format!("ethtool -N {device} flow-type tcp4 dst-port {PORT} action {queue}"));
}

pub(crate) fn split_headers(end: &PairEnd) {
    run(end, &format!("ethtool -G {} tcp-data-split on", end.device()));
}

pub(crate) fn listen(end: &PairEnd, address: impl Into<IpAddr>) -> TcpListener {
    let address = (address.into(), PORT);
    end.namespace().run(|| TcpListener::bind(address)).expect("enters").expect("binds")
}

pub(crate) fn connect(end: &PairEnd, address: impl Into<IpAddr>) -> TcpStream {
    let address = (address.into(), PORT);
    end.namespace().run(|| TcpStream::connect(address)).expect("enters").expect("connects")
}

/// Sends the whole stream from left to right, and half of it back, and compares.
pub(crate) fn exchange(pair: &Pair, address: impl Into<IpAddr>, bytes: usize) {
    let address = address.into();
    let listener = listen(&pair.right, address);
    let mut left = connect(&pair.left, address);
    let (mut right, _) = listener.accept().expect("accepts");
    let sent = stream_of(bytes);
    thread::scope(|scope| {
        let mut back = left.try_clone().expect("clones");
        scope.spawn(|| {
            left.write_all(&sent).expect("sends");
            left.shutdown(Shutdown::Write).expect("ends");
        });
        scope.spawn(move || {
            let mut half = Vec::new();
            back.read_to_end(&mut half).expect("receives");
            assert!(half == stream_of(bytes / 2), "what came back differs");
        });
        let mut far = right.try_clone().expect("clones");
        scope.spawn(move || {
            far.write_all(&stream_of(bytes / 2)).expect("sends");
            far.shutdown(Shutdown::Write).expect("ends");
        });
        let mut received = Vec::new();
        right.read_to_end(&mut received).expect("receives");
        assert!(received == sent, "what arrived differs");
    });
}
