//! Crowds of connections that mean no good, while one that does is served.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use handoff_cp::wire::{Hello, MAGIC};
use handoff_testbed::running::Running;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use crate::hostile;
use crate::session::{cp, names, path, pattern, run};
use crate::strangers::{Crowd, KINDS, Protocol, Visited};

/// A page for the first words of each, and what keeps them.
const KIB_OF_A_STRANGER: u64 = 16;

/// --buffer times --depth, and the code that the transfer is the first to run.
const KIB_OF_THE_TRANSFER: u64 = (4 + 6) << 10;

pub(crate) const PROTOCOL: Protocol = Protocol { begin: &MAGIC, huge, asks };

/// A hello of more than there is room for.
fn huge(number: usize) -> Vec<u8> {
    let hello = Hello {
        sends: true,
        verifies: false,
        streams: 1,
        stream: 0,
        transfer: number as u128,
        length: Some(i64::MAX as u64),
        sparse: number.is_multiple_of(2),
        preserves: true,
        hears_work: true,
    };
    hello.encode().to_vec()
}

/// A hello of who wants to receive, from whom this receiver should, too.
fn asks(number: usize) -> Vec<u8> {
    let hello = Hello { sends: false, transfer: number as u128, ..hostile::hello(1, 0) };
    hello.encode().to_vec()
}

#[test]
fn a_receiver_serves_its_sender_among_strangers() {
    for (kind, streams) in KINDS.into_iter().flat_map(|kind| [(kind, 1), (kind, 3)]) {
        let directory = tempfile::tempdir().unwrap();
        let (copy, count) = (directory.path().join("copy"), streams.to_string());
        let args =
            ["--max-size", "1g", "--streams", &count, "tcp-listen://127.0.0.1:0", path(&copy)];
        let receiver = Running::start(&mut cp(&args));
        let address = receiver.address();
        let visited = Visited::new(receiver.pid());
        let mut crowd = Crowd::new(kind, PROTOCOL, |_| {
            TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap()
        });
        let mut sender = cp(&["--verify", "--streams", &count, "-", &address]);
        let mut sender = Running::start(sender.stdin(Stdio::piped()));
        let mut input = sender.input();
        let bytes = pattern(3_000_000);
        // More than is on the way: the receiver takes it.
        input.write_all(&bytes).unwrap();
        crowd.go_on();
        // It listens no more, so strangers have nothing of it; each stream has two descriptors, and each thread
        // that receives some of its own.
        visited.gives_back_descriptors(Some(&mut crowd), 16);
        visited.assert_kept_memory(kind, KIB_OF_A_STRANGER, KIB_OF_THE_TRANSFER);
        drop(input);
        let (sent, received) = (sender.end(), receiver.end());
        assert_eq!(
            (sent.code, received.code),
            (Some(0), Some(0)),
            "{kind:?}: {sent:?} {received:?}"
        );
        assert!(fs::read(&copy).unwrap() == bytes, "{kind:?}");
        assert_eq!(names(directory.path()), ["copy"]);
        // It listens, and at the end it tells of those of whom nothing was said.
        visited.assert_said_little(&received.stderr, 2);
    }
}

#[test]
fn only_those_who_are_named_may_connect() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let args = ["--from", "127.0.0.7", "tcp-listen://127.0.0.1:0", path(&copy)];
    let receiver = Running::start(&mut cp(&args));
    let sender = Running::start(&mut cp(&["/proc/version", &receiver.address()])).end();
    assert_eq!(sender.code, Some(1), "{sender:?}");
    receiver.signal(Signal::TERM);
    let received = receiver.end();
    assert_eq!(received.code, Some(143), "{received:?}");
    assert!(received.stderr.contains("it is none of those that --from lets in"), "{received:?}");
    for (host, from, warned) in
        [("127.0.0.1", None, false), ("0.0.0.0", None, true), ("0.0.0.0", Some("::/0"), false)]
    {
        let listen = format!("tcp-listen://{host}:0");
        let mut waiting = cp(&[&listen, "/dev/null"]);
        waiting.args(from.map(|from| ["--from", from]).into_iter().flatten());
        let waiting = Running::start(&mut waiting);
        waiting.address();
        waiting.signal(Signal::TERM);
        let ended = waiting.end();
        assert_eq!(ended.code, Some(143), "{ended:?}");
        assert_eq!(ended.stderr.contains("anyone who reaches"), warned, "{ended:?}");
    }
}

#[test]
fn a_sender_is_waited_for_no_longer_when_strangers_come() {
    let wait = |more: &[&str]| {
        let args = ["--connect-timeout", "1", "tcp-listen://127.0.0.1:0", "/dev/null"];
        let waiting = Running::start(&mut cp(&[more, &args].concat()));
        let address = waiting.address().strip_prefix("tcp://").unwrap().to_owned();
        (waiting, address)
    };
    let alone = [&[][..], &["--raw"]].map(wait);
    // They say nothing, or may not connect: one more whenever there is time for it.
    let visited = [&[][..], &["--raw", "--from", "127.0.0.7"]].map(wait);
    let (begin, mut strangers) = (Instant::now(), Vec::new());
    loop {
        let before = strangers.len();
        strangers.extend(visited.iter().filter_map(|(_, it)| TcpStream::connect(it).ok()));
        if strangers.len() == before {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "it waits on");
        thread::sleep(Duration::from_millis(50));
    }
    for (waiting, _) in alone.into_iter().chain(visited) {
        let ended = waiting.end();
        let reported = ended.stderr.contains("nobody connected in time (--connect-timeout)");
        assert!(ended.code == Some(1) && reported, "{ended:?}");
    }
}

#[test]
fn the_oldest_of_too_many_strangers_makes_room() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    // More than a quarter of its descriptors, and more than it keeps waiting in any case.
    for (descriptors, strangers) in [(40, 60), (2_000, 300)] {
        let mut receiver = cp(&["--force", "tcp-listen://127.0.0.1:0", path(&copy)]);
        let most = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
        // SAFETY: it makes one system call.
        unsafe { receiver.pre_exec(move || Ok(setrlimit(Resource::Nofile, most)?)) };
        let receiver = Running::start(&mut receiver);
        let address = receiver.address();
        let connect = |_| TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
        let crowd: Vec<_> = (0..strangers).map(connect).collect();
        let line = receiver.line("it said nothing while others came");
        let oldest = crowd[0].local_addr().unwrap();
        assert!(line.contains(&format!("from {oldest}")), "{line}");
        let (sent, received) = (run(&["/proc/version", &address]), receiver.end());
        assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
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
    let input = sender.input();
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

#[test]
fn who_announces_too_much_is_told_why_and_the_next_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let (long, short) = (directory.path().join("long"), directory.path().join("short"));
    let copy = directory.path().join("copy");
    fs::write(&long, pattern((1 << 20) + 1)).unwrap();
    fs::write(&short, pattern(1 << 20)).unwrap();
    let args = ["--max-size", "1m", "tcp-listen://127.0.0.1:0", path(&copy)];
    let receiver = Running::start(&mut cp(&args));
    let address = receiver.address();
    let why = "1048577 bytes are more than 1048576 (--max-size)";
    for streams in ["1", "3"] {
        let sender = run(&["--streams", streams, path(&long), &address]);
        sender.says(1, &format!("the receiver failed: {why}"));
    }
    assert_eq!(run(&[path(&short), &address]).code, Some(0));
    let received = receiver.end();
    assert!(received.code == Some(0) && received.stderr.contains(why), "{received:?}");
    assert!(fs::read(&copy).unwrap() == pattern(1 << 20));
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
