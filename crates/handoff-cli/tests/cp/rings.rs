//! Streams of a copy that are received by several threads, each with a ring of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use handoff_cp::wire::{HELLO_LEN, Hello};
use handoff_testbed::running::Running;
use rustix::process::Signal;

use crate::hostile::{data, hello};
use crate::refused::without_io_uring;
use crate::session::{cp, names, path, pattern, run, transfer};

/// Bytes of a stream of [`Peer`].
const STREAM: usize = 250;

/// A sender of our own: connections of one transfer that have said hello.
struct Peer(Vec<TcpStream>);

impl Peer {
    fn greet(address: &str, streams: u16) -> Self {
        let address = address.strip_prefix("tcp://").expect("of TCP");
        let greet = |stream| {
            let mut peer = TcpStream::connect(address).expect("connects");
            let length = Some(u64::from(streams) * STREAM as u64);
            let hello = Hello { length, verifies: false, ..hello(streams, stream) };
            peer.write_all(&hello.encode()).expect("writes");
            peer.read_exact(&mut [0; HELLO_LEN]).expect("is greeted");
            peer
        };
        Self((0..streams).map(greet).collect())
    }

    /// Each stream has its bytes, and no end.
    fn send(&mut self) {
        for (offset, peer) in (0..).step_by(STREAM).zip(&mut self.0) {
            peer.write_all(&data(offset, &[7; STREAM])).expect("writes");
        }
    }

    /// What the receiver tells on each stream in the end.
    fn answers(&mut self) -> Vec<Vec<u8>> {
        let answer = |peer: &mut TcpStream| {
            let mut answer = Vec::new();
            peer.read_to_end(&mut answer).expect("is not reset");
            answer
        };
        self.0.iter_mut().map(answer).collect()
    }
}

/// One of four streams ends midway, while the others wait.
fn cut(receiver: Running, connect: impl FnOnce(&str) -> Peer) {
    let mut peer = connect(&receiver.address());
    peer.send();
    peer.0[2].shutdown(std::net::Shutdown::Write).expect("is connected");
    for answer in peer.answers() {
        assert!(answer.starts_with(&[4, 2]), "each stream is told: {answer:?}");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("ended the connection midway"), "{text}");
    }
    drop(peer);
    receiver.end().says(1, "the sender ended the connection midway");
}

/// The receiver is told to stop while all streams wait.
fn stopped(receiver: Running, connect: impl FnOnce(&str) -> Peer) {
    let mut peer = connect(&receiver.address());
    peer.send();
    receiver.signal(Signal::INT);
    for answer in peer.answers() {
        assert!(String::from_utf8_lossy(&answer).contains("SIGINT"), "{answer:?}");
    }
    drop(peer);
    receiver.end().says(130, "stopped by SIGINT");
}

#[test]
fn streams_are_shared_out() {
    const LEN: usize = 20_000_001;
    let directory = tempfile::tempdir().expect("a directory");
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(LEN)).expect("writes");
    let processors = thread::available_parallelism().expect("is known").get();
    for (options, shares) in [
        (&["--threads", "3", "--direct"][..], &[2, 1, 1][..]),
        (&["--threads", "4", "--verify"], &[1, 1, 1, 1]),
        // One has nothing to do.
        (&["--threads", "5"], &[1, 1, 1, 1]),
        (&["--streams", "2"], if processors > 1 { &[2, 2] } else { &[4] }),
        (&[], &[4]),
    ] {
        let receiver = [&["--json", "--force"], options].concat();
        let sender = ["--json", "--streams", "4"];
        let (received, sent) = transfer(None, "127.0.0.1", &source, &copy, &receiver, &sender);
        let (received, sent) = (received.report(), sent.report());
        assert_eq!(received["threads"], serde_json::json!(shares), "{received}");
        assert_eq!(sent["threads"], serde_json::json!([]), "{sent}");
        assert_eq!((&received["bytes"], &received["streams"]), (&LEN.into(), &4.into()));
        assert_eq!(received["checksum"], sent["checksum"]);
        let hops = received["hops"].as_array().expect("hops");
        let bytes = |hop: usize| {
            let counts = ["zero_copy", "copied", "unknown"].map(|count| &hops[hop][count]);
            counts.iter().map(|count| count.as_u64().expect("a number")).sum::<u64>()
        };
        assert_eq!(bytes(hops.len() - 1), LEN as u64, "{received}");
        assert!(bytes(0) > LEN as u64, "{received}");
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
    }
}

fn receiver(directory: &Path, more: &[&str]) -> Running {
    let copy = directory.join("copy");
    let mut receiver = cp(&["tcp-listen://127.0.0.1:0", path(&copy)]);
    Running::start(receiver.args(more))
}

