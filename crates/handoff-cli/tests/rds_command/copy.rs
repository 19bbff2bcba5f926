//! Both sides of a copy by messages, each in its namespace, and what they say.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use handoff_testbed::running::{Running, TIMEOUT};
use handoff_testbed::{Pair, PairEnd};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Bytes of which no two pages are the same.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7) ^ (at / 4093) ^ (at >> 16)) as u8).collect()
}

/// A directory with a source of so many bytes; the copy goes beside it.
pub(crate) struct Files {
    directory: TempDir,
}

impl Files {
    pub(crate) fn new(len: usize) -> Self {
        let files = Self { directory: tempfile::tempdir().expect("a directory") };
        fs::write(files.source(), pattern(len)).expect("room");
        files
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    pub(crate) fn copy(&self) -> PathBuf {
        self.directory.path().join("copy")
    }

    /// Names of all files there.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn cp<S: AsRef<std::ffi::OsStr>>(end: &PairEnd, arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    end.namespace().attach(command.arg("cp").arg("--json").args(arguments));
    command.stdin(Stdio::null());
    command
}

/// A receiver at port 4000 of this end, once it waits.
pub(crate) fn receiver(end: &PairEnd, to: &Path, more: &[&str]) -> Running {
    let from = format!("rds://{}:4000", end.v4());
    let mut command = cp(end, &[from.as_ref(), to.as_os_str()]);
    let running = Running::start(command.args(more));
    running.line("listening on rds://");
    running
}

pub(crate) fn sender(end: &PairEnd, from: &Path, to: &PairEnd, more: &[&str]) -> Running {
    let to = format!("rds://{}:4000", to.v4());
    let mut command = cp(end, &[from.as_os_str(), to.as_ref()]);
    Running::start(command.args(more))
}

/// A sender whose source does not end.
pub(crate) struct Endless {
    pub(crate) running: Running,
    _source: OwnedFd,
}

impl Endless {
    /// Returns once the transfer is under way.
    pub(crate) fn start(from: &PairEnd, to: &PairEnd, more: &[&str]) -> Self {
        let (theirs, ours) = rustix::pipe::pipe().expect("a pipe");
        rustix::io::write(&ours, b"beginning").expect("room");
        let seen = theirs.try_clone().expect("once more");
        let to = format!("rds://{}:4000", to.v4());
        let running = Running::start(cp(from, &["-", &to]).args(more).stdin(theirs));
        let begin = Instant::now();
        // It reads only when the receiver has answered.
        while rustix::io::ioctl_fionread(&seen).expect("tells") > 0 {
            assert!(begin.elapsed() < TIMEOUT, "nothing is read");
            std::thread::sleep(Duration::from_millis(2));
        }
        Self { running, _source: ours }
    }
}

/// Copies so many bytes from one end to the other, and compares them; both reports.
pub(crate) fn copy(from: &PairEnd, to: &PairEnd, len: usize, more: &[&str]) -> [Value; 2] {
    copy_between(from, to, len, [more, more])
}

/// As [`copy`], the sender and the receiver each with arguments of its own.
pub(crate) fn copy_between(
    from: &PairEnd,
    to: &PairEnd,
    len: usize,
    [sending, receiving]: [&[&str]; 2],
) -> [Value; 2] {
    let files = Files::new(len);
    let receiver = receiver(to, &files.copy(), receiving);
    let sent = sender(from, &files.source(), to, sending).end();
    let received = receiver.end();
    let reports = [sent.report(), received.report()];
    assert!(fs::read(files.copy()).expect("is there") == pattern(len), "the same bytes");
    for report in &reports {
        assert_eq!(report["bytes"], len, "{report}");
        assert!(report["checksum"].is_string() && report["verified"].is_string(), "{report}");
    }
    assert_eq!(reports[0]["checksum"], reports[1]["checksum"]);
    reports
}

/// Whom `--from` does not name sends nothing; where it names nobody, there is a warning.
pub(crate) fn receives_only_from_those_named(pair: &Pair, engine: &[&str]) {
    let files = Files::new(100);
    let own = pair.left.v4().to_string();
    let warning = format!("anyone who reaches {}:4000 may send", pair.right.v4());
    let refusal = format!("turned a connection from {own}");
    for (named, lets_in) in [(None, true), (Some("192.0.2.0/24"), false), (Some(&*own), true)] {
        let mut receives = [engine, &["--force"]].concat();
        receives.extend(named.into_iter().flat_map(|named| ["--from", named]));
        let receiver = receiver(&pair.right, &files.copy(), &receives);
        let timeout = ["--connect-timeout", if lets_in { "60" } else { "1" }];
        let sends = [engine, &timeout].concat();
        let sent = sender(&pair.left, &files.source(), &pair.right, &sends).end();
        assert_eq!(sent.code, Some(i32::from(!lets_in)), "{sent:?}");
        if !lets_in {
            receiver.signal(Signal::TERM);
        }
        let received = receiver.end();
        let reported = [&warning, &refusal].map(|line| received.stderr.contains(line));
        assert_eq!(reported, [named.is_none(), !lets_in], "{received:?}");
    }
}
