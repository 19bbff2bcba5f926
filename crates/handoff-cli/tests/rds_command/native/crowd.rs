//! Crowds of connections that mean no good, while a peer that does is answered.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Instant;

use handoff_rds::wire::{Header, MAX_LANES, PORT};
use handoff_testbed::running::{Running, TIMEOUT};
use handoff_testbed::{Pair, PairEnd};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use crate::copy::{Endless, Files, cp, pattern, receiver};
use crate::hosts::{hosts, ip, stranger_at};
use crate::peer::{self, play, sends};
use crate::session::{Answering, command, rds, request};
use crate::strangers::{CROWD, Crowd, KINDS, Kind, Protocol, Visited};

/// What the engine keeps of a connection until a message comes, and a peer's part of what arrives.
const KIB_OF_A_STRANGER: u64 = 8;

/// --buffer times --depth, and the code that the copy is the first to run.
const KIB_OF_THE_PEER: u64 = (4 + 8) << 10;

/// The code that a ping is the first to run.
const KIB_OF_A_PING: u64 = 2 << 10;

/// The room for the answers of all, and what the engine keeps of each.
const KIB_OF_ANSWERS: u64 = 300 << 10;

const PROTOCOL: Protocol = Protocol { begin: &[0; 48], huge, asks };

/// The header of a message as long as there is, or longer than there can be.
fn huge(number: usize) -> Vec<u8> {
    let len = if number.is_multiple_of(2) { 1 << 20 } else { u32::MAX };
    Header { sequence: 1, len, source: 9, destination: 4000, ..Header::default() }
        .to_bytes()
        .to_vec()
}

/// Sixteen questions, whose answers have a mebibyte each.
fn asks(_: usize) -> Vec<u8> {
    (1..=16).flat_map(|sequence| question(sequence, 1 << 20)).collect()
}

/// A question as a message.
fn question(sequence: u64, answer: u32) -> Vec<u8> {
    let body = request(sequence, answer);
    let len = body.len() as u32;
    let head = Header { sequence, len, source: 9, destination: 4000, ..Header::default() };
    [&head.to_bytes()[..], &body].concat()
}

/// They come one by one, after `meanwhile` has been called for each.
fn strangers(kind: Kind, end: &PairEnd, to: Ipv4Addr, meanwhile: impl Fn(usize)) -> Crowd {
    Crowd::new(kind, PROTOCOL, |number| {
        meanwhile(number);
        // From a port that none of a kind before has used.
        stranger(end, number, (40_000 + kind as usize * CROWD) as u16, to)
    })
}

/// Each on a lane of its own.
fn stranger(end: &PairEnd, number: usize, first_port: u16, to: Ipv4Addr) -> TcpStream {
    let from = stranger_at(end, number / usize::from(MAX_LANES));
    connect(end, SocketAddrV4::new(from, first_port + number as u16), to).expect("connects")
}

/// Fails, too, if the other side ends the connection before this thread has seen it come about.
fn connect(end: &PairEnd, from: SocketAddrV4, to: Ipv4Addr) -> io::Result<TcpStream> {
    let connected = end.namespace().run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.connect(&SocketAddrV4::new(to, PORT).into())?;
        Ok::<_, io::Error>(TcpStream::from(socket))
    });
    connected.expect("enters")
}

fn receiving(end: &PairEnd, from: &str, copy: &Path) -> Running {
    let receive = [OsStr::new("--rds"), "own".as_ref(), from.as_ref(), copy.as_ref()];
    let receiver = Running::start(&mut cp(end, &receive));
    receiver.line("listening on rds://");
    receiver
}

/// A copy by messages, from the sender's input: the receiver, which listens, and the sender.
fn from_a_pipe(pair: &Pair, to: Ipv4Addr, copy: &Path) -> (Running, Running) {
    let address = format!("rds://{to}:4000");
    let receiver = receiving(&pair.right, &address, copy);
    let mut sender = cp(&pair.left, &["--rds", "own", "-", &address]);
    (receiver, Running::start(sender.stdin(Stdio::piped())))
}

