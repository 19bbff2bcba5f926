//! Transfers that end midway: no file appears, and both sides say why.

use std::fs;
use std::io::{ErrorKind, Read as _, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::thread;

use handoff_testbed::helpers::eventually;
use handoff_testbed::running::{Ended, Running};
use rustix::process::Signal;

use crate::session::{cp, names, path, pattern};

/// Bytes of a receiver's copy, which has no name yet.
fn written(receiver: &Running, directory: &Path) -> u64 {
    let open = fs::read_dir(format!("/proc/{}/fd", receiver.pid())).expect("it runs");
    let open = open.map(|file| file.expect("is listed").path());
    // Some are closed meanwhile.
    let is_there = |file: &PathBuf| fs::read_link(file).is_ok_and(|it| it.starts_with(directory));
    let lens = open.filter(is_there).filter_map(|file| Some(fs::metadata(file).ok()?.len()));
    lens.max().unwrap_or(0)
}

/// A transfer that stops for want of more, with everything so far taken: receiver, sender, and what keeps it open.
fn stalled(directory: &Path, listener_receives: bool) -> (Running, Running, ChildStdin) {
    const BYTES: usize = 3_000_000;
    let copy = directory.join("copy");
    let (receiver, mut sender) = if listener_receives {
        let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", path(&copy)]));
        let mut sender = cp(&["-", &receiver.address()]);
        (receiver, Running::start(sender.stdin(Stdio::piped())))
    } else {
        let mut sender = cp(&["-", "tcp-listen://127.0.0.1:0"]);
        let sender = Running::start(sender.stdin(Stdio::piped()));
        (Running::start(&mut cp(&[&sender.address(), path(&copy)])), sender)
    };
    let mut input = sender.input();
    input.write_all(&pattern(BYTES)).unwrap();
    let all_is_written = || (written(&receiver, directory) == BYTES as u64).then_some(());
    eventually("the receiver has all of it", all_is_written);
    assert!(names(directory).is_empty(), "nothing has a name yet");
    (receiver, sender, input)
}

fn killed(ended: &Ended) {
    assert_eq!(ended.code, None, "{ended:?}");
}

#[test]
fn a_sender_that_is_killed() {
    for listener_receives in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let (receiver, sender, _input) = stalled(directory.path(), listener_receives);
        sender.signal(Signal::KILL);
        killed(&sender.end());
        receiver.end().says(1, "midway, after");
        assert!(names(directory.path()).is_empty());
    }
}

#[test]
fn a_receiver_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, sender, _input) = stalled(directory.path(), true);
    receiver.signal(Signal::KILL);
    killed(&receiver.end());
    sender.end().says(1, "the receiver left before it confirmed");
    assert!(names(directory.path()).is_empty());
}

#[test]
fn a_receiver_that_is_killed_under_load() {
    const LOAD: u64 = 8 << 20;
    let directory = tempfile::tempdir().unwrap();
    let (receiver, sender, mut input) = stalled(directory.path(), true);
    let load = thread::spawn(move || while input.write_all(&pattern(1 << 20)).is_ok() {});
    let more_comes = || (written(&receiver, directory.path()) > LOAD).then_some(());
    eventually("it receives the load", more_comes);
    receiver.signal(Signal::KILL);
    killed(&receiver.end());
    sender.end().says(1, "the receiver left before it confirmed");
    load.join().unwrap();
    assert!(names(directory.path()).is_empty());
}

#[test]
fn signals_unwind_and_the_other_side_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, sender, _input) = stalled(directory.path(), true);
    sender.signal(Signal::INT);
    sender.end().says(130, "stopped by SIGINT");
    receiver.end().says(1, "the sender gave up: stopped by SIGINT");

    let (receiver, sender, _input) = stalled(directory.path(), true);
    receiver.signal(Signal::TERM);
    receiver.end().says(143, "stopped by SIGTERM");
    sender.end().says(1, "the receiver failed: stopped by SIGTERM");

    // One that waits for a peer, and one that waits for a pipe.
    let waiting = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", "/dev/null"]));
    waiting.address();
    waiting.signal(Signal::INT);
    waiting.end().says(130, "stopped");
    let copy = directory.path().join("copy");
    let mut reading = Running::start(cp(&["-", path(&copy)]).stdin(Stdio::piped()));
    let _input = reading.input();
    reading.handles(Signal::INT);
    reading.signal(Signal::INT);
    reading.end().says(130, "stopped");
    assert!(names(directory.path()).is_empty());
}

/// The command on a disk of 4 MiB of its own; what is left on it comes after its output.
fn on_a_small_disk(directory: &Path, arguments: &str) -> Command {
    let mut command = Command::new("unshare");
    let script = format!(
        "mount -t tmpfs -o size=4m none '{disk}' && cd '{disk}' && '{cp}' cp {arguments}; code=$?; ls -A; exit $code",
        disk = path(directory),
        cp = env!("CARGO_BIN_EXE_handoff"),
    );
    command.args(["--mount", "sh", "-c", &script]).stdin(Stdio::null());
    command
}

#[test]
fn needs_root_a_full_disk() {
    if !rustix::process::geteuid().is_root() {
        handoff_testbed::skip!("only root mounts a small disk");
    }
    let disk = tempfile::tempdir().unwrap();
    let big = tempfile::NamedTempFile::new().unwrap();
    fs::write(&big, pattern(8 << 20)).unwrap();
    let big = path(big.path());

    let known = Running::start(&mut on_a_small_disk(disk.path(), &format!("'{big}' copy"))).end();
    known.says(1, "no room for copy: 8388608 bytes are needed");
    let unknown = format!("- copy < '{big}'");
    let unknown = Running::start(&mut on_a_small_disk(disk.path(), &unknown)).end();
    unknown.says(1, "No space left on device");

    for by_pipe in [false, true] {
        let receive = "tcp-listen://127.0.0.1:0 copy";
        let receiver = Running::start(&mut on_a_small_disk(disk.path(), receive));
        let address = receiver.address();
        let mut sender = cp(&[if by_pipe { "-" } else { big }, &address]);
        sender.stdin(fs::File::open(big).unwrap());
        let words = if by_pipe { "No space left on device" } else { "no room for" };
        Running::start(&mut sender)
            .end()
            .says(1, &format!("the receiver failed: {}", if by_pipe { "writing" } else { words }));
        receiver.end().says(1, words);
    }
}

#[test]
fn an_error_of_the_source_reaches_the_receiver() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    let copy = directory.path().join("copy");
    fs::write(&source, pattern(64 << 20)).unwrap();
    let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", path(&copy)]));
    let address = receiver.address();
    // Memory of a process without any there: reading it is an error.
    let sender = Running::start(&mut cp(&["/proc/self/mem", &address]));
    sender.end().says(1, "reading /proc/self/mem");
    receiver.end().says(1, "the sender gave up: reading /proc/self/mem");
    assert_eq!(names(directory.path()), ["source"]);
}

#[test]
fn a_bare_stream_that_is_cut_off_is_reset() {
    const LEN: usize = 32 << 20;
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::write(&source, pattern(LEN)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let sender = Running::start(&mut cp(&["--raw", path(&source), &address]));
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    fs::File::options().write(true).open(&source).unwrap().set_len(LEN as u64 / 2).unwrap();
    // Otherwise it looked whole.
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert_eq!(sender.end().code, Some(1));
}
