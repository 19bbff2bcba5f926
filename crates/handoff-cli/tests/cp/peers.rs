//! Transfers between two commands: every engine, size and number of streams; what arrives is what
//! was sent, and the report adds up.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use handoff_testbed::running::Running;
use handoff_testbed::topology_or_skip;
use handoff_testbed::{Namespace, Pair};
use serde_json::Value;

use crate::session::{cp, path, pattern, transfer};

const ENGINES: [&str; 4] = ["auto", "uring-zc", "msg-zerocopy", "copy"];

fn adds_up(report: &Value, bytes: u64, hops: &[(&str, &str)]) {
    assert_eq!(report["bytes"], bytes, "{report}");
    let ways: Vec<_> = report["hops"].as_array().unwrap().iter().collect();
    assert_eq!(ways.len(), hops.len(), "{report}");
    for (way, (from, to)) in ways.into_iter().zip(hops) {
        assert_eq!((way["from"].as_str(), way["to"].as_str()), (Some(*from), Some(*to)));
        let sum: u64 =
            ["zero_copy", "copied", "unknown"].iter().map(|what| way[what].as_u64().unwrap()).sum();
        // Frames go beside the payload on sockets.
        let frames = if *from == "socket" || *to == "socket" { bytes / 200 + 2000 } else { 0 };
        // What arrives aligned needs no copy to be so.
        let least = if (*from, *to) == ("memory", "memory") { 1 } else { bytes };
        assert!((least..=bytes + frames).contains(&sum), "{way}");
        assert!(!way["engine"].as_str().unwrap().is_empty());
        assert!(!way["reason"].as_str().unwrap().is_empty());
    }
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["cpu_seconds"].as_f64().unwrap() > 0.0);
}

/// One transfer with everything about it checked.
fn check(
    namespaces: Option<(&Namespace, &Namespace)>,
    host: &str,
    len: usize,
    engine: &str,
    streams: &str,
) {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    let bytes = pattern(len);
    fs::write(&source, &bytes).unwrap();
    let sender_args = ["--json", "--verify", "--engine", engine, "--streams", streams];
    let (receiver, sender) =
        transfer(namespaces, host, &source, &destination, &["--json"], &sender_args);
    let what = format!("{len} bytes, {engine}, {streams} streams");
    let (received, sent) = (receiver.report(), sender.report());
    assert!(fs::read(&destination).unwrap() == bytes, "{what}");
    adds_up(&sent, len as u64, &[("file", "memory"), ("memory", "socket")]);
    adds_up(&received, len as u64, &[("socket", "memory"), ("memory", "file")]);
    assert!(sent["checksum"].is_string() && sent["checksum"] == received["checksum"], "{what}");
    if engine != "auto" {
        assert_eq!(sent["hops"][1]["engine"], engine);
    }
    assert_eq!(received["hops"][0]["zero_copy"], 0);
    assert_eq!(sent["notes"], Value::Array(Vec::new()), "{what}");
}

/// Long enough for `auto` to time its sends and to choose.
fn long() -> usize {
    if std::env::var_os("HANDOFF_SOAK").is_some() { 64 << 20 } else { 16 << 20 }
}

#[test]
fn every_engine_and_size_over_loopback() {
    for engine in ENGINES {
        for len in [1, 4096, 65_537, 3_000_001] {
            check(None, "127.0.0.1", len, engine, "1");
        }
        check(None, "127.0.0.1", 3_000_001, engine, "4");
    }
    check(None, "127.0.0.1", 0, "auto", "1");
    check(None, "127.0.0.1", 0, "auto", "4");
    check(None, "[::1]", long(), "auto", "4");
}

#[test]
fn needs_root_every_engine_between_two_hosts() {
    let pair = topology_or_skip!(Pair::new(9000));
    let ends = Some((pair.left.namespace(), pair.right.namespace()));
    let v6 = format!("[{}]", pair.right.v6());
    for engine in ENGINES {
        check(ends, &pair.right.v4().to_string(), 2 << 20, engine, "1");
        check(ends, &v6, 4_000_001, engine, "4");
    }
    check(ends, &v6, long(), "auto", "1");
}

#[test]
fn the_receiver_may_connect_and_either_side_may_ask_for_the_checksum() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(2_000_000)).unwrap();
    let sender = Running::start(&mut cp(&[path(&source), "tcp-listen://127.0.0.1:0", "--json"]));
    let receiver = Running::start(&mut cp(&[
        &sender.address(),
        path(&destination),
        "--json",
        "--verify",
        "--streams",
        "3",
    ]));
    let (received, sent) = (receiver.end().report(), sender.end().report());
    assert_eq!(fs::read(&destination).unwrap(), pattern(2_000_000));
    assert!(sent["checksum"].is_string() && sent["checksum"] == received["checksum"]);
    assert_eq!((&sent["streams"], &received["streams"]), (&3.into(), &3.into()));
}

#[test]
fn the_engine_of_a_short_file_is_explained_by_its_length() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    std::fs::write(&source, pattern(21)).unwrap();
    let (received, sent) = transfer(None, "127.0.0.1", &source, &destination, &[], &["--json"]);
    assert_eq!(received.code, Some(0), "{received:?}");
    let report = sent.report();
    let reason = report["hops"][1]["reason"].as_str().unwrap();
    assert!(!reason.contains("65536"), "{report}");
}

