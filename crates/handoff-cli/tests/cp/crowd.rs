//! Crowds of connections that mean no good, while one that does is served.

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;

use handoff_cli::cp::wire::{Hello, MAGIC};

use crate::session::{Running, cp, names, path, pattern};

const CROWD: usize = 200;
const KINDS: [&str; 5] = ["silent", "a byte at a time", "random", "huge lengths", "half-open"];
/// Memory of the whole process, in KiB.
const MOST_MEMORY: u64 = 128 << 10;

/// The most memory that a process has had, in KiB.
fn most_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    most.trim().trim_end_matches(" kB").parse().unwrap()
}

fn join(kind: &str, address: &str, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // Who is turned away has its connection ended at any time.
    let _ = match kind {
        "a byte at a time" => stream.write_all(&MAGIC[..1]),
        "random" => stream.write_all(&pattern(1_000 + number)[number..]),
        "huge lengths" => {
            let hello = Hello {
                sends: true,
                verifies: false,
                streams: 1,
                stream: 0,
                transfer: number as u128,
                length: Some(i64::MAX as u64),
                sparse: number.is_multiple_of(2),
                preserves: true,
            };
            stream.write_all(&hello.encode())
        }
        "half-open" => stream.shutdown(Shutdown::Write),
        _ => Ok(()),
    };
    stream
}

#[test]
fn a_receiver_serves_its_sender_among_strangers() {
    for kind in KINDS {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy");
        let args = ["--max-size", "1g", "tcp-listen://127.0.0.1:0", path(&copy)];
        let receiver = Running::start(&mut cp(&args));
        let address = receiver.address();
        let address = address.strip_prefix("tcp://").unwrap();
        let mut crowd: Vec<_> = (0..CROWD).map(|number| join(kind, address, number)).collect();
        let mut sender = cp(&["--verify", "-", &receiver_address(address)]);
        let mut sender = Running::start(sender.stdin(Stdio::piped()));
        let mut input = sender.child.stdin.take().unwrap();
        let bytes = pattern(3_000_000);
        // More than is on the way: the receiver takes it.
        input.write_all(&bytes).unwrap();
        for stream in crowd.iter_mut().filter(|_| kind == "a byte at a time") {
            let _ = stream.write_all(&MAGIC[1..2]);
        }
        let memory = most_memory(receiver.child.id());
        assert!(memory < MOST_MEMORY, "{kind}: {memory} KiB");
        drop(input);
        let (sent, received) = (sender.end(), receiver.end());
        assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{kind}: {sent:?} {received:?}");
        assert!(fs::read(&copy).unwrap() == bytes, "{kind}");
        assert_eq!(names(directory.path()), ["copy"]);
        // One line a second at most, and one at the end.
        let said = received.stderr.lines().filter(|line| line.contains("turned")).count();
        assert!(said < 20, "{kind}: {said} lines");
    }
}

fn receiver_address(address: &str) -> String {
    format!("tcp://{address}")
}

#[test]
fn only_those_who_are_named_may_connect() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let args =
        ["--from", "127.0.0.7", "--connect-timeout", "1", "tcp-listen://127.0.0.1:0", path(&copy)];
    let receiver = Running::start(&mut cp(&args));
    let sender = Running::start(&mut cp(&["/proc/version", &receiver.address()])).end();
    assert_eq!(sender.code, Some(1), "{sender:?}");
    let received = receiver.end();
    assert_eq!(received.code, Some(1), "{received:?}");
    assert!(
        received.stderr.contains("--from") && received.stderr.contains("nobody connected"),
        "{received:?}"
    );
    for (host, from, warned) in
        [("127.0.0.1", None, false), ("0.0.0.0", None, true), ("0.0.0.0", Some("::/0"), false)]
    {
        let listen = format!("tcp-listen://{host}:0");
        let mut waiting = cp(&["--connect-timeout", "0.1", &listen, "/dev/null"]);
        waiting.args(from.map(|from| ["--from", from]).into_iter().flatten());
        let ended = Running::start(&mut waiting).end();
        assert_eq!(ended.stderr.contains("anyone who reaches"), warned, "{ended:?}");
    }
}

#[test]
fn a_sender_that_sends_nothing_or_too_much_is_given_up_on() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let receive = |more: &[&str]| {
        let args = [more, &["tcp-listen://127.0.0.1:0", path(&copy)]].concat();
        Running::start(&mut cp(&args))
    };
    let receiver = receive(&["--idle", "0.3"]);
    let mut sender = cp(&["-", &receiver.address()]);
    let mut sender = Running::start(sender.stdin(Stdio::piped()));
    let input = sender.child.stdin.take();
    receiver.end().says(1, "--idle");
    sender.end().says(1, "--idle");
    drop(input);
    for (raw, direct) in [(false, false), (true, false), (false, true), (true, true)] {
        let raw = if raw { &["--raw"][..] } else { &[] };
        let direct = if direct { &["--direct"][..] } else { &[] };
        let receiver = receive(&[raw, direct, &["--max-size", "1m"]].concat());
        let mut sender = cp(&[raw, &["-", &receiver.address()]].concat());
        let file = directory.path().join("long");
        fs::write(&file, pattern(4 << 20)).unwrap();
        let sender = Running::start(sender.stdin(fs::File::open(&file).unwrap())).end();
        assert!(!raw.is_empty() || sender.code == Some(1), "{sender:?}");
        receiver.end().says(1, "--max-size");
        fs::remove_file(file).unwrap();
    }
    assert!(names(directory.path()).is_empty());
}

/// The writes past the page cache have all chunks of the pool, until somebody takes them.
#[test]
fn a_small_pool_carries_a_file_past_the_page_cache() {
    // A place on a disk: a file system in memory may know no O_DIRECT.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (long, copy) = (directory.path().join("long"), directory.path().join("copy"));
    fs::write(&long, pattern(4 << 20)).unwrap();
    for (buffer, depth) in [("4k", "1"), ("64k", "2"), ("64k", "3")] {
        let listen = ["tcp-listen://127.0.0.1:0", path(&copy)];
        let few = ["--raw", "--direct", "--force", "--buffer", buffer, "--depth", depth];
        let receiver = Running::start(&mut cp(&[&few[..], &listen].concat()));
        let sender = Running::start(&mut cp(&["--raw", path(&long), &receiver.address()]));
        assert_eq!(receiver.end().code, Some(0), "{buffer} {depth}");
        assert_eq!(sender.end().code, Some(0), "{buffer} {depth}");
        assert!(fs::read(&copy).unwrap() == pattern(4 << 20));
    }
}
