//! `cp --nic` in a container, on queues that `handoff nic lease` has leased from a card.

mod guest {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use handoff_testbed::running::Running;
    use handoff_testbed::{Namespace, Pair};
    use rustix::process::Signal;
    use serde_json::Value;

    use crate::session::{cp, path, pattern};

    /// A host with a card, a container on it, and another host that knows the way to the container.
    struct Testbed {
        pair: Pair,
        container: Namespace,
        /// Lives in the container, so that it has a number to be found by.
        inside: std::process::Child,
    }

    const V4: &str = "10.99.7.2";
    const V6: &str = "fd00:99:7::2";

    impl Testbed {
        fn new(mtu: u32) -> Self {
            let pair = Pair::wire(mtu).expect("a pair of NICs");
            let container = Namespace::new().expect("a namespace");
            let mut sleep = Command::new("sleep");
            let inside = container.attach(sleep.arg("600")).spawn().expect("starts");
            let testbed = Self { pair, container, inside };
            testbed.ip(&["route", "add", V4, "via", &testbed.pair.right.v4().to_string()]);
            testbed.ip(&["-6", "route", "add", V6, "via", &testbed.pair.right.v6().to_string()]);
            testbed
        }

        /// On the other host.
        fn ip(&self, arguments: &[&str]) {
            let mut ip = Command::new("ip");
            let ip = self.pair.left.namespace().attach(ip.args(arguments));
            let output = ip.output().expect("starts");
            assert!(output.status.success(), "{output:?}");
        }

        /// What `handoff nic` prints on the card's host.
        fn nic(&self, arguments: &[&str]) -> Value {
            let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
            command.args(["nic", "--json"]).args(arguments);
            let command = self.pair.right.namespace().attach(&mut command);
            let output = command.output().expect("starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {errors}");
            serde_json::from_slice(&output.stdout).expect("one JSON value")
        }

        /// Sends `source` from the other host to `copy` in the container, and returns the receiver's report.
        fn transfer(&self, host: &str, source: &Path, copy: &Path, streams: &str) -> Value {
            let listen = format!("tcp-listen://{host}");
            let mut receiver = cp(&[&listen, path(copy), "--json", "--force", "--nic", "nk0"]);
            // First words come by the queue, and what follows to whichever thread.
            receiver.args(["--threads", "2"]);
            let receiver = Running::start(self.container.attach(&mut receiver));
            let mut sender = cp(&[path(source), &receiver.address(), "--verify"]);
            let sender = self.pair.left.namespace().attach(sender.args(["--streams", streams]));
            let sender = Running::start(sender).end();
            let receiver = receiver.end();
            assert_eq!(sender.code, Some(0), "{}{}", sender.stderr, receiver.stderr);
            receiver.report()
        }
    }

    impl Drop for Testbed {
        fn drop(&mut self) {
            self.inside.kill().expect("lives");
            self.inside.wait().expect("ends");
        }
    }

    /// By the word of the command and of the kernel; the bytes that came, frames included.
    fn without_a_copy(report: &Value, least: usize) -> u64 {
        let hop = &report["hops"][0];
        assert_eq!((&hop["engine"], &hop["copied"]), (&"zcrx".into(), &0.into()), "{report}");
        assert_eq!((&hop["unknown"], &report["nic"]["copied"]), (&0.into(), &0.into()), "{report}");
        let received = hop["zero_copy"].as_u64().expect("a number");
        assert!(received >= least as u64, "{report}");
        received
    }

