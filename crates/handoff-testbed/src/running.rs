//! The command under way: what it says, its end, and its address where it listens. All tests of commands that run
//! for a while use these.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::helpers::eventually;

/// Longer than anything here takes, even under emulation.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether tests are to run in their long form.
pub fn is_long() -> bool {
    std::env::var_os("HANDOFF_SOAK").is_some()
}

/// What a run came to.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none where a signal ended it.
    pub code: Option<i32>,
    /// All that it printed.
    pub stdout: Vec<u8>,
    /// All that it said.
    pub stderr: String,
}

impl Ended {
    /// What it printed, which is JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {}", self.stderr))
    }

    /// The same of a run that ended well.
    #[track_caller]
    pub fn report(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.json()
    }

    /// The message, which is one line, and the exit code.
    #[track_caller]
    pub fn says(&self, code: i32, words: &str) {
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

/// Killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run under way; killed when it is dropped.
pub struct Running {
    child: Killed,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<String>,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a command; its output is gathered meanwhile.
    #[allow(clippy::print_stderr, reason = "libtest captures what a test prints")]
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
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
                // For whoever asks why a test failed.
                eprintln!("{line}");
                all.push_str(&line);
                all.push('\n');
                // Nobody waits for further lines when this fails.
                let _ = tell.send(line);
            }
            all
        });
        Self { child: Killed(child), stdout, stderr, lines }
    }

    /// The address that it listens on, once it does.
    pub fn address(&self) -> String {
        let line = self.line("handoff: listening on ");
        line.rsplit(' ').next().expect("has a last word").to_owned()
    }

    /// Waits for a line on stderr with these words.
    #[track_caller]
    pub fn line(&self, words: &str) -> String {
        self.lines(words).pop().expect("ends with it")
    }

    /// The same, with the lines before it.
    #[track_caller]
    pub fn lines(&self, words: &str) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        while seen.last().is_none_or(|line| !line.contains(words)) {
            let line = self.lines.recv_timeout(TIMEOUT);
            seen.push(line.unwrap_or_else(|_| panic!("it does not say {words:?}: {seen:?}")));
        }
        seen
    }

    /// Waits until it has set up what a signal does.
    pub fn handles(&self, signal: Signal) {
        let table = format!("/proc/{}/status", self.pid());
        let caught = || {
            let status = std::fs::read_to_string(&table).expect("it runs");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = mask.expect("the kernel tells which signals are caught").trim();
            let mask = u64::from_str_radix(mask, 16).expect("a number");
            mask & (1 << (signal.as_raw() - 1)) != 0
        };
        let begin = Instant::now();
        while !caught() {
            assert!(begin.elapsed() < TIMEOUT, "it handles no {signal:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Its standard input, which is a pipe.
    pub fn input(&mut self) -> ChildStdin {
        self.child.0.stdin.take().expect("piped")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.0), signal).expect("it runs");
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let status = wait(&mut self.child.0);
        Ended {
            code: status.code(),
            stdout: self.stdout.join().expect("gathered"),
            stderr: self.stderr.join().expect("gathered"),
        }
    }
}

fn wait(child: &mut Child) -> ExitStatus {
    // Some measure for a while before they end.
    let timeout = TIMEOUT * if is_long() { 30 } else { 3 };
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        assert!(begin.elapsed() < timeout, "it hangs");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A run that listens on TCP.
pub struct Listening {
    running: Running,
    /// Where.
    pub address: SocketAddr,
}

impl Deref for Listening {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Listening {
    /// Starts a command, and waits until it listens.
    pub fn start_as(mut command: Command) -> Self {
        let running = Running::start(command.stdin(Stdio::null()));
        let address = running.address();
        let (_, address) = address.split_once("://").expect("an address");
        Self { address: address.parse().expect("an address"), running }
    }

    /// Connects to it.
    pub fn connect(&self) -> TcpStream {
        self.connect_from([0; 4])
    }

    /// The same without waiting until it is connected.
    pub fn begin_to_connect(&self) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_nonblocking(true).expect("sets");
        if let Err(error) = socket.connect(&self.address.into()) {
            assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS), "{error}");
        }
        socket.set_nonblocking(false).expect("sets");
        socket.set_read_timeout(Some(TIMEOUT)).expect("can wait");
        socket.into()
    }

    /// From another address of this machine.
    pub fn connect_from(&self, source: [u8; 4]) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("binds");
        socket.connect(&self.address.into()).expect("connects");
        socket.set_read_timeout(Some(TIMEOUT)).expect("can wait");
        socket.into()
    }

    /// Waits until all connections so far are in its queue: a client is connected a moment before.
    pub fn await_all(&self) {
        const SYN_RECV: &str = "03";
        let port = format!(":{:04X}", self.address.port());
        eventually("all connections have arrived", || {
            let table = std::fs::read_to_string("/proc/net/tcp").expect("there is IPv4");
            let arrives = table.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let to = words.next().is_some_and(|local| local.ends_with(&port));
                to && words.nth(1) == Some(SYN_RECV)
            });
            (!arrives).then_some(())
        });
    }

    /// Waits for its end.
    pub fn end(self) -> Ended {
        self.running.end()
    }
}
