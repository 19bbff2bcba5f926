//! Copies by the kernel's RDS.

use std::fs;
use std::io::{self, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};

use handoff_cp::wire::HELLO_LEN;
use handoff_rds::wire::{Header, PORT};
use handoff_testbed::running::Running;
use handoff_testbed::{Pair, load};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use crate::copy::{
    Endless, Files, copy, copy_between, cp, pattern, receiver, receives_only_from_those_named,
    sender,
};
use crate::hosts::{hosts, stranger_at};
use crate::peer::sends;

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
fn only_those_who_are_named_may_send() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    receives_only_from_those_named(&Pair::new(9000).expect("the lab's kernel has veth"), &[]);
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
    let mut command = cp(&pair.right, &[from.as_ref(), other.as_os_str()]);
    let second = Running::start(&mut command).end();
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

/// What it does not acknowledge takes the port's send buffer.
#[test]
fn a_stranger_that_reads_nothing_does_not_end_a_transfer() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let (pair, to) = hosts();
    let files = Files::new(0);
    let (from, copied) = (format!("rds://{to}:4000"), files.copy());
    // With that capability its send buffer is twice as large.
    let mut receiver = Command::new("setpriv");
    receiver.args(["--bounding-set=-net_admin", env!("CARGO_BIN_EXE_handoff"), "cp", &from]);
    let receiver = pair.right.namespace().attach(receiver.arg(&copied));
    let receiver = Running::start(receiver.stdin(Stdio::null()));
    receiver.line("listening on rds://");
    let mut sender = cp(&pair.left, &["-", &from]);
    let mut sender = Running::start(sender.stdin(Stdio::piped()));
    let mut input = sender.input();
    let bytes = pattern(70_000);
    // More than a pipe holds: the receiver has answered.
    input.write_all(&bytes).expect("is read");
    let stranger = pair.left.namespace().run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // As little as can be: what has room there is acknowledged.
        socket.set_recv_buffer_size(1)?;
        socket.bind(&SocketAddrV4::new(stranger_at(&pair.left, 0), 40_000).into())?;
        socket.connect(&SocketAddrV4::new(to, PORT).into())?;
        Ok::<_, io::Error>(TcpStream::from(socket))
    });
    let mut stranger = stranger.expect("enters").expect("connects");
    // Answers to all would be more than net.core.wmem_max.
    let hellos = (1..=82_000).flat_map(|sequence| {
        let (len, source, destination) = (HELLO_LEN as u32, 4000, 4000);
        let header = Header { sequence, len, source, destination, ..Header::default() };
        [&header.to_bytes()[..], &sends(0).encode()].concat()
    });
    stranger.write_all(&hellos.collect::<Vec<u8>>()).expect("is taken");
    receiver.line("away: another transfer is under way");
    drop(input);
    let (sent, received) = (sender.end(), receiver.end());
    assert!(sent.code == Some(0) && received.code == Some(0), "{sent:?} {received:?}");
    assert!(fs::read(copied).expect("is there") == bytes);
}
