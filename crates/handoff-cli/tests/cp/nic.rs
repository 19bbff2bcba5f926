//! `cp --nic` on the lab's software NIC.

use std::fs;
use std::process::Command;

use handoff_testbed::running::Ended;
use handoff_testbed::{Pair, PairEnd};
use serde_json::Value;

use crate::session::{path, pattern, transfer};

pub(crate) fn received_without_a_copy(ended: &Ended, least: u64) -> Value {
    let report = ended.report();
    let hop = &report["hops"][0];
    assert_eq!((&hop["engine"], &hop["copied"]), (&"zcrx".into(), &0.into()), "{report}");
    assert!(hop["zero_copy"].as_u64().is_some_and(|bytes| bytes >= least), "{report}");
    assert_eq!((&hop["unknown"], &report["nic"]["copied"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["nic"]["bytes"], hop["zero_copy"], "{report}");
    report
}

/// How the receiving interface is set, by ethtool: rings, channels, table, rules, features.
pub(crate) fn settings(end: &PairEnd) -> String {
    ["-g", "-l", "-x", "-n", "-k"].map(|flag| end.ethtool(flag, &[]).expect("is told")).concat()
}

mod linux73 {
    use super::*;

    #[test]
    fn the_card_has_less_memory_than_it_may_need() {
        const LEN: usize = 8_000_001;
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        let (left, right) = (pair.left.namespace(), pair.right.namespace());
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let receiver = ["--json", "--nic", pair.right.device(), "--streams", "4"];
        let sender = ["--json", "--verify", "--streams", "4"];
        let host = pair.right.v4().to_string();
        let (received, _) =
            transfer(Some((left, right)), &host, &source, &copy, &receiver, &sender);
        let report = received_without_a_copy(&received, LEN as u64);
        let nic = &report["nic"];
        let number = |key: &str| nic[key].as_u64().expect("a number");
        let steps = nic["growth"].as_array().expect("a list");
        assert!(number("chunks_limit") > 2 * 1_024, "{report}");
        let last = steps.last().map_or(nic["chunks"].clone(), |step| step["chunks"].clone());
        assert_eq!(nic["chunks"], last, "{report}");
        let grew = number("chunks") == number("chunks_limit");
        assert!(!(grew && steps.is_empty()), "it begins with all: {report}");
        assert!(fs::read(path(&copy)).expect("is there") == pattern(LEN));
    }
}

mod guest {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::fd::AsFd as _;
    use std::path::Path;
    use std::process::Stdio;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use handoff_sys::tcp;
    use handoff_testbed::running::{Running, TIMEOUT, is_long};
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use rustix::process::Signal;
    use serde::Deserialize as _;

    use super::*;
    use crate::session::cp;

    #[test]
    fn a_file_goes_over_the_wire_without_a_copy() {
        const LEN: usize = 8_000_001;
        let pair = Pair::wire(4_148).expect("a pair of NICs");
        let (left, right) = (pair.left.namespace(), pair.right.namespace());
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let before = settings(&pair.right);
        let nic = ["--json", "--force", "--nic", pair.right.device()];
        for (host, streams, direct) in [
            (pair.right.v4().to_string(), "1", false),
            (format!("[{}]", pair.right.v6()), "4", true),
        ] {
            let mut receiver = nic.to_vec();
            receiver.extend(["--streams", streams]);
            receiver.extend(direct.then_some("--direct"));
            let sender = ["--json", "--verify", "--engine", "uring-zc", "--streams", streams];
            let (received, sent) =
                transfer(Some((left, right)), &host, &source, &copy, &receiver, &sender);
            let sent = sent.report();
            let received = received_without_a_copy(&received, LEN as u64);
            assert_eq!(received["checksum"], sent["checksum"]);
            // The frames around the payload are copied, and nothing else.
            let hop = &sent["hops"][1];
            assert!(
                hop["copied"].as_u64().is_some_and(|it| it < 5_000) && hop["unknown"] == 0,
                "{sent}"
            );
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
            assert_eq!(settings(&pair.right), before);
        }
    }

    /// ext4 on a disk whose DMA asks for multiples of 4 bytes, unmounted when dropped.
    struct Nvme(tempfile::TempDir);

    impl Nvme {
        fn new(mebibytes: u64) -> Self {
            const DISK: &str = "/dev/disk/by-id/nvme-tests";
            let mut mkfs = Command::new("mkfs.ext4");
            mkfs.args(["-q", "-F", "-O", "^has_journal", DISK, &format!("{mebibytes}M")]);
            let made = mkfs.output().expect("starts");
            assert!(made.status.success(), "{made:?}");
            let directory = tempfile::tempdir().expect("a directory");
            mount(DISK, directory.path(), c"ext4", MountFlags::empty(), None).expect("mounts");
            Self(directory)
        }
    }

    impl Drop for Nvme {
        fn drop(&mut self) {
            unmount(self.0.path(), UnmountFlags::empty()).expect("nobody uses it");
        }
    }

    /// Has the sender's NIC cut frames into packets, or the sender's kernel.
    fn segmentation(pair: &Pair, by_nic: bool) {
        let tso = if by_nic { "on" } else { "off" };
        pair.left.ethtool("-K", &["tso", tso]).expect("is set");
    }

    /// What the receiving side reports, and the meter of it.
    struct Metered {
        report: Value,
        meter: Value,
    }

    impl Metered {
        /// Sends `source` to `copy` over the NICs, and counts what the receiver's kernel copies.
        fn transfer(pair: &Pair, source: &Path, copy: &Path, both: &[&str]) -> Self {
            let listen = format!("tcp-listen://{}:0", pair.right.v4());
            let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
            command.args(["meter", "--json", "--", env!("CARGO_BIN_EXE_handoff"), "cp", "--json"]);
            command.args(["--direct", "--force", "--nic", pair.right.device()]).args(both);
            command.args([&listen, path(copy)]).stdin(Stdio::null());
            let receiver = Running::start(pair.right.namespace().attach(&mut command));
            let mut sender = cp(&[path(source), &receiver.address()]);
            sender.args(both).args(["--engine", "uring-zc"]);
            let sent = Running::start(pair.left.namespace().attach(&mut sender)).end();
            let received = receiver.end();
            assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
            let begin = received.stderr.find("\n{").expect("a report among the lines");
            let mut values = serde_json::Deserializer::from_str(&received.stderr[begin..]);
            let report = Value::deserialize(&mut values).expect("a report");
            let meter = serde_json::from_slice(&received.stdout).expect("the meter's");
            Self { report, meter }
        }

        /// Bytes copied from one place of the receiver's memory to another, by its own word.
        fn staged(&self) -> u64 {
            let hops = self.report["hops"].as_array().expect("hops");
            let is_staging = |hop: &&Value| hop["from"] == "memory" && hop["to"] == "memory";
            hops.iter().filter(is_staging).map(|hop| hop["copied"].as_u64().expect("known")).sum()
        }

        /// Bytes of the last hop.
        fn to_file(&self, how: &str) -> u64 {
            let hops = self.report["hops"].as_array().expect("hops");
            hops.last().expect("a hop")[how].as_u64().expect("known")
        }

        /// What the kernel copied on the way from the NIC to the disk, by the meter's word.
        fn copied_by_kernel(&self) -> u64 {
            const ON_THE_WAY: [&str; 5] =
                ["io_zcrx_", "io_recvzc", "io_write", "tcp_recvmsg", "__x64_sys_pwrite"];
            let places = self.meter["places"].as_array().expect("places");
            // It has written its report, if nothing else.
            assert!(!places.is_empty(), "the meter saw nothing: {:#}", self.meter);
            let on_the_way = |place: &&Value| {
                let path = place["path"].as_array().expect("a path");
                path.iter().chain([&place["function"]]).filter_map(Value::as_str).any(|function| {
                    ON_THE_WAY.iter().any(|beginning| function.starts_with(beginning))
                })
            };
            places.iter().filter(on_the_way).map(|it| it["bytes"].as_u64().expect("a number")).sum()
        }
    }

    /// Files of so many blocks of 8 MiB, which all differ.
    struct Blocks(Vec<u8>, usize);

    impl Blocks {
        const LEN: usize = 8 << 20;
        const APART: usize = 1_237;

        fn new(count: usize) -> Self {
            Self(pattern(Self::LEN + count * Self::APART), count)
        }

        fn all(&self) -> impl Iterator<Item = &[u8]> {
            (0..self.1).map(|at| &self.0[at * Self::APART..][..Self::LEN])
        }

        fn write(&self, path: &Path) {
            let mut file = fs::File::create(path).expect("makes");
            self.all().for_each(|block| file.write_all(block).expect("writes"));
        }

        fn are(&self, path: &Path) -> bool {
            let mut file = fs::File::open(path).expect("is there");
            let mut there = vec![0; Self::LEN];
            let same = |block| file.read_exact(&mut there).is_ok() && there == block;
            self.all().all(same) && file.metadata().expect("is a file").len() == self.len()
        }

        fn len(&self) -> u64 {
            (self.1 * Self::LEN) as u64
        }
    }

    /// A file of 1 GiB in its long form.
    #[test]
    fn packets_fill_the_blocks_of_a_disk_and_nobody_copies() {
        let long = is_long();
        let blocks = Blocks::new(if long { 128 } else { 1 });
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        let disk = Nvme::new(if long { 1_200 } else { 64 });
        // The guest has little memory.
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (source, copy) = (directory.path().join("source"), disk.0.path().join("copy"));
        blocks.write(&source);
        for both in [&["--raw"][..], &["--verify"], &["--streams", "3"]] {
            // Frames of the sender that arrive as one, or packets.
            segmentation(&pair, both[0] == "--raw");
            let done = Metered::transfer(&pair, &source, &copy, both);
            let report = &done.report;
            assert_eq!((&report["hops"][0]["engine"]), &"zcrx", "{report}");
            assert_eq!((&report["hops"][0]["copied"], done.staged()), (&0.into(), 0), "{report}");
            assert_eq!(done.to_file("zero_copy"), blocks.len(), "{report}");
            assert_eq!(done.to_file("copied"), 0, "{report}");
            // What the two programs tell each other first.
            assert!(done.copied_by_kernel() < 4_096, "{:#}", done.meter);
            assert!(blocks.are(&copy), "what is on the disk differs");
            fs::remove_file(&copy).expect("is there");
        }
    }

    #[test]
    fn what_lies_at_odd_places_is_copied_and_counted() {
        const LEN: u64 = (1 << 20) + 4_001;
        let disk = Nvme::new(64);
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), disk.0.path().join("copy"));
        fs::write(&source, pattern(LEN as usize)).expect("writes");
        // Only the end does not fill a page; or each packet's payload is of odd length.
        for (mtu, staged) in [(1_500, LEN % 4_096), (1_501, LEN)] {
            let pair = Pair::wire(mtu).expect("a pair of NICs");
            segmentation(&pair, false);
            let done = Metered::transfer(&pair, &source, &copy, &["--raw"]);
            let report = &done.report;
            assert_eq!(done.staged(), staged, "{report}");
            assert_eq!(done.to_file("zero_copy"), LEN - LEN % 4_096, "{report}");
            assert_eq!(done.to_file("copied"), LEN % 4_096, "{report}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN as usize));
        }
    }

    /// So many packets in a million come to the queue behind the one that they belong to.
    fn misroute(pair: &Pair, packets: u32) {
        let device = pair.right.device();
        let fault = format!("echo {packets} > /sys/class/net/{device}/wire/wrong_queue");
        pair.right.shell(&fault).unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// A rule of somebody's, a hash or a fault of the card leads what the card was not asked to lead.
    #[test]
    fn first_words_may_come_by_the_queue() {
        const LEN: usize = 100_001;
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        // What no rule leads comes to the other of two queues, which is the bound one.
        pair.right.ethtool("-L", &["combined", "2"]).expect("is set");
        misroute(&pair, 1_000_000);
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let namespaces = Some((pair.left.namespace(), pair.right.namespace()));
        let receiver = ["--json", "--nic", pair.right.device(), "--streams", "2"];
        let host = pair.right.v4().to_string();
        let sender = ["--verify", "--streams", "2"];
        let (received, _) = transfer(namespaces, &host, &source, &copy, &receiver, &sender);
        let report = received.report();
        assert_eq!((&report["bytes"], &report["streams"]), (&LEN.into(), &2.into()), "{report}");
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        fs::remove_file(&copy).expect("is there");
        // The receiver connects.
        let listen = format!("tcp-listen://{}:0", pair.left.v4());
        let mut sender = cp(&[path(&source), &listen, "--json"]);
        let sender = Running::start(pair.left.namespace().attach(&mut sender));
        let address = sender.address();
        let mut receiver = cp(&[&address, path(&copy), "--nic", pair.right.device()]);
        let received = Running::start(pair.right.namespace().attach(&mut receiver)).end();
        assert_eq!((sender.end().code, received.code), (Some(0), Some(0)), "{}", received.stderr);
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
    }

    /// The kernel counts for all connections of the queue together, and so does the report. It may lose some of the
    /// count for several threads, so the rest is unknown then.
    #[test]
    fn what_is_copied_of_several_connections_is_known() {
        const LEN: usize = 4_000_001;
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        misroute(&pair, 20_000);
        // As many packets as there can be, so that some surely go there.
        segmentation(&pair, false);
        let (left, right) = (pair.left.namespace(), pair.right.namespace());
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let host = pair.right.v4().to_string();
        let nic = ["--json", "--force", "--nic", pair.right.device(), "--streams", "4"];
        for (threads, rest) in [("1", "zero_copy"), ("2", "unknown")] {
            let receiver = [&nic[..], &["--threads", threads]].concat();
            let sender = ["--streams", "4"];
            let (received, _) =
                transfer(Some((left, right)), &host, &source, &copy, &receiver, &sender);
            let report = received.report();
            let (hop, nic) = (&report["hops"][0], &report["nic"]);
            assert!(hop["copied"].as_u64() > Some(1_000), "{report}");
            assert_eq!(hop["copied"], nic["copied"], "{report}");
            let all = hop["copied"].as_u64().zip(hop[rest].as_u64()).map(|(a, b)| a + b);
            assert_eq!(all, nic["bytes"].as_u64(), "{report}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        }
    }

    #[test]
    fn what_comes_before_the_receiver_looks_is_not_copied() {
        const LEN: usize = 20_000;
        let pair = Pair::wire(4_148).expect("a pair of NICs");
        let directory = tempfile::tempdir().expect("a directory");
        let copy = directory.path().join("copy");
        let listen = format!("tcp-listen://{}:0", pair.right.v4());
        let mut receiver =
            cp(&[&listen, path(&copy), "--raw", "--json", "--nic", pair.right.device()]);
        let receiver = Running::start(pair.right.namespace().attach(&mut receiver));
        let address = receiver.address();
        receiver.signal(Signal::STOP);
        let address = address.strip_prefix("tcp://").expect("of TCP");
        let sent = pair.left.namespace().run(|| {
            let mut stream = TcpStream::connect(address).expect("the kernel answers");
            let acknowledged =
                |stream: &TcpStream| tcp::bytes_acked(stream.as_fd()).expect("tells");
            let all = acknowledged(&stream) + LEN as u64;
            stream.write_all(&pattern(LEN)).expect("there is room");
            let begin = Instant::now();
            while acknowledged(&stream) < all {
                assert!(begin.elapsed() < TIMEOUT, "the packets do not arrive");
                sleep(Duration::from_millis(2));
            }
        });
        sent.expect("runs there");
        receiver.signal(Signal::CONT);
        received_without_a_copy(&receiver.end(), LEN as u64);
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
    }

    #[test]
    fn the_receiver_may_connect() {
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(3_000_000)).expect("writes");
        let listen = format!("tcp-listen://{}:0", pair.left.v4());
        let mut sender = cp(&[path(&source), &listen, "--json"]);
        let sender = Running::start(pair.left.namespace().attach(&mut sender));
        let address = sender.address();
        let mut receiver =
            cp(&[&address, path(&copy), "--json", "--verify", "--nic", pair.right.device()]);
        let received = Running::start(pair.right.namespace().attach(&mut receiver)).end();
        assert_eq!(sender.end().code, Some(0));
        let report = received.report();
        // What came before the rule was there has been copied, and is counted so.
        let hop = &report["hops"][0];
        assert_eq!(hop["engine"], "zcrx", "{report}");
        assert!(hop["zero_copy"].as_u64() > Some(2_000_000), "{report}");
        assert!(fs::read(&copy).expect("is there") == pattern(3_000_000));
    }

    #[test]
    fn a_signal_puts_the_interface_back() {
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        let directory = tempfile::tempdir().expect("a directory");
        let copy = directory.path().join("copy");
        let before = settings(&pair.right);
        let listen = format!("tcp-listen://{}:0", pair.right.v4());
        let mut receiver = cp(&[&listen, path(&copy), "--nic", pair.right.device()]);
        let receiver = Running::start(pair.right.namespace().attach(&mut receiver));
        receiver.address();
        assert!(before.contains("rx-gro-hw: off"), "{before}");
        assert!(settings(&pair.right).contains("rx-gro-hw: on"), "{}", settings(&pair.right));
        receiver.signal(Signal::INT);
        let ended = receiver.end();
        assert_eq!(ended.code, Some(130));
        assert!(!ended.stderr.contains("hardware GRO"), "{ended:?}");
        assert_eq!(settings(&pair.right), before);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let pair = Pair::new(1_500).expect("a pair of interfaces");
        let mut receiver = cp(&["tcp-listen://:0", "copy", "--nic", pair.right.device()]);
        let ended = Running::start(pair.right.namespace().attach(&mut receiver)).end();
        let note = format!("note: {}: its driver has no hardware GRO", pair.right.device());
        assert!(ended.stderr.contains(&note), "{ended:?}");
        ended.says(3, "split");
        let mut receiver = cp(&["tcp-listen://:0", "copy", "--nic", "missing0"]);
        let ended = Running::start(pair.right.namespace().attach(&mut receiver)).end();
        assert_ne!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stderr.contains("missing0"), "{ended:?}");
        let mut sender = cp(&["/dev/zero", "tcp://127.0.0.1:1", "--nic", "lo"]);
        Running::start(&mut sender).end().says(2, "--nic needs a connection as SRC");
    }
}