#[test]
fn a_stream_that_is_cut_ends_all_threads() {
    let directory = tempfile::tempdir().expect("a directory");
    for threads in ["2", "4"] {
        let receiver = receiver(directory.path(), &["--threads", threads]);
        cut(receiver, |address| Peer::greet(address, 4));
        assert!(names(directory.path()).is_empty());
    }
}

/// A connection that is closed with bytes unread is reset, and its sender may not hear why.
#[test]
fn each_thread_hears_its_streams_out() {
    const MORE_THAN_BUFFERS_HOLD: usize = 32 << 20;
    /// The receiver hears them out for as long.
    const LINGER: Duration = Duration::from_secs(2);
    let directory = tempfile::tempdir().expect("a directory");
    let is_read = || {
        let receiver = receiver(directory.path(), &["--threads", "2"]);
        let mut peer = Peer::greet(&receiver.address(), 4);
        peer.send();
        let begin = Instant::now();
        peer.0[2].shutdown(std::net::Shutdown::Write).expect("is connected");
        assert!(peer.answers().iter().all(|answer| answer.starts_with(&[4, 2])));
        let sent = [0, 1].map(|at| peer.0[at].write_all(&vec![7; MORE_THAN_BUFFERS_HOLD]).is_ok());
        let took = begin.elapsed();
        drop(peer);
        receiver.end().says(1, "midway");
        assert!(sent == [true; 2] || took >= LINGER, "after {took:?}: {sent:?}");
        sent == [true; 2]
    };
    // A busy machine may need longer.
    assert!((0..10).any(|_| is_read()), "nothing is read");
}

#[test]
fn a_signal_ends_all_threads() {
    let directory = tempfile::tempdir().expect("a directory");
    let receiver = receiver(directory.path(), &["--threads", "2"]);
    stopped(receiver, |address| Peer::greet(address, 4));
    assert!(names(directory.path()).is_empty());
}

/// Threads that have no ring see the end of the others, too.
#[test]
fn threads_without_io_uring_end_together() {
    let directory = tempfile::tempdir().expect("a directory");
    let receiver = |copy: &Path, more: &[&str]| {
        let mut receiver = cp(&["tcp-listen://127.0.0.1:0", path(copy), "--threads", "2"]);
        Running::start(without_io_uring(receiver.args(more)))
    };
    let copy = directory.path().join("copy");
    cut(receiver(&copy, &[]), |address| Peer::greet(address, 4));
    stopped(receiver(&copy, &[]), |address| Peer::greet(address, 4));
    assert!(names(directory.path()).is_empty());
    let source = directory.path().join("source");
    fs::write(&source, pattern(5_000_001)).expect("writes");
    let receiver = receiver(&copy, &["--json"]);
    run(&[path(&source), &receiver.address(), "--streams", "4"]);
    let report = receiver.end().report();
    assert_eq!(report["threads"], serde_json::json!([2, 2]), "{report}");
    assert_eq!(report["hops"][0]["engine"], "epoll", "{report}");
    assert!(fs::read(&copy).expect("is there") == pattern(5_000_001));
}

/// The thread whose streams stand still is not the one that looks first.
#[test]
fn nothing_moves_on_any_thread() {
    let directory = tempfile::tempdir().expect("a directory");
    let receiver = receiver(directory.path(), &["--threads", "2", "--idle", "0.5"]);
    let mut peer = Peer::greet(&receiver.address(), 2);
    peer.send();
    receiver.end().says(1, "nothing moved for too long (--idle)");
    assert!(names(directory.path()).is_empty());
}

#[test]
fn what_is_too_long_or_in_order_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("source");
    fs::write(&source, pattern(1_000_000)).expect("writes");
    let send = |receiver: Running, from: &str, words: &str| {
        let mut sender = cp(&[from, &receiver.address(), "--streams", "4"]);
        let sender = Running::start(sender.stdin(fs::File::open(&source).expect("is there")));
        receiver.end().says(1, words);
        sender.end().says(1, words);
    };
    // One of unknown length is cut off.
    let receiver = receiver(directory.path(), &["--threads", "2", "--max-size", "300k"]);
    send(receiver, "-", "(--max-size)");
    let mut into_pipe = cp(&["tcp-listen://127.0.0.1:0", "-", "--threads", "4"]);
    send(Running::start(&mut into_pipe), path(&source), "takes its bytes in order");
    assert_eq!(names(directory.path()), ["source"]);
}

mod guest {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::process::{Command, Stdio};

