//! `handoff bench recv` on two hosts: one that receives on a NIC, and one that sends.

use std::ops::Deref;
use std::process::Command;

use handoff_testbed::running::{Ended, Running};
use serde_json::Value;

/// One side at work, which has said its first line.
pub(crate) struct Side {
    running: Running,
    first: String,
}

impl Deref for Side {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

/// The command with these words, to be started on the host that it is for.
pub(crate) fn recv(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"));
    command.args(["bench", "recv", "--json"]).args(words);
    command
}

impl Side {
    /// Returns once it has said something.
    pub(crate) fn start(mut command: Command) -> Self {
        let running = Running::start(&mut command);
        Self { first: running.line(""), running }
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

    pub(crate) fn end(self) -> Ended {
        self.running.end()
    }
}

/// The rows of the report.
#[track_caller]
pub(crate) fn rows(ended: &Ended) -> Vec<Value> {
    // Says why a row lacks a figure, should the test fail.
    eprint!("{}", ended.stderr);
    ended.json()["rows"].as_array().expect("rows").clone()
}

/// Another program that receives, for `--peer`.
pub(crate) fn theirs() -> String {
    let this = std::env::current_exe().expect("this program");
    let fixture = "--exact --ignored --nocapture two_hosts::fixture::receives";
    format!("theirs=PORT={{port}} exec '{}' {fixture}", this.display())
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
