//! Running the command: its output, its end, and what it leaves behind.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use handoff_lab::topology::Namespace;

/// Longer than anything here takes, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Whether tests are to run in their long form.
pub(crate) fn is_long() -> bool {
    std::env::var_os("HANDOFF_SOAK").is_some()
}

/// Bytes that differ from place to place, and do not repeat with pages or pieces.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The command, with standard input closed.
pub(crate) fn cp<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.arg("cp").args(args).stdin(Stdio::null());
    command
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    /// The report of `--json`.
    pub(crate) fn report(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_slice(&self.stdout).expect("one JSON value")
    }

    /// The message, which is one line, and the exit code.
    pub(crate) fn says(&self, code: i32, words: &str) {
        let message: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| !line.starts_with("handoff: listening") && !line.contains(": note: "))
            .collect();
        assert_eq!((self.code, message.len()), (Some(code), 1), "{self:?}");
        assert!(message[0].starts_with("handoff: ") && message[0].contains(words), "{self:?}");
        assert!(self.stdout.is_empty(), "{self:?}");
    }
}

/// A run under way.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<String>,
    lines: Receiver<String>,
}

impl Running {
    /// Starts the command; its output is gathered meanwhile.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let (tell, lines) = mpsc::channel();
        let stdout = thread::spawn(move || {
            let mut all = Vec::new();
            out.read_to_end(&mut all).expect("a pipe can be read");
            all
        });
        let stderr = thread::spawn(move || {
            let mut all = String::new();
            for line in BufReader::new(err).lines() {
                let line = line.expect("UTF-8");
                all.push_str(&line);
                all.push('\n');
                // Nobody waits for further lines when this fails.
                let _ = tell.send(line);
            }
            all
        });
        Self { child, stdout, stderr, lines }
    }

    /// The address that it listens on, once it does.
    pub(crate) fn address(&self) -> String {
        let line = self.line("handoff: listening on ");
        line.rsplit(' ').next().expect("has a last word").to_owned()
    }

    /// Waits for a line on stderr with these words.
    pub(crate) fn line(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it does not say {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits until it has set up what a signal does.
    pub(crate) fn handles(&self, signal: rustix::process::Signal) {
        let table = format!("/proc/{}/status", self.child.id());
        let caught = || {
            let status = std::fs::read_to_string(&table).expect("it runs");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = mask.expect("the kernel tells which signals are caught").trim();
            let mask = u64::from_str_radix(mask, 16).expect("a number");
            mask & (1 << (signal.as_raw() - 1)) != 0
        };
        let begin = Instant::now();
        while !caught() {
            assert!(begin.elapsed() < PATIENCE, "it handles no {signal:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let status = wait(&mut self.child);
        Ended {
            code: status.code(),
            stdout: self.stdout.join().expect("gathered"),
            stderr: self.stderr.join().expect("gathered"),
        }
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    let patience = if is_long() { PATIENCE * 30 } else { PATIENCE };
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if begin.elapsed() > patience {
            child.kill().expect("a child can be killed");
            panic!("it hangs");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the command to its end.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ended {
    Running::start(&mut cp(args)).end()
}

/// Sends `source` to `destination`; the receiver listens on `host`, each in its namespace. The ends
/// of receiver and sender.
pub(crate) fn transfer(
    namespaces: Option<(&Namespace, &Namespace)>,
    host: &str,
    source: &Path,
    destination: &Path,
    receiver_args: &[&str],
    sender_args: &[&str],
) -> (Ended, Ended) {
    let within = |command: &mut Command, namespace: Option<&Namespace>| {
        if let Some(namespace) = namespace {
            namespace.attach(command);
        }
    };
    let listen = format!("tcp-listen://{host}:0");
    let mut receiver = cp(&[&listen, path(destination)]);
    receiver.args(receiver_args);
    within(&mut receiver, namespaces.map(|(_, there)| there));
    let receiver = Running::start(&mut receiver);
    let mut sender = cp(&[path(source), &receiver.address()]);
    sender.args(sender_args);
    within(&mut sender, namespaces.map(|(here, _)| here));
    let sender = Running::start(&mut sender).end();
    (receiver.end(), sender)
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("a path of a test is text")
}

/// Names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}
