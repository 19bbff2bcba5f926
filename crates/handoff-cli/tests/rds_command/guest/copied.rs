//! Copies by the kernel's RDS.

use handoff_lab::topology::{Pair, load};
use handoff_rds::wire::PORT;
use rustix::process::Signal;

use crate::copy::{Endless, Files, copy, copy_between, receiver, sender};

const LONG: usize = 3_000_001;

#[test]
fn a_file_is_lent_to_the_kernel_over_a_card() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let pair = Pair::wire(9000).expect("the lab's kernel has the module");
    let [sent, received] = copy(&pair.left, &pair.right, LONG, &[]);
    let hop = &sent["hops"][1];
    assert_eq!((&hop["engine"], &hop["unknown"]), (&"rds-kernel".into(), &LONG.into()), "{sent}");
    assert_eq!(received["hops"][0]["engine"], "rds-kernel");
}

#[test]
fn on_the_same_host_shared_pages_stay_until_they_are_read() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    let [sent, _] = copy(&pair.right, &pair.left, 8 * LONG, &["--depth", "2"]);
    assert_eq!(sent["hops"][1]["unknown"], 8 * LONG, "{sent}");
    let [sent, _] = copy(&pair.right, &pair.left, LONG, &["--engine", "copy"]);
    assert_eq!(sent["hops"][1]["copied"], LONG, "{sent}");
}

#[test]
fn our_engine_sends_to_the_kernels_which_answers_it() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    // A peer whose engine has gone connects to the port, and is not to find the kernel's RDS there.
    pair.left.redirect(PORT, 9).expect("the lab's kernel can");
    let engines: [&[&str]; 2] = [&["--rds", "own"], &["--rds", "kernel"]];
    // Many more than may be under way without the receiver's word; then again, each a restart of the
    // sender's engine to the kernel.
    for len in [8 * LONG, LONG, LONG] {
        let [sent, received] = copy_between(&pair.left, &pair.right, len, engines);
        assert_eq!(sent["hops"][1]["engine"], "rds-own", "{sent}");
        assert_eq!(received["hops"][0]["engine"], "rds-kernel", "{received}");
    }
}

#[test]
fn a_taken_port_and_a_receiver_that_is_not_there_are_told() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    let files = Files::new(100);
    let ended = sender(&pair.left, &files.source(), &pair.right, &["--connect-timeout", "1"]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("does not answer within 1 s"), "{ended:?}");

    let _first = receiver(&pair.right, &files.copy(), &[]);
    let from = format!("rds://{}:4000", pair.right.v4());
    let other = files.copy().with_extension("other");
    let mut command = crate::copy::cp(&pair.right, &[from.as_ref(), other.as_os_str()]);
    let second = crate::running::Running::start(&mut command).end();
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("port 4000"), "{second:?}");
    assert_eq!(files.names(), ["source"]);
}

#[test]
fn a_second_sender_is_turned_away() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    let files = Files::new(100);
    let receiver = receiver(&pair.right, &files.copy(), &[]);
    let first = Endless::start(&pair.left, &pair.right, &["--engine", "copy"]);
    let second = sender(&pair.left, &files.source(), &pair.right, &[]).end();
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("another transfer is under way"), "{second:?}");
    first.running.signal(Signal::INT);
    assert_eq!(first.running.end().code, Some(130));
    let received = receiver.end();
    assert!(received.stderr.contains("the sender gave up"), "{received:?}");
    assert_eq!(files.names(), ["source"]);
}
