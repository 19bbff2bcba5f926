//! Changes under traffic: processes, settings, namespaces, the module.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Pair, PairEnd};

use super::bound::{ready_to_bind, receive_bound, until_let_go};
use crate::testbed::{MIB, PORT, connect, pair, run, stream_of};

/// Holds the queue in a process of its own, which reports that and then waits.
fn holder(end: &PairEnd) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("our path"));
    child.args(["--exact", "--ignored", "--nocapture", "guest::fixture::holds_a_queue"]);
    child.env("DEVICE", end.device()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = end.namespace().attach(&mut child).spawn().expect("starts");
    let output = child.stdout.as_mut().expect("piped");
    let mut text = String::new();
    let mut byte = [0];
    while !text.contains("HELD") {
        assert_eq!(output.read(&mut byte).expect("reads"), 1, "ended after: {text}");
        text.push(byte[0] as char);
    }
    child
}

/// Waits until the right end has received so much.
fn until_received(pair: &Pair, bytes: u64) {
    let end = &pair.right;
    let count = format!("cat /sys/class/net/{}/statistics/rx_bytes", end.device());
    let received = || run(end, &count).trim().parse::<u64>().expect("a number");
    eventually("traffic flows", || (received() >= bytes).then_some(()));
}

#[test]
fn a_killed_receiver_gives_its_queue_back() {
    let pair = ready_to_bind(1_500);
    for _ in 0..3 {
        let mut child = holder(&pair.right);
        let mut left = connect(&pair.left, pair.right.v4());
        left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
        // More than it will ever take: it stops reading with all chunks in use.
        while left.write(&stream_of(MIB)).is_ok() {}
        child.kill().expect("kills");
        child.wait().expect("ends");
        until_let_go(&pair);
    }
    assert_eq!(receive_bound(&pair, MIB, 2_048, 4_096), (0, 0));
}

#[test]
fn everything_may_change_under_traffic() {
    let pair = ready_to_bind(1_500);
    let mut child = holder(&pair.right);
    let mut left = connect(&pair.left, pair.right.v4());
    left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
    let traffic = thread::spawn(move || {
        let sent = stream_of(MIB);
        for _ in 0..20 {
            // It is refused or times out once the other end is gone.
            let _ = left.write(&sent);
        }
    });
    let (near, far) = (pair.left.device(), pair.right.device());
    for entries in [16, 4_096, 64, 256] {
        run(&pair.right, &format!("ethtool -G {far} rx {entries}"));
        run(&pair.left, &format!("ethtool -G {near} tx {entries}"));
    }
    for queues in [8, 6, 5] {
        run(&pair.right, &format!("ethtool -L {far} combined {queues}"));
        run(&pair.left, &format!("ethtool -L {near} combined {queues}"));
    }
    for _ in 0..3 {
        run(&pair.right, &format!("ip link set {far} down && ip link set {far} up"));
        run(&pair.left, &format!("ip link set {near} down && ip link set {near} up"));
    }
    // What is not allowed: the held queue cannot be taken away.
    let taken = pair.right.ethtool("-L", &["combined", "3"]);
    assert!(taken.is_err(), "a bound queue was taken away");
    run(&pair.right, &format!("ip link del {far}"));
    child.kill().expect("kills");
    child.wait().expect("ends");
    traffic.join().expect("ends");
}

#[test]
fn a_namespace_goes_under_traffic() {
    let pair = pair(1_500);
    let (left, far) = (pair.left.clone(), pair.right.v4());
    let socket = left.namespace().run(|| UdpSocket::bind((left.v4(), 0)));
    let socket = socket.expect("enters").expect("binds");
    // Refused once the address is gone.
    let traffic = thread::spawn(move || while socket.send_to(&[0; 1_400], (far, PORT)).is_ok() {});
    until_received(&pair, 100 * 1_400);
    // Nothing else holds the right one, and with its end of the cable ours goes.
    drop(pair);
    let is_gone = || !run(&left, "ls /sys/class/net").contains(left.device());
    eventually("the device goes with the namespace of its peer", || is_gone().then_some(()));
    traffic.join().expect("ends");
}

#[test]
fn the_module_goes_while_a_queue_is_held() {
    let pair = ready_to_bind(1_500);
    let mut child = holder(&pair.right);
    let mut left = connect(&pair.left, pair.right.v4());
    left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
    let traffic = thread::spawn(move || while left.write(&stream_of(MIB)).is_ok() {});
    until_received(&pair, MIB as u64 / 2);
    let status = Command::new("rmmod").arg("wire").status().expect("starts");
    assert!(status.success(), "the module cannot be removed");
    traffic.join().expect("ends");
    child.kill().expect("kills");
    child.wait().expect("ends");
}

#[test]
fn who_has_only_a_namespace_loads_no_module_and_makes_no_nics() {
    let by = |tool| Command::new(tool).arg("wire").status().expect("starts").success();
    let make = |kind| {
        let mut make = Command::new("unshare");
        make.args(["--user", "--map-root-user", "--net", "ip", "link", "add", "w0", "type", kind]);
        make.output().expect("starts")
    };
    let possible = make("veth");
    assert!(possible.status.success(), "{}", String::from_utf8_lossy(&possible.stderr));
    // Another test may have loaded it.
    let is_loaded = || Path::new("/sys/module/wire").exists();
    assert!(!is_loaded() || by("rmmod"), "the module cannot be removed");
    assert!(!make("wire").status.success());
    assert!(!is_loaded(), "the kernel has loaded it for somebody without rights");
    assert!(by("modprobe"));
    let refused = make("wire");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("CAP_NET_ADMIN of a namespace"), "{why}");
}
