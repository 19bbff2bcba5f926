//! Receiving on a NIC of this host from another one: the two ends of a software NIC.

use std::process::Command;

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Pair, PairEnd};
use rustix::process::Signal;
use serde_json::Value;

use crate::rows::{assert_copied_as_received, number};
use crate::two_hosts::{Side, recv, rows, theirs};

/// Runs a script of the shell on the receiving host.
#[track_caller]
fn shell(end: &PairEnd, script: &str) -> String {
    let mut shell = Command::new("sh");
    let output = end.namespace().attach(shell.args(["-euc", script])).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// All that ethtool shows of what preparing may change.
#[track_caller]
fn settings(end: &PairEnd) -> String {
    let device = end.device();
    shell(end, &format!("for what in g l x n k; do ethtool -$what {device}; done"))
}

/// Bytes that the NIC of a host has received.
fn received(end: &PairEnd) -> u64 {
    let count = format!("cat /sys/class/net/{}/statistics/rx_bytes", end.device());
    end.shell(&count).expect("is there").trim().parse().expect("a number")
}

fn receiving(pair: &Pair, more: &[&str]) -> Side {
    let end = &pair.right;
    let mut command = recv(&[&["--nic", end.device()], more].concat());
    end.namespace().attach(&mut command);
    Side::start(command)
}

fn sending(pair: &Pair, to: &Side) -> Side {
    let mut command = recv(&["--send-to", to.target()]);
    pair.left.namespace().attach(&mut command);
    Side::start(command)
}

#[test]
fn every_row_receives_from_another_host_and_the_nic_is_put_back() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    shell(&pair.right, &format!("ethtool -K {} rx-gro-hw on", pair.right.device()));
    let before = settings(&pair.right);
    // Rows that look at what they receive are gone through where both ends are on one host.
    let words = ["--time", "0.05", "--rounds", "1", "--meter", "--only", "check=no"];
    let receiver = receiving(&pair, &words);
    assert_eq!(receiver.target(), pair.right.v4().to_string());
    assert_ne!(settings(&pair.right), before);
    let sender = sending(&pair, &receiver);
    let ended = receiver.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rows = rows(&ended);
    // Five ways to receive, and one of them twice more: with larger chunks, and by spans that are owned.
    assert_eq!(rows.len(), 7, "{ended:?}");
    for row in &rows {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!((&row["config"]["mtu"], &row["config"]["gro"]), (&1_500.into(), &true.into()));
        assert!(number(row, "busy_share") >= number(row, "softirq_share"), "{row}");
        assert_copied_as_received(row);
    }
    assert!(ended.stderr.contains("note: anyone who reaches"), "{ended:?}");
    assert_eq!(sender.end().code, Some(0));
    assert_eq!(settings(&pair.right), before);
}

#[test]
fn the_nic_is_put_back_when_either_side_ends_before() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let before = settings(&pair.right);
    let long = ["--time", "2", "--rounds", "20", "--only", "check=no (epoll|zcrx chunk)"];

    let receiver = receiving(&pair, &long);
    receiver.signal(Signal::INT);
    assert_eq!(receiver.end().code, Some(130), "nobody has come yet");
    assert_eq!(settings(&pair.right), before);

    let receiver = receiving(&pair, &long);
    let sender = sending(&pair, &receiver);
    receiver.signal(Signal::INT);
    assert_eq!(receiver.end().code, Some(130));
    assert_eq!(sender.end().code, Some(1));
    assert_eq!(settings(&pair.right), before);

    let receiver = receiving(&pair, &long);
    let earlier = received(&pair.right);
    let sender = sending(&pair, &receiver);
    eventually("it sends", || (received(&pair.right) > earlier + (16 << 20)).then_some(()));
    sender.signal(Signal::KILL);
    let ended = receiver.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for row in rows(&ended) {
        let why = row["skipped"].as_str().unwrap_or_else(|| panic!("{row}"));
        assert!(why.contains("it is gone"), "{why}");
    }
    sender.end();
    assert_eq!(settings(&pair.right), before);
}

#[test]
fn a_nic_with_too_few_queues_gives_them_to_the_rows_that_come_first() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    // Queue 0 is the host's, and five of the others have traffic of somebody else's.
    let others = (1..=5).map(|queue| {
        let device = pair.right.device();
        format!("ethtool -N {device} flow-type tcp4 dst-port 900{queue} action {queue}\n")
    });
    let device = pair.right.device();
    let busy: String = others.collect();
    shell(&pair.right, &format!("ethtool -L {device} combined 8\n{busy}"));
    let words = ["--time", "0.05", "--rounds", "1", "--only", "epoll|zcrx chunk=4k$"];
    let receiver = receiving(&pair, &words);
    let sender = sending(&pair, &receiver);
    let ended = receiver.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rows = rows(&ended);
    let of = |engine: &str| rows.iter().filter(|row| row["engine"] == engine).collect::<Vec<_>>();
    assert!(of("epoll").iter().all(|row| row["skipped"].is_null()), "{rows:?}");
    let [first, second] = of("zcrx")[..] else { panic!("{rows:?}") };
    assert_eq!(first["copied_share"], 0.0, "{first}");
    let why = second["skipped"].as_str().unwrap_or_else(|| panic!("{second}"));
    assert!(why.contains("all queues of the NIC are taken"), "{why}");
    assert_eq!(sender.end().code, Some(0));
}

