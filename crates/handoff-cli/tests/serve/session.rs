//! Starting the server, and asking it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use handoff_testbed::running::{Ended, Listening};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) fn content(len: usize) -> Vec<u8> {
    handoff_testbed::helpers::bytes_at(0, len)
}

/// A directory of files by these names and lengths, which are not new.
pub(crate) fn directory(files: &[(&str, usize)]) -> TempDir {
    let place = tempfile::tempdir().expect("a directory");
    for (name, len) in files {
        let path = place.path().join(name);
        fs::create_dir_all(path.parent().expect("a name")).expect("makes");
        fs::write(&path, content(*len)).expect("writes");
        let file = File::options().write(true).open(&path).expect("opens");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30)).expect("sets");
    }
    place
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The name is compared as some clients do, by its bytes.
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

/// A server under way.
pub(crate) struct Server(Listening);

impl Deref for Server {
    type Target = Listening;

    fn deref(&self) -> &Listening {
        &self.0
    }
}

impl Server {
    /// Starts on a free port of loopback.
    pub(crate) fn start(directory: &Path, options: &[&str]) -> Self {
        let mut command = command(directory, &["--json", "--listen", "127.0.0.1:0"]);
        command.args(options);
        Self::start_as(command)
    }

    /// Starts a command that serves.
    pub(crate) fn start_as(command: Command) -> Self {
        Self(Listening::start_as(command))
    }

    /// One request of a connection of its own.
    pub(crate) fn ask(&self, request: &str, fields: &str) -> Answer {
        ask(self.connect(), request, fields)
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Ended {
        self.0.end()
    }

    /// Its report, after SIGTERM.
    pub(crate) fn stop(self) -> Value {
        self.signal(Signal::TERM);
        let ended = self.end();
        assert_eq!(ended.code, Some(143), "{ended:?}");
        ended.json()
    }
}

pub(crate) fn ask(stream: TcpStream, request: &str, fields: &str) -> Answer {
    answered(stream, request, fields)
}

/// The answer to a request, on a connection that ends behind it.
pub(crate) fn answered(mut stream: impl Read + Write, request: &str, fields: &str) -> Answer {
    let request = format!("{request} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).expect("sends");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("receives");
    let end = all.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
    let body = all.split_off(end + 4);
    let head = String::from_utf8(all).expect("text");
    Answer { status: head[9..12].parse().expect("a status"), head, body }
}
