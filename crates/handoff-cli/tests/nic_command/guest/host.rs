//! A host with a NIC, and the command on it.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use handoff_testbed::Pair;
use serde_json::Value;

pub(super) struct Host {
    pub(super) pair: Pair,
}

impl Host {
    pub(super) fn new() -> Self {
        Self { pair: Pair::wire(1_500).expect("a pair of NICs") }
    }

    pub(super) fn device(&self) -> &'static str {
        self.pair.right.device()
    }

    /// The command `nic` with these arguments, to be started there.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.arg("nic").args(arguments);
        self.attach(&mut command);
        command
    }

    /// Makes a command start there.
    pub(super) fn attach<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        self.pair.right.namespace().attach(command)
    }

    /// An address of it.
    pub(super) fn address(&self) -> String {
        self.pair.right.v4().to_string()
    }

    pub(super) fn nic(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("handoff starts")
    }

    /// What it prints with `--json`.
    #[track_caller]
    pub(super) fn answer(&self, arguments: &[&str]) -> Value {
        let (flags, command) = match arguments.iter().position(|argument| *argument == "--") {
            Some(at) => arguments.split_at(at),
            None => (arguments, &[][..]),
        };
        let output = self.nic(&[flags, &["--json"], command].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&output.stdout).expect("one JSON value")
    }

    /// The one line that a refusal has, with its exit code.
    #[track_caller]
    pub(super) fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = self.nic(arguments);
        let line = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
        line
    }

    /// All that ethtool shows of what preparing may change.
    #[track_caller]
    pub(super) fn settings(&self) -> String {
        let device = self.device();
        let mut shell = Command::new("sh");
        shell.args(["-euc", &format!("for what in g l x n k; do ethtool -$what {device}; done")]);
        let output = self.pair.right.namespace().attach(&mut shell).output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

/// Waits until the file is there: a command makes it once it runs.
#[track_caller]
pub(super) fn wait_for(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} never came", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Nothing is written down of any interface.
#[track_caller]
pub(super) fn nothing_is_left() {
    let left: Vec<_> = std::fs::read_dir("/run/handoff/nic").into_iter().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