    #[test]
    fn a_container_receives_a_file_on_a_leased_queue_without_a_copy() {
        const LEN: usize = 4_000_001;
        let testbed = Testbed::new(1_500);
        let device = testbed.pair.right.device();
        let to = testbed.inside.id().to_string();
        let addresses = ["--address", V4, "--address", V6];
        let leased = testbed.nic(&[&["lease", device, "--to", &to][..], &addresses].concat());
        assert_eq!(leased["device_queues"], serde_json::json!([1]), "{leased}");
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        for (host, streams) in [(V4.to_owned(), "1"), (format!("[{V6}]"), "3")] {
            let moved = testbed.pair.right.dma_bytes().expect("counts");
            let report = testbed.transfer(&format!("{host}:0"), &source, &copy, streams);
            let received = without_a_copy(&report, LEN);
            // The card has moved them, by its own count.
            let moved = testbed.pair.right.dma_bytes().expect("counts") - moved;
            assert!(moved >= received, "{moved} bytes by the card: {report}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        }
        let mut receiver = cp(&["tcp-listen://:0", path(&copy), "--nic", "nk0", "--queues", "2"]);
        let refused = Running::start(testbed.container.attach(receiver.arg("--force"))).end();
        refused.says(3, "receive from one (--queues 1)");
        let undone = testbed.nic(&["restore", device]);
        assert_eq!(undone[0]["left"], serde_json::json!([]), "{undone}");
    }

    /// As of a container that has a network already: its own address, by the card from now on.
    #[test]
    fn the_address_that_a_container_has_is_leased_unless_another_is_named() {
        const LEN: usize = 1_000_001;
        let testbed = Testbed::new(1_500);
        let device = testbed.pair.right.device();
        let to = testbed.inside.id().to_string();
        let mut ip = Command::new("ip");
        let ip = testbed.container.attach(ip.args(["address", "add", V4, "dev", "lo"]));
        assert!(ip.status().expect("starts").success());
        let back = format!("{}/32", testbed.pair.left.v4());
        let leased = testbed.nic(&["lease", device, "--to", &to, "--route", &back]);
        let pair =
            &leased["steps"].as_array().expect("a list").iter().rev().nth(1).expect("a step");
        assert_eq!(pair["change"]["pair"]["addresses"], serde_json::json!([V4]), "{leased}");
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let report = testbed.transfer(&format!("{V4}:0"), &source, &copy, "1");
        without_a_copy(&report, LEN);
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        testbed.nic(&["restore", device]);
    }

    /// A port that is not led to the queue is received as ever, also while the queue is bound.
    #[test]
    fn other_ports_of_the_container_keep_out_of_the_leased_queue() {
        const LEN: usize = 300_001;
        let testbed = Testbed::new(1_500);
        let device = testbed.pair.right.device();
        let to = testbed.inside.id().to_string();
        testbed.nic(&["lease", device, "--to", &to, "--address", V4, "--port", "7070"]);
        let directory = tempfile::tempdir().expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        let mut bound = cp(&[&format!("tcp-listen://{V4}:7070"), "/dev/null", "--nic", "nk0"]);
        let bound = Running::start(testbed.container.attach(&mut bound));
        bound.address();
        let mut plain = cp(&[&format!("tcp-listen://{V4}:0"), path(&copy)]);
        let plain = Running::start(testbed.container.attach(&mut plain));
        let mut sender = cp(&[path(&source), &plain.address(), "--verify"]);
        let sender = Running::start(testbed.pair.left.namespace().attach(&mut sender)).end();
        let plain = plain.end();
        assert_eq!((sender.code, plain.code), (Some(0), Some(0)), "{sender:?}{plain:?}");
        assert!(fs::read(&copy).expect("is there") == pattern(LEN));

        let mut second = cp(&["tcp-listen://:0", path(&copy), "--force", "--nic", "nk0"]);
        let second = Running::start(testbed.container.attach(&mut second)).end();
        second.says(3, "all queues that it has leased are bound by programs");

        // Whoever has it bound does not keep the host from taking it back.
        let undone = testbed.nic(&["restore", device]);
        assert_eq!(undone[0]["left"], serde_json::json!([]), "{undone}");
        assert_eq!(testbed.nic(&["show", device])["queues"][3]["bound"], Value::Null);
        bound.signal(Signal::INT);
        assert_eq!(bound.end().code, Some(130));
    }
}