#[test]
fn a_peer_is_heard_among_strangers() {
    let (pair, to) = hosts();
    for kind in KINDS {
        let files = Files::new(0);
        let (receiver, mut sender) = from_a_pipe(&pair, to, &files.copy());
        let visited = Visited::new(receiver.pid());
        let input = sender.input();
        // More than is on the way: the receiver takes it. So it does while strangers come.
        let bytes = pattern(60_000 * CROWD);
        let mut crowd = strangers(kind, &pair.left, to, |number| {
            (&input).write_all(&bytes[number * 60_000..][..60_000]).expect("is taken");
        });
        // And so it does while they go on.
        let more = &bytes[..2_000_000];
        crowd.go_on_beside(|| (&input).write_all(more).expect("is taken"));
        visited.assert_kept_memory(kind, KIB_OF_A_STRANGER, KIB_OF_THE_PEER);
        drop(crowd);
        // The good peer's: two for each lane.
        visited.gives_back_descriptors(None, 2 * usize::from(MAX_LANES) + 8);
        drop(input);
        let (sent, received) = (sender.end(), receiver.end());
        assert!(
            sent.code == Some(0) && received.code == Some(0),
            "{kind:?}: {sent:?} {received:?}"
        );
        assert!(fs::read(files.copy()).expect("is there") == [&bytes, more].concat(), "{kind:?}");
        visited.assert_said_little(&received.stderr, 4);
    }
}

#[test]
fn a_stranger_that_says_hello_again_and_again_hears_so_many_answers() {
    const ANSWERS: usize = 64;
    let (pair, to) = hosts();
    let files = Files::new(0);
    let (receiver, mut sender) = from_a_pipe(&pair, to, &files.copy());
    let visited = Visited::new(receiver.pid());
    let mut input = sender.input();
    let bytes = pattern(4_000_000);
    let (begin, rest) = bytes.split_at(100_000);
    // More than a pipe holds: the receiver has answered.
    input.write_all(begin).expect("is read");
    let (tell, told) = mpsc::channel();
    let stranger = play(&pair.left, stranger_at(&pair.left, 0), async move |peer| {
        peer.say_again((to, peer::PORT).into(), &sends(0).encode(), 3_000).await;
        let mut answers = 0;
        while peer.hear().await.is_some() {
            answers += 1;
            if answers == ANSWERS {
                tell.send(()).expect("the test waits");
            }
        }
        answers
    });
    told.recv_timeout(TIMEOUT).expect("the stranger is answered");
    input.write_all(rest).expect("is read");
    drop(input);
    let (sent, received) = (sender.end(), receiver.end());
    assert!(sent.code == Some(0) && received.code == Some(0), "{sent:?} {received:?}");
    assert!(fs::read(files.copy()).expect("is there") == bytes);
    assert_eq!(stranger.join().expect("ends"), ANSWERS);
    visited.assert_said_little(&received.stderr, 4);
}

/// Whether the right end takes a connection from another host than the left end: one of a smaller address, so it is the
/// one that connects.
fn takes_another(pair: &Pair) -> bool {
    let other = Ipv4Addr::new(1, 0, 0, 1);
    ip(&pair.left, &["addr", "add", &format!("{other}/32"), "dev", pair.left.device()]);
    ip(&pair.right, &["route", "add", &format!("{other}/32"), "dev", pair.right.device()]);
    let stranger = connect(&pair.left, SocketAddrV4::new(other, 0), pair.right.v4());
    // The first thing that an engine says is which of its ports are congested.
    let heard = stranger.and_then(|mut stranger| {
        stranger.set_read_timeout(Some(TIMEOUT))?;
        stranger.read(&mut [0])
    });
    match heard.map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => false,
        heard => heard.expect("an end, or something") > 0,
    }
}