#[test]
fn pipes_at_both_ends() {
    for len in [0, 5_000_000] {
        let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", "-"]));
        let address = receiver.address();
        let mut sender = cp(&["--verify", "-", &address, "--streams", "1"]);
        let mut sender = Running::start(sender.stdin(Stdio::piped()));
        let mut input = sender.input();
        input.write_all(&pattern(len)).unwrap();
        drop(input);
        let (sender, receiver) = (sender.end(), receiver.end());
        assert_eq!((sender.code, receiver.code), (Some(0), Some(0)), "{sender:?} {receiver:?}");
        assert!(receiver.stdout == pattern(len));
        // The report goes where it does not mix with the bytes.
        assert!(receiver.stderr.contains("the same on both sides"), "{}", receiver.stderr);
        let report = String::from_utf8(sender.stdout).unwrap();
        assert!(report.starts_with(&format!("{len} bytes in ")), "{report}");
    }
}

#[test]
fn a_reader_that_leaves_ends_the_transfer() {
    let receiver = cp(&["tcp-listen://127.0.0.1:0", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut receiver = receiver.unwrap();
    drop(receiver.stdout.take());
    let mut stderr = std::io::BufReader::new(receiver.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    let address = line.trim().strip_prefix("handoff: listening on ").unwrap();
    let sender = Running::start(&mut cp(&["/dev/zero", address]));
    sender.end().says(1, "the receiver failed: what it writes to was closed");
    assert_eq!(receiver.wait().unwrap().code(), Some(141));
}

#[test]
fn bare_bytes_to_and_from_other_programs() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    let bytes = pattern(3_000_001);
    fs::write(&source, &bytes).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let sender = Running::start(&mut cp(&["--raw", path(&source), &address]));
    let mut got = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
    let ended = sender.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(got == bytes);

    for direct in [false, true] {
        let mut receiver = cp(&["--raw", "--force", "tcp-listen://127.0.0.1:0"]);
        receiver.arg(path(&destination));
        if direct {
            receiver.arg("--direct");
        }
        let receiver = Running::start(&mut receiver);
        let address = receiver.address();
        let mut peer = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
        peer.write_all(&bytes).unwrap();
        drop(peer);
        let ended = receiver.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(fs::read(&destination).unwrap() == bytes, "direct: {direct}");
    }
}

/// Whether the connection from this port has been ended there, and the peer has not taken all of it.
fn has_sent_its_end(port: u16) -> bool {
    const FIN_WAIT1: &str = "04";
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
            && state == Some(FIN_WAIT1)
    })
}

#[test]
fn a_bare_stream_that_was_not_taken_whole_fails() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::write(&source, pattern(200_000)).unwrap();
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_recv_buffer_size(4096).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(1).unwrap();
    let listener = TcpListener::from(listener);
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    // All of it is in the sender's kernel at once, which then waits for a peer that reads nothing.
    let sends = ["--raw", "--engine", "copy", path(&source), &address];
    let sender = Running::start(&mut cp(&sends));
    let peer = listener.accept().unwrap().0;
    let SocketAddr::V4(from) = peer.peer_addr().unwrap() else { unreachable!("it is IPv4") };
    let begin = Instant::now();
    while !has_sent_its_end(from.port()) {
        assert!(begin.elapsed() < Duration::from_secs(30), "it has not sent all of it");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(peer);
    sender.end().says(1, "the receiver ended the connection before it took the last");
    // Nor is a peer that stays waited for without end.
    let sender = Running::start(cp(&sends).args(["--idle", "0.5"]));
    let _peer = listener.accept().unwrap();
    sender.end().says(1, "nothing moved for too long (--idle)");
}

#[test]
fn received_past_the_page_cache() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    for (len, piece) in [(10_000_001, "512k"), (4096 * 700, "64k"), (1_000_000, "5000")] {
        fs::write(&source, pattern(len)).unwrap();
        let args = ["--direct", "--json", "--verify", "--streams", "3", "--buffer", piece];
        let (receiver, sender) = transfer(
            None,
            "127.0.0.1",
            &source,
            &destination,
            &["--direct", "--json", "-f"],
            &args,
        );
        let (received, sent) = (receiver.report(), sender.report());
        assert!(fs::read(&destination).unwrap() == pattern(len), "{len} in {piece}");
        if received["notes"] == Value::Array(Vec::new()) {
            let hops = [("socket", "memory"), ("memory", "memory"), ("memory", "file")];
            adds_up(&received, len as u64, &hops);
            assert_eq!(received["hops"][1]["zero_copy"], 0);
        }
        if sent["notes"] == Value::Array(Vec::new()) && piece != "5000" {
            assert_eq!(sent["hops"][0]["copied"], len % 4096, "only the rest of a page is copied");
        }
    }
}

/// Whether a program is on this machine.
fn there_is(program: &str) -> bool {
    let ran = Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.is_ok()
}

#[test]
fn other_programs_send_bare_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    let bytes = pattern(3_000_001);
    fs::write(&source, &bytes).unwrap();
    let programs: Vec<_> = ["socat", "nc"].into_iter().filter(|name| there_is(name)).collect();
    if programs.is_empty() {
        handoff_testbed::skip!("neither socat nor nc is on this machine");
    }
    for program in programs {
        let args = ["--raw", "--force", "tcp-listen://127.0.0.1:0", path(&copy)];
        let receiver = Running::start(&mut cp(&args));
        let address = receiver.address();
        let address = address.strip_prefix("tcp://").unwrap();
        let (host, port) = address.split_once(':').unwrap();
        let mut sender = Command::new(program);
        match program {
            "socat" => sender.args(["-u", "STDIN", &format!("TCP:{address}")]),
            _ => sender.args(["-N", host, port]),
        };
        let sent = sender.stdin(fs::File::open(&source).unwrap()).status().unwrap();
        assert!(sent.success(), "{program}: {sent}");
        let ended = receiver.end();
        assert_eq!(ended.code, Some(0), "{program}: {ended:?}");
        assert!(fs::read(&copy).unwrap() == bytes, "{program}");
    }
}
