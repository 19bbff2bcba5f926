//! Running a copy, and what it leaves behind.

use std::path::Path;
use std::process::{Command, Stdio};

use handoff_testbed::Namespace;
use handoff_testbed::running::{Ended, Running};

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
