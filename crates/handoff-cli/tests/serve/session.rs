//! Running the server, and asking it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) as u8).collect()
}

/// A directory of files by these names and lengths.
pub(crate) fn directory(files: &[(&str, usize)]) -> TempDir {
    let place = tempfile::tempdir().expect("a directory");
    for (name, len) in files {
        let path = place.path().join(name);
        fs::create_dir_all(path.parent().expect("a name")).expect("makes");
        fs::write(path, content(*len)).expect("writes");
    }
    place
}

/// A server under way; killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: SocketAddr,
    errors: JoinHandle<String>,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) report: Value,
    pub(crate) errors: String,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(has, _)| *has == name).map(|(_, value)| value)
    }
}

pub(crate) fn command(directory: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.arg("serve").arg(directory).args(options);
    command
}

impl Running {
    /// Starts on a free port of loopback.
    pub(crate) fn start(directory: &Path, options: &[&str]) -> Self {
        let mut command = command(directory, &["--listen", "127.0.0.1:0"]);
        command.args(options);
        Self::start_as(command)
    }

    pub(crate) fn start_as(mut command: Command) -> Self {
        let command = command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("reads");
        let address = line.trim().strip_prefix("handoff: listening on http://");
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().expect("an address");
        let errors = std::thread::spawn(move || {
            let mut text = line;
            errors.read_to_string(&mut text).expect("reads");
            text
        });
        Self { child, address, errors }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("can wait");
        stream
    }

    /// From another address of this machine.
    pub(crate) fn connect_from(&self, source: [u8; 4]) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((source, 0)).into()).expect("binds");
        socket.connect(&self.address.into()).expect("connects");
        socket.set_read_timeout(Some(PATIENCE)).expect("can wait");
        socket.into()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One request of a connection of its own.
    pub(crate) fn ask(&self, request: &str, fields: &str) -> Answer {
        ask(self.connect(), request, fields)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("is there");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let mut stdout = self.child.stdout.take().expect("piped");
        let mut text = String::new();
        stdout.read_to_string(&mut text).expect("reads");
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("can be waited for") {
                break status;
            }
            assert!(begin.elapsed() < PATIENCE, "still running: {text}");
            std::thread::yield_now();
        };
        let errors = std::mem::replace(&mut self.errors, std::thread::spawn(String::new));
        let errors = errors.join().expect("ends");
        let report = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ended { code: status.code(), report, errors }
    }

    /// Its report, after SIGTERM.
    pub(crate) fn stop(self) -> Value {
        self.signal(Signal::TERM);
        let ended = self.end();
        assert_eq!(ended.code, Some(143), "{ended:?}");
        ended.report
    }
}

pub(crate) fn ask(mut stream: TcpStream, request: &str, fields: &str) -> Answer {
    let request = format!("{request} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).expect("sends");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("receives");
    let end = all.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
    let body = all.split_off(end + 4);
    let head = String::from_utf8(all).expect("text");
    Answer { status: head[9..12].parse().expect("a status"), head, body }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, mostly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