const PLACES: [&str; 8] = [
    "--placement",
    "same,sibling,other",
    "--only",
    "check=no.*(epoll|zcrx chunk=4k$)",
    "--time",
    "0.05",
    "--rounds",
    "1",
];

/// What became of the rows of [`PLACES`].
fn placed(pair: &Pair, receiver: Side) -> Vec<Value> {
    let sender = sending(pair, &receiver);
    let ended = receiver.end();
    assert_eq!((ended.code, sender.end().code), (Some(0), Some(0)), "{ended:?}");
    let rows = rows(&ended);
    assert_eq!(rows.len(), 6, "{rows:?}");
    rows
}

#[test]
fn who_is_placed_by_a_thread_of_no_one_processor_is_skipped_with_the_reason() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let device = pair.right.device();
    // Threads serve its queues, as many as there will be.
    let threads = format!(
        "ethtool -L {device} combined 8; unshare --mount sh -euc \
         'mount -t sysfs sysfs /sys; echo 1 > /sys/class/net/{device}/threaded'"
    );
    shell(&pair.right, &threads);
    let receiver = receiving(&pair, &PLACES);
    for row in placed(&pair, receiver) {
        let why = row["skipped"].as_str().unwrap_or_else(|| panic!("{row}"));
        assert!(why.contains("its thread") && why.contains("choose one"), "{why}");
    }
}

#[test]
fn rows_are_placed_by_the_processor_of_their_queue() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    // An interrupt of the NIC comes to one processor.
    let before = settings(&pair.right);
    let receiver = receiving(&pair, &PLACES);
    for row in placed(&pair, receiver) {
        match row["config"]["placement"].as_str().expect("a place") {
            // The guest's processors are cores.
            "sibling" => {
                let why = row["skipped"].as_str().unwrap_or_else(|| panic!("{row}"));
                assert!(why.contains("whose core has no other"), "{why}");
            }
            _ => {
                let copied = if row["engine"] == "zcrx" { 0.0 } else { 1.0 };
                assert_eq!(row["copied_share"], copied, "{row}");
            }
        }
    }
    assert_eq!(settings(&pair.right), before);
}

/// Rows of several connections by one queue beside each other: by epoll, by the queue, and by another program.
#[test]
fn several_connections_come_to_us_and_to_another_program() {
    const COUNTS: [u64; 2] = [1, 8];
    const ENGINES: [&str; 3] = ["epoll", "zcrx", "theirs"];

    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let before = settings(&pair.right);
    let theirs = theirs();
    let only = "check=no.*(epoll|zcrx chunk=4k( rings=1)?|theirs)$";
    let words = ["--time", "0.05", "--rounds", "1", "--meter", "--placement", "same"];
    let more = ["--connections", "1,8", "--peer", &theirs, "--only", only];
    let receiver = receiving(&pair, &[&words[..], &more].concat());
    let sender = sending(&pair, &receiver);
    let ended = receiver.end();
    assert_eq!((ended.code, sender.end().code), (Some(0), Some(0)), "{ended:?}");
    let rows = rows(&ended);
    let of = |engine, count: u64| {
        let fits = |row: &&Value| {
            row["engine"] == engine && row["config"]["sockets"].as_u64().unwrap_or(1) == count
        };
        rows.iter().find(fits).unwrap_or_else(|| panic!("no {engine} of {count}: {rows:?}"))
    };
    assert_eq!(rows.len(), COUNTS.len() * ENGINES.len(), "{rows:?}");
    for row in COUNTS.into_iter().flat_map(|count| ENGINES.map(|engine| of(engine, count))) {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(row["config"]["placement"], "same", "{row}");
        assert!(number(row, "bytes_per_s") > 0.0, "{row}");
        let theirs = row["engine"] == "theirs";
        assert_eq!(row["peer"], theirs, "{row}");
        if theirs {
            // It reads, and tells nobody.
            assert!(row["copied_share"].is_null(), "{row}");
            assert!((number(row, "copied_share_witness") - 1.0).abs() < 0.1, "{row}");
        } else {
            assert_copied_as_received(row);
        }
    }
    assert_eq!(settings(&pair.right), before);
}
