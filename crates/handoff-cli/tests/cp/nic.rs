//! `cp --nic` on the lab's software NIC.

use std::fs;

use handoff_lab::topology::Pair;
use serde_json::Value;

use crate::session::{Ended, path, pattern, transfer};

fn received_without_a_copy(ended: &Ended, least: u64) -> Value {
    let report = ended.report();
    let hop = &report["hops"][0];
    assert_eq!((&hop["engine"], &hop["copied"]), (&"zcrx".into(), &0.into()), "{report}");
    assert!(hop["zero_copy"].as_u64().is_some_and(|bytes| bytes >= least), "{report}");
    assert_eq!((&hop["unknown"], &report["nic"]["copied"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["nic"]["bytes"], hop["zero_copy"], "{report}");
    report
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
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::fd::AsFd as _;
    use std::process::Command;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use handoff_lab::topology::PairEnd;
    use handoff_sys::tcp;
    use rustix::process::Signal;

    use super::*;
    use crate::session::{PATIENCE, Running, cp};

    /// How the receiving interface is set, by ethtool: rings, channels, table, rules, features.
    fn settings(end: &PairEnd) -> String {
        let device = end.device();
        let ask = |flag: &str| {
            let mut ethtool = Command::new("ethtool");
            ethtool.args([flag, device]);
            let output = end.namespace().attach(&mut ethtool).output().expect("starts");
            assert!(output.status.success(), "ethtool {flag}: {output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        ["-g", "-l", "-x", "-n", "-k"].map(ask).concat()
    }

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
            assert!(hop["copied"].as_u64() < Some(5_000) && hop["unknown"] == 0, "{sent}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
            assert_eq!(settings(&pair.right), before);
        }
    }

    /// The kernel counts for all connections of the queue together, and so does the report.
    #[test]
    fn what_is_copied_of_several_connections_is_known() {
        const LEN: usize = 4_000_001;
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        let device = pair.right.device();
        let fault = format!(
            "mount -t sysfs sysfs /sys && echo 20000 > /sys/class/net/{device}/wire/wrong_queue"
        );
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-euc", &fault]);
        let set = pair.right.namespace().attach(&mut shell).status().expect("starts");
        assert!(set.success(), "{set}");
        let (left, right) = (pair.left.namespace(), pair.right.namespace());
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let receiver = ["--json", "--nic", device, "--streams", "4"];
        let host = pair.right.v4().to_string();
        let (received, _) =
            transfer(Some((left, right)), &host, &source, &copy, &receiver, &["--streams", "4"]);
        let report = received.report();
        let (hop, nic) = (&report["hops"][0], &report["nic"]);
        assert!(hop["copied"].as_u64() > Some(1_000), "{report}");
        assert_eq!((&hop["unknown"], &hop["copied"]), (&0.into(), &nic["copied"]), "{report}");
        let all = hop["copied"].as_u64().zip(hop["zero_copy"].as_u64()).map(|(a, b)| a + b);
        assert_eq!(all, nic["bytes"].as_u64(), "{report}");
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
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
                assert!(begin.elapsed() < PATIENCE, "the packets do not arrive");
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
        assert_eq!(receiver.end().code, Some(130));
        assert_eq!(settings(&pair.right), before);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let pair = Pair::new(1_500).expect("a pair of interfaces");
        let mut receiver = cp(&["tcp-listen://:0", "copy", "--nic", pair.right.device()]);
        Running::start(pair.right.namespace().attach(&mut receiver)).end().says(3, "split");
        let mut receiver = cp(&["tcp-listen://:0", "copy", "--nic", "missing0"]);
        let ended = Running::start(pair.right.namespace().attach(&mut receiver)).end();
        assert_ne!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stderr.contains("missing0"), "{ended:?}");
        let mut sender = cp(&["/dev/zero", "tcp://127.0.0.1:1", "--nic", "lo"]);
        Running::start(&mut sender).end().says(2, "--nic needs a connection as SRC");
    }
}
