//! Peers that never read, over a cable: what is lent to them is out.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use handoff_testbed::running::Running;
use handoff_testbed::{Pair, PairEnd};

use crate::crowd::PROTOCOL;
use crate::hostile::greet;
use crate::session::{cp, path, pattern};
use crate::strangers::{Crowd, Kind, Visited};

fn start(end: &PairEnd, args: &[&str]) -> Running {
    Running::start(end.namespace().attach(&mut cp(args)))
}

#[test]
fn a_receiver_serves_its_sender_while_others_never_read() {
    let Pair { left, right, .. } = &Pair::new(9_000).expect("namespaces and veth");
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(3_000_000)).unwrap();
    let receiver = start(right, &[&format!("tcp-listen://{}:0", right.v4()), path(&copy)]);
    let address = receiver.address();
    let visited = Visited::new(receiver.pid());
    let connect = || TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
    let _crowd =
        Crowd::new(Kind::NeverReads, PROTOCOL, |_| left.namespace().run(connect).expect("enters"));
    let (sent, received) =
        (start(left, &["--verify", path(&source), &address]).end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert!(fs::read(&copy).unwrap() == pattern(3_000_000));
    // It listens, where anyone can reach it, and tells of the first and of the others at the end.
    visited.assert_said_little(&received.stderr, 4);
}

/// Each has a sender of its own, all of which end in time; so does the one whose peer reads.
#[test]
fn senders_give_up_on_peers_that_never_read() {
    let Pair { left, right, .. } = &Pair::new(9_000).expect("namespaces and veth");
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let source = directory.path().join("source");
    fs::write(&source, pattern(3_000_000)).unwrap();
    let listener = left.namespace().run(|| TcpListener::bind((left.v4(), 0)).unwrap());
    let listener = listener.expect("enters");
    let never = format!("tcp://{}", listener.local_addr().unwrap());
    let begin = Instant::now();
    let stalled = ["uring-zc", "msg-zerocopy", "copy"].map(|engine| {
        let args = ["--engine", engine, "--idle", "0.3", "/dev/zero", &never];
        let sender = start(right, &args);
        let mut peer = listener.accept().unwrap().0;
        greet(&mut peer);
        (engine, sender, peer)
    });
    let receiver = start(left, &[&format!("tcp-listen://{}:0", left.v4()), path(&copy)]);
    let sent = start(right, &["--verify", path(&source), &receiver.address()]).end();
    assert_eq!((sent.code, receiver.end().code), (Some(0), Some(0)), "{sent:?}");
    for (engine, sender, _peer) in stalled {
        let ended = sender.end();
        ended.says(1, "nothing moved for too long (--idle)");
        assert!(begin.elapsed() < Duration::from_secs(20), "{engine}: {:?}", begin.elapsed());
    }
}
