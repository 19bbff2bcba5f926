//! Receiving on a NIC of this host, without one: loopback has no queues to set aside, but rows.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;

use crate::rows::number;
use crate::two_hosts::{Side, recv, rows, theirs};

fn receiving(port: &str, more: &[&str]) -> Side {
    let words = ["--nic", "lo", "--port", port, "--only", "check=yes (epoll|zcrx chunk)"];
    Side::start(recv(&[&words, more].concat()))
}

fn sending(to: &Side) -> Side {
    Side::start(recv(&["--send-to", to.target()]))
}

#[test]
fn rows_are_received_from_another_program_and_one_without_a_nic_says_why() {
    let receiver = receiving("21100", &["--time", "0.2", "--rounds", "2"]);
    assert_eq!(receiver.target(), "127.0.0.1:21100");
    let sender = sending(&receiver);
    assert!(sender.first().starts_with("sending to 127.0.0.1:21100"), "{}", sender.first());
    let ended = receiver.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let [epoll, zcrx] = &rows(&ended)[..] else { panic!("{ended:?}") };
    assert_eq!((&epoll["config"]["target"], &epoll["copied_share"]), (&"lo".into(), &1.0.into()));
    // Both ends are on this host.
    assert!(number(epoll, "busy_share") > 0.2 && number(epoll, "softirq_share") >= 0.0, "{epoll}");
    let why = zcrx["skipped"].as_str().expect("a reason");
    assert!(why.contains("lo: it is the loopback interface"), "{why}");
    assert_eq!(sender.end().code, Some(0));
}

#[test]
fn another_program_needs_no_queue() {
    let words = ["--nic", "lo", "--port", "21150", "--time", "0.1", "--rounds", "1"];
    let theirs = theirs();
    let more = ["--connections", "1,2", "--peer", &theirs, "--only", "check=no.*theirs"];
    let receiver = Side::start(recv(&[&words[..], &more].concat()));
    let sender = sending(&receiver);
    let ended = receiver.end();
    assert_eq!((ended.code, sender.end().code), (Some(0), Some(0)), "{ended:?}");
    let rows = rows(&ended);
    let rows: Vec<_> = rows.iter().filter(|row| row["engine"] == "theirs").collect();
    assert_eq!(rows.len(), 2, "{ended:?}");
    for row in rows {
        assert!(row["skipped"].is_null(), "{row}");
        assert!(number(row, "bytes_per_s") > 0.0, "{row}");
    }
}

#[test]
fn a_sender_that_vanishes_fails_its_row_with_the_cause() {
    let receiver = receiving("21110", &["--time", "1", "--rounds", "20"]);
    let sender = sending(&receiver);
    sender.signal(Signal::KILL);
    let ended = receiver.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    // Without a queue to be had, the other has not asked for a connection.
    let why = rows(&ended)[0]["skipped"].as_str().expect("a reason").to_owned();
    assert_eq!(why, "the sending host, 127.0.0.1: it is gone");
    assert!(ended.stderr.contains("failed while running: mtu=65536 gro=no check=yes epoll"));
    sender.end();
}

#[test]
fn either_side_can_be_stopped_and_the_other_learns_it() {
    let receiver = receiving("21120", &[]);
    receiver.signal(Signal::INT);
    assert_eq!(receiver.end().code, Some(130), "nobody has come yet");

    let receiver = receiving("21120", &["--time", "1", "--rounds", "20"]);
    let sender = sending(&receiver);
    receiver.signal(Signal::TERM);
    assert_eq!(receiver.end().code, Some(143));
    let ended = sender.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("ended before its table was complete"), "{ended:?}");

    let receiver = receiving("21120", &["--time", "1", "--rounds", "20"]);
    let sender = sending(&receiver);
    sender.signal(Signal::INT);
    assert_eq!(sender.end().code, Some(130));
    assert_eq!(receiver.end().code, Some(1));
}

#[test]
fn a_second_sender_and_a_stranger_are_turned_away() {
    let receiver = receiving("21130", &["--time", "0.5", "--rounds", "3"]);
    let mut stranger = TcpStream::connect(receiver.target()).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\n").expect("it hears");
    // Before the sender comes: an end, or a reset.
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
    let sender = sending(&receiver);
    let second = sending(&receiver);
    assert!(second.first().contains("takes one sender"), "{}", second.first());
    assert_eq!(second.end().code, Some(1));
    let ended = receiver.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("does not speak as"), "{ended:?}");
    assert_eq!(sender.end().code, Some(0));
}

#[test]
fn a_host_that_is_not_let_in_is_turned_away() {
    let receiver = receiving("21160", &["--from", "127.0.0.2", "--time", "0.1", "--rounds", "1"]);
    let sender = sending(&receiver);
    let ended = sender.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("does not let this host in"), "{ended:?}");
    receiver.signal(Signal::INT);
    let ended = receiver.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let turned_away = "handoff: turned a connection from 127.0.0.1:";
    assert!(ended.stderr.contains(turned_away), "{ended:?}");

    let receiver = receiving("21160", &["--from", "127.0.0.0/8", "--time", "0.1", "--rounds", "1"]);
    let sender = sending(&receiver);
    assert_eq!((receiver.end().code, sender.end().code), (Some(0), Some(0)));
}

#[test]
fn what_makes_no_sense_is_one_line() {
    for (words, code, expected) in [
        (&["--nic", "eth77"][..], 2, "no network interface \"eth77\""),
        (&["--nic", "lo", "--lab"], 2, "leave --nic or --lab out"),
        (&["--placement", "same"], 2, "give --nic IFACE"),
        (&["--from", "127.0.0.1"], 2, "give --nic IFACE"),
        (&["--nic", "lo", "--port", "65535"], 2, "take a lower one"),
        (
            &["--send-to", "127.0.0.1:21140"],
            1,
            "start `handoff bench recv --nic IFACE` there first",
        ),
        (&["--send-to", "no such host"], 2, "no such host"),
    ] {
        let output = recv(words).output().expect("it starts");
        let line = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), line.lines().count()), (Some(code), 1), "{line}");
        assert!(line.contains(expected), "{line}");
    }
}
