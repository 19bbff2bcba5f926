//! A pair of NICs, of which the right one is prepared, and what ethtool says about it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use handoff_nic::{Directory, Error, Flow, Ip, Nic, Plan, Prepared, Undone, Wanted, restore};
use handoff_testbed::Pair;
use handoff_testbed::helpers::eventually;
use tempfile::TempDir;

pub(super) const PORT: u16 = 8000;

pub(super) struct Card {
    pub(super) pair: Pair,
    pub(super) place: TempDir,
}

impl Card {
    pub(super) fn new() -> Self {
        let pair = Pair::wire(1_500).expect("a pair of NICs");
        Self { pair, place: tempfile::tempdir().expect("a directory") }
    }

    pub(super) fn name(&self) -> &'static str {
        self.pair.right.device()
    }

    pub(super) fn directory(&self) -> Directory {
        Directory::at(self.place.path())
    }

    /// Runs on the right host.
    pub(super) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.pair.right.namespace().run(work).expect("enters")
    }

    /// Runs a command there, and returns what it printed.
    #[track_caller]
    pub(super) fn sh(&self, script: &str) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-euc", script]);
        let output = self.pair.right.namespace().attach(&mut shell).output().expect("starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Everything ethtool shows that preparing may change.
    pub(super) fn settings(&self) -> String {
        let name = self.name();
        self.sh(&format!(
            "for what in g l x n; do ethtool -$what {name}; done; ethtool -k {name} | grep '^rx-\\|^ntuple'"
        ))
    }

    pub(super) fn counters(&self) -> BTreeMap<String, u64> {
        self.sh(&format!("ethtool -S {}", self.name()))
            .lines()
            .filter_map(|line| line.trim().split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    pub(super) fn look(&self) -> Nic {
        self.inside(|| Nic::look(self.name())).expect("is there")
    }

    pub(super) fn prepare(&self, plan: &Plan) -> Result<Prepared, Error> {
        self.inside(|| Prepared::new(self.name(), plan, &self.directory()))
    }

    pub(super) fn restore(&self, name: &str) -> Result<Undone, Error> {
        self.inside(|| restore(name, &self.directory()))
    }

    /// No record and no lock is left.
    #[track_caller]
    pub(super) fn nothing_is_written_down(&self) {
        let left: Vec<_> = fs::read_dir(self.place.path()).expect("is there").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Queues for a port of both versions of IP.
pub(super) fn plan(queues: u32) -> Plan {
    let flows = [Ip::V4, Ip::V6].map(|ip| (Flow::port(ip, PORT), 0)).to_vec();
    Plan { queues: Wanted::Count(queues), flows, ..Plan::default() }
}

#[track_caller]
pub(super) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    eventually(what, || {
        std::thread::sleep(Duration::from_millis(20));
        done().then_some(())
    });
}