#[test]
fn who_sends_lets_in_only_whom_it_sends_to() {
    let pair = Pair::new(9_000).expect("namespaces and veth");
    let files = Files::new(0);
    let receiver = receiver(&pair.left, &files.copy(), &["--rds", "own"]);
    let sender = Endless::start(&pair.right, &pair.left, &["--rds", "own"]);
    assert!(!takes_another(&pair));
    sender.running.signal(Signal::INT);
    let (sent, received) = (sender.running.end(), receiver.end());
    assert_eq!((sent.code, received.code), (Some(130), Some(1)), "{sent:?} {received:?}");
    // The user has not asked who may.
    assert!(!sent.stderr.contains("turned a connection"), "{sent:?}");
}

#[test]
fn who_asks_lets_in_only_whom_it_asks_and_whom_the_user_names() {
    for from in [&[][..], &["--from", "1.0.0.1"]] {
        let pair = Pair::new(9_000).expect("namespaces and veth");
        let answering = Answering::at(&pair.left, pair.left.v4(), &["--engine", "own"]);
        let [own, peer] = [&pair.right, &pair.left].map(|end| end.v4().to_string());
        let asks = ["stress", &own, "-s", &peer, "--engine", "own", "--time", "600"];
        let asking = Running::start(&mut command(&pair.right, &[&asks[..], from].concat()));
        asking.line("engine rds-own");
        assert_eq!(takes_another(&pair), !from.is_empty());
        asking.signal(Signal::INT);
        assert_eq!(asking.end().code, Some(130));
        answering.stop();
    }
}

#[test]
fn pings_are_answered_among_strangers() {
    let (pair, to) = hosts();
    for kind in KINDS.into_iter().chain([Kind::NeverReads]) {
        let answering = Answering::at(&pair.right, to, &["--engine", "own"]);
        let visited = Visited::new(answering.pid());
        let mut crowd = strangers(kind, &pair.left, to, |_| {});
        let own = pair.left.v4().to_string();
        let asks = ["ping", &own, &to.to_string(), "-c", "3", "--engine", "own", "--json"];
        let timeout = ["--timeout", "60"];
        let ping = || rds(&pair.left, &[&asks[..], &timeout].concat());
        let answers = crowd.go_on_beside(ping).report();
        assert_eq!(answers["lost"], 0, "{kind:?}: {answers}");
        let answers = if kind == Kind::NeverReads { KIB_OF_ANSWERS } else { 0 };
        visited.assert_kept_memory(kind, KIB_OF_A_STRANGER, KIB_OF_A_PING + answers);
        drop(crowd);
        let ended = answering.end();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        visited.assert_said_little(&ended.stderr, 4);
    }
}

#[test]
fn who_takes_no_answers_delays_no_others_and_takes_bounded_memory() {
    for (answer, count) in [(1 << 20, 2_000), (16, 60_000)] {
        let (pair, to) = hosts();
        let answering = Answering::at(&pair.right, to, &["--engine", "own"]);
        let visited = Visited::new(answering.pid());
        let mut stranger = stranger(&pair.left, 0, 40_000, to);
        for sequence in 1..=count {
            stranger.write_all(&question(sequence, answer)).expect("is taken");
        }
        let (own, peer) = (pair.left.v4().to_string(), to.to_string());
        let asks = ["stress", &own, "-s", &peer, "--engine", "own", "--time", "1", "--json"];
        let asked = rds(&pair.left, &[&asks[..], &["--timeout", "60"]].concat()).report();
        assert!(asked["messages"].as_u64() > Some(0), "{asked}");
        visited.assert_kept_memory(answer, 0, KIB_OF_ANSWERS);
        let ended = answering.end();
        assert!(ended.stderr.contains("an answer to "), "{ended:?}");
        visited.assert_said_little(&ended.stderr, 4);
    }
}

