//! `handoff bench recv` on two hosts: one that receives on a NIC, and one that sends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// One side at work, which has said its first line.
pub(crate) struct Side {
    child: Child,
    first: String,
    errors: BufReader<ChildStderr>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    /// Behind the first line.
    pub(crate) errors: String,
}

/// The command with these words, to be started on the host that it is for.
pub(crate) fn recv(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["bench", "recv", "--json"]).args(words);
    command
}

impl Side {
    /// Returns once it has said something.
    pub(crate) fn start(mut command: Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut errors = BufReader::new(child.stderr.take().expect("is piped"));
        let mut first = String::new();
        errors.read_line(&mut first).expect("UTF-8");
        Self { child, first: first.trim_end().to_owned(), errors }
    }

    pub(crate) fn first(&self) -> &str {
        &self.first
    }

    /// What the one that receives says to be run on the other host.
    #[track_caller]
    pub(crate) fn target(&self) -> &str {
        let told = self.first.split_once("run there: handoff bench recv --send-to ");
        told.unwrap_or_else(|| panic!("{}", self.first)).1
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("lives");
    }

    pub(crate) fn end(mut self) -> Ended {
        let (mut output, mut errors) = (String::new(), String::new());
        let mut stdout = self.child.stdout.take().expect("is piped");
        stdout.read_to_string(&mut output).expect("UTF-8");
        self.errors.read_to_string(&mut errors).expect("UTF-8");
        let code = self.child.wait().expect("ends").code();
        Ended { code, output, errors }
    }
}

impl Ended {
    /// The rows of the report.
    #[track_caller]
    pub(crate) fn rows(&self) -> Vec<Value> {
        // Says why a row lacks a figure, should the test fail.
        eprint!("{}", self.errors);
        let report: Value =
            serde_json::from_str(&self.output).unwrap_or_else(|_| panic!("{self:?}"));
        report["rows"].as_array().expect("rows").clone()
    }
}

/// Another program that receives, for `--peer`.
pub(crate) fn theirs() -> String {
    let this = std::env::current_exe().expect("this program");
    let fixture = "--exact --ignored --nocapture two_hosts::fixture::receives";
    format!("theirs=PORT={{port}} exec {} {fixture}", this.display())
}

mod fixture {
    use std::io::{copy, sink};
    use std::net::TcpListener;
    use std::thread;

    /// The other program: takes connections, and reads all that comes.
    #[test]
    #[ignore = "fixture: receives until it is killed"]
    fn receives() {
        let port = std::env::var("PORT").expect("a port").parse().expect("a number");
        let listener = TcpListener::bind(("0.0.0.0", port)).expect("listens");
        for connection in listener.incoming() {
            let mut connection = connection.expect("accepts");
            thread::spawn(move || copy(&mut connection, &mut sink()));
        }
    }
}
