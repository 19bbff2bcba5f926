//! Copies by our own engine, where no module is.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use handoff_testbed::Pair;
use handoff_testbed::running::Running;
use rustix::process::Signal;

use crate::copy::{
    Endless, Files, copy, cp, pattern, receiver, receives_only_from_those_named, sender,
};
use crate::gate::Gate;

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
fn holes_are_left_out() {
    const LEN: u64 = 64 << 20;
    const MOST: u64 = 2 << 20;
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100_000);
    let source = File::options().write(true).open(files.source()).expect("is there");
    source.set_len(LEN).expect("is a file");
    for offset in [LEN / 2, LEN - 300_000] {
        source.write_all_at(&pattern(100_000), offset).expect("room");
    }
    let receiver = receiver(&pair.right, &files.copy(), &OWN);
    let sent = sender(&pair.left, &files.source(), &pair.right, &OWN).end().report();
    let received = receiver.end().report();
    for report in [&sent, &received] {
        assert_eq!(report["bytes"], LEN, "{report}");
        assert!(report["holes"].as_u64() > Some(LEN - MOST), "{report}");
    }
    // What was left out did not travel either.
    assert!(sent["hops"][1]["copied"].as_u64().expect("a number") < MOST, "{sent}");
    let room = fs::metadata(files.copy()).expect("is there").blocks() * 512;
    assert!(room < MOST, "{room} bytes of disk");
    let [source, copy] = [files.source(), files.copy()].map(|it| fs::read(it).expect("is there"));
    assert!(source == copy, "the same bytes");
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
    let more = [&OWN[..], &["--connect-timeout", "1", "--idle", "0.1"]].concat();
    let ended = sender(&pair.left, &files.source(), &pair.right, &more).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("does not answer within 1 s"), "{ended:?}");
}

#[test]
fn a_receiver_to_whom_nobody_sends_ends_in_time() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let more = [&OWN[..], &["--connect-timeout", "1", "--idle", "0.1"]].concat();
    let ended = receiver(&pair.right, &files.copy(), &more).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("nobody sent in time"), "{ended:?}");
    assert_eq!(files.names(), ["source"]);
}

#[test]
fn only_those_who_are_named_may_send() {
    receives_only_from_those_named(&Pair::new(9000).expect("namespaces and veth"), &OWN);
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
fn a_sender_that_announces_too_much_is_refused_and_another_is_not() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let limited = [&OWN[..], &["--max-size", "100"]].concat();
    let receiver = receiver(&pair.right, &files.copy(), &limited);
    let longer = files.source().with_file_name("longer");
    fs::write(&longer, pattern(101)).expect("room");
    let refused = sender(&pair.left, &longer, &pair.right, &OWN).end();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let why = "101 bytes are more than 100 (--max-size)";
    assert!(refused.stderr.contains(&format!("the receiver refuses: {why}")), "{refused:?}");
    let sent = sender(&pair.left, &files.source(), &pair.right, &OWN).end();
    let received = receiver.end();
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert!(received.stderr.contains(why), "{received:?}");
}

#[test]
fn a_signal_changes_nothing_once_the_file_gets_its_name() {
    let pair = Pair::new(9000).expect("namespaces and veth");
    let files = Files::new(100);
    let receiver = receiver(&pair.right, &files.copy(), &[&OWN[..], &["--sync"]].concat());
    let gate = Gate::before(files.copy().parent().expect("is in a directory"));
    let sender = sender(&pair.left, &files.source(), &pair.right, &OWN);
    // The directory is written to the disk last.
    gate.await_somebody();
    assert!(files.copy().exists());
    receiver.signal(Signal::INT);
    drop(gate);
    let (sent, received) = (sender.end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert_eq!(files.names(), ["copy", "source"]);
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