    use handoff_testbed::helpers::eventually;
    use handoff_testbed::running::Ended;
    use handoff_testbed::{Pair, PairEnd};
    use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

    use super::*;
    use crate::nic::{received_without_a_copy, settings};
    use crate::refused::refusing;

    /// Four streams, unless these say it.
    fn streams<'a>(more: &[&'a str]) -> Vec<&'a str> {
        let four = ["--streams", "4"];
        let first = if more.contains(&four[0]) { &[][..] } else { &four };
        [first, more].concat()
    }

    /// Two hosts, and a directory for files.
    struct Testbed {
        pair: Pair,
        directory: tempfile::TempDir,
        before: String,
    }

    impl Testbed {
        fn new(mtu: u32) -> Self {
            let pair = Pair::wire(mtu).expect("a pair of NICs");
            let before = settings(&pair.right);
            Self { pair, directory: tempfile::tempdir().expect("a directory"), before }
        }

        fn receiver(&self, more: &[&str]) -> Running {
            let listen = format!("tcp-listen://{}:0", self.pair.right.v4());
            let mut receiver = cp(&[&listen, path(&self.directory.path().join("copy"))]);
            receiver.args(["--nic", self.pair.right.device()]).args(streams(more));
            Running::start(self.pair.right.namespace().attach(&mut receiver))
        }

        fn peer(&self, address: &str) -> Peer {
            self.pair.left.namespace().run(|| Peer::greet(address, 4)).expect("runs there")
        }

        /// Nothing is left behind.
        fn assert_as_before(&self) {
            assert_eq!(settings(&self.pair.right), self.before);
            assert!(names(self.directory.path()).is_empty());
        }

        /// Sends a file, and returns what the receiver said.
        fn transfer(&self, source: &Path, receiver: &[&str], sender: &[&str]) -> Ended {
            let copy = self.directory.path().join("copy");
            let namespaces = (self.pair.left.namespace(), self.pair.right.namespace());
            let nic = ["--json", "--force", "--nic", self.pair.right.device()];
            let receiver = [&nic[..], &streams(receiver)].concat();
            let sender = [&["--json", "--streams", "4"], sender].concat();
            let host = self.pair.right.v4().to_string();
            let (received, sent) =
                transfer(Some(namespaces), &host, source, &copy, &receiver, &sender);
            let (ours, theirs) = (received.report(), sent.report());
            assert_eq!(ours["checksum"], theirs["checksum"]);
            assert_eq!(settings(&self.pair.right), self.before);
            received
        }
    }

    #[test]
    fn queues_are_shared_by_threads_and_nothing_is_copied() {
        const LEN: usize = 8_000_001;
        let testbed = Testbed::new(4_148);
        let (source, copy) =
            (testbed.directory.path().join("source"), testbed.directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        for (options, shares, queues, shared) in [
            (&["--threads", "2"][..], &[2, 2][..], 1, true),
            (&["--threads", "4", "--queues", "2", "--direct"], &[1, 1, 1, 1], 2, true),
            (&["--threads", "3", "--queues", "2"], &[2, 1, 1], 2, true),
            // Each has its own.
            (&["--queues", "2", "--threads", "2"], &[2, 2], 2, false),
            // The guest has two processors.
            (&[], &[2, 2], 1, true),
            (&["--threads", "1"], &[4], 1, false),
        ] {
            let received = testbed.transfer(&source, options, &["--verify"]);
            let report = received_without_a_copy(&received, LEN as u64);
            assert_eq!(report["threads"], serde_json::json!(shares), "{report}");
            let nic = &report["nic"];
            assert_eq!((&nic["queues"], &nic["shared"]), (&queues.into(), &shared.into()), "{nic}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        }
    }

    /// What a sender says at once comes before there are rules, and may be copied.
    #[test]
    fn a_receiver_that_connects_leads_its_streams_to_the_queues_of_their_threads() {
        const LEN: usize = 8_000_001;
        let testbed = Testbed::new(1_500);
        let (source, copy) =
            (testbed.directory.path().join("source"), testbed.directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let mut sender =
            cp(&[path(&source), &format!("tcp-listen://{}:0", testbed.pair.left.v4()), "--verify"]);
        let sender = Running::start(testbed.pair.left.namespace().attach(&mut sender));
        let mut receiver = cp(&[&sender.address(), path(&copy), "--json", "--streams", "4"]);
        receiver.args(["--nic", testbed.pair.right.device(), "--threads", "4", "--queues", "2"]);
        let received = Running::start(testbed.pair.right.namespace().attach(&mut receiver)).end();
        let report = received.report();
        assert_eq!(sender.end().code, Some(0));
        assert_eq!(report["threads"], serde_json::json!([1, 1, 1, 1]), "{report}");
        assert_eq!(report["nic"]["queues"], 2, "{report}");
        assert!(report["nic"]["bytes"].as_u64() > Some(LEN as u64 / 2), "{report}");
        let counts = ["zero_copy", "copied", "unknown"].map(|it| report["hops"][0][it].as_u64());
        assert!(counts.into_iter().flatten().sum::<u64>() > LEN as u64, "{report}");
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        assert_eq!(settings(&testbed.pair.right), testbed.before);
    }

    /// Threads tell how many connections to expect at least.
    #[test]
    fn there_is_memory_for_a_stream_of_each_thread() {
        const LEN: usize = 1_000_001;
        let testbed = Testbed::new(1_500);
        let source = testbed.directory.path().join("source");
        fs::write(&source, pattern(LEN)).expect("writes");
        let limit = |streams: &'static str| {
            let options = ["--threads", "4", "--queues", "2", "--streams", streams];
            let received = testbed.transfer(&source, &options, &[]);
            let report = received_without_a_copy(&received, LEN as u64);
            report["nic"]["chunks_limit"].as_u64().expect("a number")
        };
        assert_eq!(limit("1"), limit("4"));
    }

    /// Whether nothing is on its way from or to the connections of a host, and nothing is unread.
    fn has_read_all(end: &PairEnd) -> bool {
        const ESTABLISHED: &str = "01";
        let sockets = end.namespace().run(|| fs::read_to_string("/proc/thread-self/net/tcp"));
        let sockets = sockets.expect("enters").expect("lists");
        let mut connections = sockets.lines().skip(1).filter_map(|socket| {
            let mut fields = socket.split_whitespace().skip(3);
            (fields.next() == Some(ESTABLISHED)).then(|| fields.next().expect("has queues"))
        });
        connections.all(|queues| queues == "00000000:00000000")
    }

    #[test]
    fn that_memory_may_run_dry_is_told_once() {
        let testbed = Testbed::new(1_500);
        let receiver = testbed.receiver(&["--streams", "1", "--threads", "2"]);
        let address = receiver.address();
        let many = || Peer::greet(&address, 16);
        let mut peer = testbed.pair.left.namespace().run(many).expect("runs there");
        peer.send();
        receiver.line("may run dry");
        // Another thread would say it before.
        let ends = [&testbed.pair.left, &testbed.pair.right];
        eventually("all is read", || ends.iter().all(|end| has_read_all(end)).then_some(()));
        receiver.signal(Signal::INT);
        peer.answers();
        drop(peer);
        let ended = receiver.end();
        assert_eq!(ended.stderr.matches("may run dry").count(), 1, "{ended:?}");
        testbed.assert_as_before();
    }

    /// As before Linux 7.2.
    #[test]
    fn queues_that_cannot_be_shared_have_one_thread_each() {
        const REGISTER_ZCRX_CTRL: u64 = 36;
        const LEN: usize = 4_000_001;
        let testbed = Testbed::new(1_500);
        let (source, copy) =
            (testbed.directory.path().join("source"), testbed.directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        for (queues, shares) in [("1", &[4][..]), ("2", &[2, 2])] {
            let listen = format!("tcp-listen://{}:0", testbed.pair.right.v4());
            let mut receiver = cp(&["--json", "--force", &listen, path(&copy)]);
            receiver.args(["--nic", testbed.pair.right.device(), "--streams", "4"]);
            receiver.args(["--threads", "4", "--queues", queues]);
            let is_control = SeccompCondition::new(
                1,
                SeccompCmpArgLen::Dword,
                SeccompCmpOp::Eq,
                REGISTER_ZCRX_CTRL,
            );
            let control = SeccompRule::new(vec![is_control.expect("a condition")]);
            let control = vec![control.expect("a rule")];
            let call = libc::SYS_io_uring_register;
            let receiver = refusing(&mut receiver, call, control, libc::EINVAL as u32);
            let receiver = Running::start(testbed.pair.right.namespace().attach(receiver));
            let mut sender = cp(&[path(&source), &receiver.address(), "--streams", "4"]);
            let sent = Running::start(testbed.pair.left.namespace().attach(&mut sender)).end();
            assert_eq!(sent.code, Some(0), "{sent:?}");
            let report = received_without_a_copy(&receiver.end(), LEN as u64);
            assert_eq!(report["threads"], serde_json::json!(shares), "{report}");
            assert_eq!(report["nic"]["shared"], false, "{report}");
            let notes = report["notes"].to_string();
            assert!(notes.contains("one thread for each queue: "), "{report}");
            assert!(notes.contains("can't share an rx queue between rings"), "{report}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
            assert_eq!(settings(&testbed.pair.right), testbed.before);
        }
    }

    #[test]
    fn holes_are_left_out_by_all_threads() {
        const LEN: u64 = 1 << 30;
        let testbed = Testbed::new(1_500);
        let source = testbed.directory.path().join("source");
        let file = File::create_new(&source).expect("makes");
        file.set_len(LEN).expect("sets");
        for part in 0..8 {
            file.write_all_at(&pattern(100_000), part * (LEN / 8)).expect("writes");
        }
        let received = testbed.transfer(&source, &["--threads", "2"], &["--verify"]);
        let report = received_without_a_copy(&received, 8 * 100_000);
        assert!(report["holes"].as_u64() > Some(LEN - (2 << 20)), "{report}");
        assert_eq!(report["threads"], serde_json::json!([2, 2]), "{report}");
        let copy = File::open(testbed.directory.path().join("copy")).expect("is there");
        let status = copy.metadata().expect("is a file");
        assert_eq!(status.len(), LEN);
        assert!(status.blocks() * 512 < 2 << 20, "{} bytes of disk", status.blocks() * 512);
        for part in 0..8 {
            let mut bytes = vec![1; 200_000];
            copy.read_exact_at(&mut bytes, part * (LEN / 8)).expect("reads");
            assert!(bytes[..100_000] == pattern(100_000), "part {part}");
            assert!(bytes[100_000..].iter().all(|byte| *byte == 0), "part {part}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_ends_all_threads_and_puts_the_interface_back() {
        let testbed = Testbed::new(1_500);
        for options in [&["--threads", "2"][..], &["--threads", "4", "--queues", "2"]] {
            cut(testbed.receiver(options), |address| testbed.peer(address));
            testbed.assert_as_before();
        }
    }

    #[test]
    fn a_signal_ends_all_threads_and_puts_the_interface_back() {
        let testbed = Testbed::new(1_500);
        let options = ["--threads", "4", "--queues", "2"];
        stopped(testbed.receiver(&options), |address| testbed.peer(address));
        testbed.assert_as_before();
        // Before there is a sender.
        let receiver = testbed.receiver(&options);
        receiver.address();
        receiver.signal(Signal::TERM);
        receiver.end().says(143, "stopped by SIGTERM");
        testbed.assert_as_before();
    }

    /// A sender that has sent something and waits for more, and what keeps it so.
    fn stalled(testbed: &Testbed, receiver: &Running) -> (Running, std::process::ChildStdin) {
        let mut sender = cp(&["-", &receiver.address(), "--streams", "4"]);
        let sender = sender.stdin(Stdio::piped());
        let mut sender = Running::start(testbed.pair.left.namespace().attach(sender));
        let mut input = sender.input();
        // More than the pipe and the sender's buffers take: the rest is sent by then.
        input.write_all(&pattern(3_000_000)).expect("writes");
        (sender, input)
    }

    #[test]
    fn a_sender_that_is_killed() {
        let testbed = Testbed::new(1_500);
        let receiver = testbed.receiver(&["--threads", "2"]);
        let (sender, _input) = stalled(&testbed, &receiver);
        sender.signal(Signal::KILL);
        assert_eq!(sender.end().code, None);
        let ended = receiver.end();
        ended.says(1, "the sender ended the connection midway, after");
        testbed.assert_as_before();
    }

    #[test]
    fn what_a_killed_receiver_has_set_up_is_restored() {
        let testbed = Testbed::new(1_500);
        let receiver = testbed.receiver(&["--threads", "4", "--queues", "2"]);
        let (sender, _input) = stalled(&testbed, &receiver);
        receiver.signal(Signal::KILL);
        assert_eq!(receiver.end().code, None);
        sender.end().says(1, "the receiver left before it confirmed");
        assert_ne!(settings(&testbed.pair.right), testbed.before);
        let mut restore = Command::new(env!("CARGO_BIN_EXE_handoff"));
        restore.args(["nic", "restore", testbed.pair.right.device()]);
        let restored =
            testbed.pair.right.namespace().attach(&mut restore).output().expect("starts");
        assert!(restored.status.success(), "{restored:?}");
        testbed.assert_as_before();
        // And it can be done again.
        let source = testbed.directory.path().join("source");
        fs::write(&source, pattern(1_000_000)).expect("writes");
        let received = testbed.transfer(&source, &["--threads", "2"], &[]);
        received_without_a_copy(&received, 1_000_000);
    }
}