#[test]
fn who_takes_all_descriptors_is_told_of_once_a_second_and_asks_nobody_to_spin() {
    let (pair, to) = hosts();
    let files = Files::new(1_000_000);
    let (from, source, copy) = (format!("rds://{to}:4000"), files.source(), files.copy());
    let receiver = receiving(&pair.right, &from, &copy);
    let visited = Visited::new(receiver.pid());
    visited.limit_descriptors(64);
    let begin = Instant::now();
    // Those that are not accepted all wait to be, and none is still connecting.
    let crowd: Vec<_> = (0..100).map(|number| stranger(&pair.left, number, 40_000, to)).collect();
    receiver.line("connections are not taken");
    let second = receiver.line("connections are not taken");
    let refused = second.split_once("refused=").expect("a count").1;
    let refused: usize = refused.split(' ').next().and_then(|it| it.parse().ok()).expect("a count");
    assert!(refused <= 2 * crowd.len(), "{refused} in a second: {second}");
    drop(crowd);
    let send = [OsStr::new("--rds"), "own".as_ref(), source.as_ref(), from.as_ref()];
    let sent = Running::start(&mut cp(&pair.left, &send)).end();
    let received = receiver.end();
    assert!(sent.code == Some(0) && received.code == Some(0), "{sent:?} {received:?}");
    assert!(fs::read(files.copy()).expect("is there") == pattern(1_000_000));
    let lines = received.stderr.matches("connections are not taken").count() as u64;
    assert!(lines <= begin.elapsed().as_secs() + 1, "{received:?}");
}

#[test]
fn a_connection_that_there_is_no_room_for_is_taken_later() {
    let (pair, to) = hosts();
    let answers = ["stress", &to.to_string(), "--engine", "own"];
    let answering = Running::start(&mut command(&pair.right, &answers));
    let log = answering.lines("answering").concat();
    assert!(log.contains(&format!("anyone who reaches {to}:16385 may send")), "{log}");
    let visited = Visited::new(answering.pid());
    // It needs two.
    visited.leave_descriptors(1);
    let mut peer =
        connect(&pair.left, SocketAddrV4::new(pair.left.v4(), 40_000), to).expect("connects");
    answering.line("connections are not taken");
    visited.leave_descriptors(100);
    peer.set_read_timeout(Some(TIMEOUT)).expect("can wait");
    // What the peer has sent meanwhile is read as well.
    assert!(peer.read(&mut [0; 48]).expect("is not reset") > 0, "it has ended");
}

#[test]
fn a_connection_that_is_not_taken_or_closed_is_told_with_its_peer() {
    let (pair, to) = hosts();
    let mut answering = command(&pair.right, &["-v", "stress", &to.to_string(), "--engine", "own"]);
    let answering = Running::start(&mut answering);
    answering.line("answering");
    let _refused = connect(&pair.right, SocketAddrV4::new(to, 0), to);
    let log = answering.line("connections are not taken");
    assert!(log.contains(&format!(" refused=1 peer={to} reason=the peer has our own")), "{log}");
    let mut closed = stranger(&pair.left, 0, 40_000, to);
    closed.write_all(&huge(1)).expect("is taken");
    let log = answering.line("a connection is closed");
    let peer = stranger_at(&pair.left, 0);
    assert!(log.contains(&format!(" peer={peer} reason=the peer announces a message")), "{log}");
}

#[test]
fn only_those_who_are_named_may_connect() {
    let (pair, to) = hosts();
    let [own, other] =
        [pair.left.v4(), stranger_at(&pair.left, 0)].map(|address| address.to_string());
    let mut answering = command(&pair.right, &["stress", &to.to_string(), "--from", &own]);
    let answering = Running::start(&mut answering);
    let log = answering.lines("answering").concat();
    assert!(log.contains("rds-own") && !log.contains("anyone who reaches"), "{log}");
    for (from, timeout, code) in [(&other, "1", 1), (&own, "60", 0)] {
        let asks = ["ping", from, &to.to_string(), "-c", "2", "--engine", "own"];
        let asked = rds(&pair.left, &[&asks[..], &["--timeout", timeout]].concat());
        assert_eq!(asked.code, Some(code), "{asked:?}");
        assert!(!asked.stderr.contains("anyone who reaches"), "it talks to one only: {asked:?}");
    }
    let log = answering.line("away");
    assert!(log.contains(&format!("turned a connection from {other}")), "{log}");
    let refused = rds(&pair.left, &["ping", &own, &own, "--from", &own, "--engine", "kernel"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("--from goes with --engine own"), "{refused:?}");
}
