//! Settings while memory is short: each is refused or done, and the NIC goes on.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::failing::{AtRandom, ready};
use crate::testbed::{MIB, exchange, pair, run, split_headers, steer};

#[test]
fn any_allocation_of_a_setting_may_fail() {
    if !ready() {
        handoff_testbed::skip!("this kernel fails no allocations on demand");
    }
    let pair = pair(1_500);
    let (end, device) = (&pair.right, pair.right.device());
    split_headers(end);
    let settings = [
        format!("ethtool -G {device} rx 512 tx 64"),
        format!("ethtool -L {device} combined 2"),
        format!("ethtool -G {device} rx 128 tx 256"),
        format!("ethtool -L {device} combined 4"),
        format!("ethtool -X {device} context new start 0 equal 2"),
        format!("ethtool -N {device} flow-type udp4 dst-port 9 action 1"),
        format!("ethtool -S {device}"),
        "ip link add w0 type wire".to_owned(),
        "ip link del w0".to_owned(),
        format!("ip link set {device} down"),
        format!("ip link set {device} up"),
    ];
    let limit = match std::env::var_os("HANDOFF_SOAK") {
        Some(_) => Duration::from_secs(300),
        None => Duration::from_secs(10),
    };
    let mut nth: u64 = 1;
    let go_on = |mut prelude: Box<dyn FnMut() -> String>| {
        let (mut done, mut refused) = (0, 0);
        let begin = Instant::now();
        while begin.elapsed() < limit {
            for setting in &settings {
                let script = format!("{}exec {setting}", prelude());
                // Programs wait for ever for an answer that netlink has no memory for.
                let mut shell = Command::new("timeout");
                shell.args(["10", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
                let status = end.namespace().attach(&mut shell).status().expect("starts");
                *if status.success() { &mut done } else { &mut refused } += 1;
            }
        }
        println!("{done} done, {refused} refused");
        assert!(done > 0 && refused > 0, "{done} done, {refused} refused");
    };
    // One allocation fails in the life of each command, anywhere from its start to its end.
    go_on(Box::new(move || {
        nth = nth.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("echo {} > /proc/self/fail-nth; ", 100 + (nth >> 33) % 900)
    }));
    // Any that the module causes, in its threads too.
    let failing = AtRandom::below("wire", 5);
    go_on(Box::new(String::new));
    drop(failing);
    run(end, &format!("ip link set {device} up; ethtool -L {device} combined 4"));
    steer(end, 1);
    // An address of IPv6 goes with the link.
    exchange(&pair, pair.right.v4(), MIB);
}
