//! Copies by our own engine, where no module is.

use std::fs;
use std::path::Path;

use handoff_lab::topology::Pair;
use rustix::process::Signal;

use crate::copy::{Endless, Files, copy, cp, pattern, receiver, sender};
use crate::running::Running;

const OWN: [&str; 2] = ["--rds", "own"];
const LONG: usize = 5_000_001;

#[test]
fn a_file_arrives_whichever_side_has_the_smaller_address() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let [sent, _] = copy(&pair.left, &pair.right, LONG, &OWN);
    assert_eq!(sent["hops"][1]["engine"], "rds-own");
    let copied = sent["hops"][1]["copied"].as_u64().expect("a number");
    assert!(copied >= LONG as u64, "over veth the kernel copies: {sent}");
    let long = [&OWN[..], &["--buffer", "4m", "--depth", "3"]].concat();
    let [sent, _] = copy(&pair.right, &pair.left, LONG, &long);
    let note = sent["notes"][0].as_str().expect("a note");
    assert!(note.contains("1048576 bytes instead of 4194304"), "{note}");
    copy(&pair.left, &pair.right, 1, &[&OWN[..], &["--engine", "copy", "--sync"]].concat());
    copy(&pair.left, &pair.right, 0, &OWN);
}

#[test]
fn a_pipe_goes_to_a_pipe() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(LONG);
    let receiver = receiver(&pair.right, Path::new("-"), &OWN);
    let to = format!("rds://{}:4000", pair.right.v4());
    let source = fs::File::open(files.source()).expect("is there");
    let mut command = cp(&pair.left, &["-", &to, "--rds", "own"]);
    let sent = Running::start(command.stdin(source));
    let received = receiver.end();
    assert!(received.code == Some(0), "{}", received.stderr);
    assert!(received.stdout == pattern(LONG), "{} bytes", received.stdout.len());
    assert!(sent.end().code == Some(0));
}

#[test]
fn nobody_there_is_told_in_time() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let more = [&OWN[..], &["--connect-timeout", "1"]].concat();
    let ended = sender(&pair.left, &files.source(), &pair.right, &more).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("does not answer within 1 s"), "{ended:?}");
}

#[test]
fn a_receiver_to_whom_nobody_sends_ends_in_time() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let more = [&OWN[..], &["--connect-timeout", "1"]].concat();
    let ended = receiver(&pair.right, &files.copy(), &more).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("nobody sent in time"), "{ended:?}");
    assert_eq!(files.names(), ["source"]);
}

#[test]
fn an_interrupted_sender_says_so_and_leaves_nothing() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let receiver = receiver(&pair.right, &files.copy(), &OWN);
    let sender = Endless::start(&pair.left, &pair.right, &OWN);
    sender.running.signal(Signal::INT);
    assert_eq!(sender.running.end().code, Some(130));
    let received = receiver.end();
    assert_eq!(received.code, Some(1), "{received:?}");
    assert!(received.stderr.contains("the sender gave up: stopped by SIGINT"), "{received:?}");
    assert_eq!(files.names(), ["source"]);
}

#[test]
fn an_interrupted_receiver_says_so() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let receiver = receiver(&pair.right, &files.copy(), &OWN);
    let sender = Endless::start(&pair.left, &pair.right, &OWN);
    receiver.signal(Signal::TERM);
    assert_eq!(receiver.end().code, Some(143));
    let sent = sender.running.end();
    assert_eq!(sent.code, Some(1), "{sent:?}");
    assert!(sent.stderr.contains("the receiver failed: stopped by SIGTERM"), "{sent:?}");
    assert_eq!(files.names(), ["source"]);
}

#[test]
fn what_makes_no_sense_by_messages_is_usage() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    for more in
        [&["--raw"][..], &["--streams", "2"], &["--lend", "always"], &["--engine", "uring-zc"]]
    {
        let ended = sender(&pair.left, &files.source(), &pair.right, more).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(more[0]), "{ended:?}");
    }
}
