//! Connections and processes that end: nothing is left behind, and queues are free again.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use handoff::Wait;
use handoff_testbed::helpers::{byte_at, eventually};
use rustix::net::sockopt;

use crate::rx_queue::receiving::{
    LONG, MIB, QUEUE, area, bound, driver, exchange, expect_stream, receiver,
};
use crate::rx_queue::testbed::{Testbed, port, stream_of};
use crate::traffic::within;

const ECONNRESET: i32 = rustix::io::Errno::CONNRESET.raw_os_error();

#[test]
fn short_connections_leave_nothing_behind() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 1_024);
        let address = testbed.pair.right.v4();
        let listener = testbed.listen(address, port(QUEUE));
        let connections = if std::env::var_os("HANDOFF_SOAK").is_some() { 20_000 } else { 1_000 };
        for count in 0..connections {
            let mut left = testbed.connect(address, port(QUEUE));
            let (far, _) = listener.accept().expect("accepts");
            let mut receiver = receiver(&driver, far, &queue);
            let bytes = 1 + count * 37 % 5_000;
            left.write_all(&stream_of(bytes)).expect("sends");
            match count % 3 {
                // The sender ends, the receiver goes without looking, or the sender resets.
                0 => {
                    left.shutdown(Shutdown::Write).expect("ends");
                    driver.block_on(expect_stream(&mut receiver, bytes)).expect("runs");
                }
                1 => drop(receiver),
                _ => {
                    let none = Some(Duration::ZERO);
                    sockopt::set_socket_linger(left.as_fd(), none).expect("sets");
                    drop(left);
                }
            }
        }
        drop(listener);
        // Cancelled receives end with a turn or two.
        while driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(10))).expect("turns");
        }
        assert_eq!(queue.held(), 0);
        assert_eq!(exchange(&testbed, &driver, &queue, false, MIB).copied, 0);
    });
}

#[test]
fn a_reset_is_told_after_what_came_before() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 1_024);
        let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&driver, far, &queue);
        left.write_all(&stream_of(10_000)).expect("sends");
        let mut kept = Vec::new();
        let arriving = async {
            let mut bytes = 0;
            while bytes < 10_000 {
                let span = receiver.next_span().await.expect("goes on").expect("receives");
                bytes += span.len();
                kept.push(span);
            }
        };
        driver.block_on(arriving).expect("runs");
        sockopt::set_socket_linger(left.as_fd(), Some(Duration::ZERO)).expect("sets");
        drop(left);
        let end = driver.block_on(async { receiver.next_span().await }).expect("runs");
        let error = end.expect("told").expect_err("an error");
        assert_eq!(error.raw_os_error(), Some(ECONNRESET), "{error}");
        // Spans outlive receiver, queue and driver.
        drop((receiver, queue, driver));
        let mut position = 0;
        for span in kept {
            assert!(span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at)));
            position += span.len();
        }
    });
}

/// Holds spans of the queue in a process of its own, which reports that and then waits.
fn holder(testbed: &Testbed, shared: bool) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("our path"));
    child.args(["--exact", "--ignored", "--nocapture", "rx_queue::guest::fixture::holds_spans"]);
    child.env("DEVICE", testbed.pair.right.device()).env("QUEUE", QUEUE.to_string());
    if shared {
        child.env("SHARED", "1");
    }
    child.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = testbed.pair.right.namespace().attach(&mut child).spawn().expect("starts");
    let output = child.stdout.as_mut().expect("piped");
    let mut said = String::new();
    let mut byte = [0];
    while !said.contains("LISTENS") {
        assert_eq!(output.read(&mut byte).expect("reads"), 1, "ended after: {said}");
        said.push(byte[0] as char);
    }
    child
}

#[test]
fn a_killed_holder_of_spans_gives_its_queue_back() {
    within(LONG, || {
        let testbed = Testbed::new(1_500);
        for shared in [false, true, false, true] {
            let mut child = holder(&testbed, shared);
            let mut left = testbed.connect(testbed.pair.right.v4(), port(QUEUE));
            left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
            // It keeps everything that it gets, until no chunk is left.
            while left.write(&stream_of(MIB)).is_ok() {}
            child.kill().expect("kills");
            child.wait().expect("ends");
            drop(left);
            let driver = driver();
            // A worker of the kernel lets go of a dead ring.
            let queue = eventually("the queue is free", || {
                testbed.bind(&driver, QUEUE, area(1_024), None).ok()
            });
            assert_eq!(exchange(&testbed, &driver, &queue, false, MIB).copied, 0);
        }
    });
}
