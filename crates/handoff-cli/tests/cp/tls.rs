//! Copies over TLS by a KEY: what arrives, who is let in, and what is left of the KEY.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use handoff_testbed::helpers::eventually;
use handoff_testbed::running::{Ended, Running};
use rustix::process::Signal;
use serde_json::Value;

use crate::session::{cp, names, path, pattern, run};
use crate::terminal::{Terminal, in_its_own_session};

mod guest;
mod peer;
mod raw;
mod strangers;

const ADDRESS: &str = "tls-listen://127.0.0.1:0";

/// A listener, its address, and its KEY as it was printed.
struct Listens {
    running: Running,
    address: String,
    key: String,
}

impl Listens {
    fn start<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Self {
        let running = Running::start(&mut cp(args));
        let address = running.address();
        let line = running.line("its KEY, for one transfer: ");
        let key = line.rsplit(' ').next().expect("has a last word").to_owned();
        Self { running, address, key }
    }

    /// One that writes its KEY to a file.
    fn by_file<S: AsRef<std::ffi::OsStr>>(args: &[S], file: &Path) -> Self {
        let running = Running::start(&mut cp(args));
        let address = running.address();
        running.line("its KEY is in ");
        let key = fs::read_to_string(file).unwrap().trim().to_owned();
        Self { running, address, key }
    }

    fn host(&self) -> &str {
        self.address.strip_prefix("tls://").expect("the address of a copy over TLS")
    }

    /// What happens to it ends here, with nothing of the KEY said again.
    fn end(self) -> Ended {
        let ended = self.running.end();
        assert_eq!(ended.stderr.matches(&self.key).count(), 1, "{ended:?}");
        assert!(!String::from_utf8_lossy(&ended.stdout).contains(&self.key));
        ended
    }
}

/// The command at the other end, which has the KEY in its environment.
fn with_key<S: AsRef<std::ffi::OsStr>>(args: &[S], key: &str) -> Command {
    let mut command = cp(args);
    command.env("HANDOFF_KEY", key);
    command
}

fn run_with_key<S: AsRef<std::ffi::OsStr>>(args: &[S], key: &str) -> Ended {
    Running::start(&mut with_key(args, key)).end()
}

/// Two ends in their directory: where the source and the copy are.
fn files(len: usize) -> (tempfile::TempDir, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(len)).unwrap();
    let (source, copy) = (path(&source).to_owned(), path(&copy).to_owned());
    (directory, source, copy)
}

/// The hop over the network of a report.
fn network_hop(report: &Value) -> &Value {
    let hops = report["hops"].as_array().unwrap();
    hops.iter().find(|hop| hop["from"] == "socket" || hop["to"] == "socket").unwrap()
}

fn adds_up(report: &Value, len: usize, streams: u16) {
    assert_eq!((&report["bytes"], &report["streams"]), (&len.into(), &streams.into()));
    let hop = network_hop(report);
    let count = |what: &str| hop[what].as_u64().unwrap();
    let all = count("zero_copy") + count("copied") + count("ciphered") + count("unknown");
    assert!((len as u64..=(len + len / 200 + 4000) as u64).contains(&all), "{hop}");
    assert_eq!(count("zero_copy"), 0, "{hop}");
    let tls = &report["tls"];
    assert_eq!((&tls["engine"], tls["suite"].is_string()), (&hop["engine"], true), "{report}");
    match tls["engine"].as_str().unwrap() {
        "kernel-tls" => assert_eq!((count("copied"), count("unknown")), (0, 0), "{hop}"),
        "user-tls" => assert_eq!(count("copied"), all, "{hop}"),
        other => panic!("{other} ciphers"),
    }
    assert!(hop["reason"].as_str().unwrap().starts_with(tls["reason"].as_str().unwrap()));
}

#[test]
fn both_directions_with_one_stream_and_several() {
    for (listener_sends, streams, len, more) in [
        (false, 1, 3_000_001, &[][..]),
        (false, 4, 9_000_001, &["--direct"]),
        (true, 1, 0, &["--preserve"]),
        (true, 4, 3_000_001, &["--buffer", "5000"]),
    ] {
        let (directory, source, copy) = files(len);
        let file = directory.path().join("key");
        let count = streams.to_string();
        let own = if listener_sends { [&source, ADDRESS] } else { [ADDRESS, &copy] };
        let args = [&["--json", "--key-file", path(&file)], more, &own].concat();
        let Listens { running: listener, address, key } = Listens::by_file(&args, &file);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = if listener_sends { [&address, &*copy] } else { [&*source, &address] };
        let verified = ["--json", "--verify", "--streams", &count, "--key-file", path(&file)];
        let args = [&verified, more, &other].concat();
        let (peer, listener) = (run(&args), listener.end());
        let what = format!("{listener_sends} {streams} {more:?}");
        assert!(fs::read(&copy).unwrap() == pattern(len), "{what}");
        for ended in [&peer, &listener] {
            adds_up(&ended.report(), len, streams);
            assert!(!format!("{ended:?}").contains(&key), "{ended:?}");
        }
        let sums = [&peer, &listener].map(|ended| ended.report()["checksum"].clone());
        assert!(sums[0].is_string() && sums[0] == sums[1], "{what}");
        assert_eq!(names(directory.path()), ["copy", "source"], "the file with the KEY goes");
    }
}

#[test]
fn pipes_and_holes_go_over_tls() {
    let (_directory, source, copy) = files(100_000);
    fs::File::options().write(true).open(&source).unwrap().set_len(40 << 20).unwrap();
    let listener = Listens::start(&[ADDRESS, &copy]);
    let sent = run_with_key(&["--json", &source, &listener.address], &listener.key);
    assert!(sent.report()["holes"].as_u64().unwrap() > 30 << 20, "{sent:?}");
    assert_eq!(listener.end().code, Some(0));
    assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());

    let listener = Listens::start(&[ADDRESS, "-"]);
    let mut sender = with_key(&["--verify", "-", &listener.address], &listener.key);
    let mut sender = Running::start(sender.stdin(Stdio::piped()));
    sender.input().write_all(&pattern(3_000_000)).unwrap();
    let (sent, received) = (sender.end(), listener.end());
    assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{sent:?} {received:?}");
    assert!(received.stdout == pattern(3_000_000));
}

#[test]
fn a_line_says_what_to_type_at_the_other_end() {
    for (args, line) in [
        (&[ADDRESS, "/dev/null"][..], "handoff cp FILE tls://127.0.0.1:"),
        (&["/proc/version", ADDRESS], "handoff cp tls://127.0.0.1:"),
        (&["--streams", "3", ADDRESS, "/dev/null"], "handoff cp --streams 3 FILE tls://127.0.0.1:"),
        (&["/proc/version", "tls-listen://[::1]:0"], "handoff cp tls://[::1]:"),
        (&["/proc/version", "tls-listen://:0"], "handoff cp tls://"),
    ] {
        let listener = Running::start(&mut cp(args));
        let lines = listener.lines("its KEY, for one transfer: ");
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].contains(&format!("type: {line}")), "{lines:?}");
        let port = lines[0].rsplit(':').next().unwrap();
        assert!(lines[1].contains(&format!(":{port}")), "{lines:?}");
        let key = lines[2].rsplit(' ').next().unwrap();
        assert!(key.len() == 69 && key.split('-').all(|group| group.len() == 4), "{lines:?}");
        listener.signal(Signal::TERM);
        let ended = listener.end();
        assert!(
            ended.code == Some(143) && !ended.stderr.contains("anyone who reaches"),
            "{ended:?}"
        );
    }
    // In the clear, it says what to type instead.
    let listener = Running::start(&mut cp(&["tcp-listen://0.0.0.0:0", "/dev/null"]));
    assert!(listener.line("anyone who reaches").contains("tls-listen://"));
}

#[test]
fn a_key_that_is_mistyped_used_or_of_another_listener_is_told_and_the_listener_goes_on() {
    let (directory, source, copy) = files(2_000_000);
    let (listener, other) = (Listens::start(&[ADDRESS, &copy]), Listens::start(&[ADDRESS, &copy]));
    let mut mistyped = listener.key.clone().into_bytes();
    mistyped[1] = if mistyped[1] == b'7' { b'8' } else { b'7' };
    let mistyped = String::from_utf8(mistyped).unwrap();
    for (key, words) in [
        (mistyped.as_str(), "HANDOFF_KEY: the KEY is mistyped"),
        (&listener.key[..60], "HANDOFF_KEY: a KEY has 56 letters and digits, and this has 48"),
        (&listener.key.replacen('-', "!", 1), "has a character that no KEY has"),
    ] {
        run_with_key(&[&source, &listener.address], key).says(2, words);
    }
    for streams in ["1", "4"] {
        let args = ["--streams", streams, &source, &listener.address];
        run_with_key(&args, &other.key).says(1, "the listener has another KEY");
    }
    listener.running.line("does not take this listener for the one that its KEY names");
    // However it is typed.
    let typed = listener.key.to_uppercase().replace('-', " ").replace('0', "o");
    assert_eq!(run_with_key(&[&source, &listener.address], &typed).code, Some(0));
    assert!(fs::read(&copy).unwrap() == pattern(2_000_000));
    let (address, used) = (listener.address.clone(), listener.key.clone());
    let ended = listener.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr.lines().filter(|it| it.contains("mistyped")).count(), 0);
    let refused = run_with_key(&[&source, &address], &used);
    refused.says(1, "a listener ends with the transfer that its KEY was for");
    run_with_key(&[&source, &other.address], &used).says(1, "the listener has another KEY");
    other.running.signal(Signal::INT);
    assert_eq!(other.end().code, Some(130));
    assert_eq!(names(directory.path()), ["copy", "source"]);
}

#[test]
fn the_key_is_in_no_argument_and_in_no_file_that_others_may_read() {
    let (directory, source, copy) = files(1000);
    let listener = Listens::start(&[ADDRESS, &copy]);
    let file = directory.path().join("key");
    fs::write(&file, &listener.key).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let send = ["--key-file", path(&file), &source, &listener.address];
    run(&send).says(2, "other users may read or change it: chmod 600 it");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    // Another file is not written over.
    let taken = run(&["--key-file", path(&file), ADDRESS, path(&directory.path().join("other"))]);
    assert!(taken.code == Some(1) && taken.stderr.contains("File exists"), "{taken:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), listener.key);
    // Nor is a KEY printed where that is logged.
    let logged = run(&["--json", ADDRESS, &copy]);
    assert!(logged.code == Some(2) && logged.stderr.contains("--key-file"), "{logged:?}");
    for args in [
        &["--threads", "2", "tls://127.0.0.1:1", "/dev/null"][..],
        &["--lend", "always", &source, "tls://127.0.0.1:1"],
        &["--engine", "copy", &source, "tls://127.0.0.1:1"],
        &["--nic", "lo", "tls://127.0.0.1:1", "/dev/null"],
    ] {
        run(args).says(2, "with tls:// there is no");
    }
    run(&["--key-file", path(&file), &source, "tcp://127.0.0.1:1"]).says(2, "needs tls://");

    let mut sender = cp(&["--key-file", path(&file), "-", &listener.address]);
    let mut sender = Running::start(sender.stdin(Stdio::piped()));
    let mut input = sender.input();
    input.write_all(&pattern(1000)).unwrap();
    eventually("the file is made", || listener.writes(directory.path()).then_some(()));
    for pid in [sender.pid(), listener.running.pid()] {
        for name in ["cmdline", "environ"] {
            let shown = fs::read(format!("/proc/{pid}/{name}")).unwrap();
            let shown = String::from_utf8_lossy(&shown).into_owned();
            assert!(!shown.contains(&listener.key), "{name}");
        }
    }
    drop(input);
    assert_eq!((sender.end().code, listener.end().code), (Some(0), Some(0)));
}

#[test]
fn the_terminal_is_asked_and_shows_nothing_of_the_key() {
    let (_directory, source, copy) = files(100_000);
    let listener = Listens::start(&[ADDRESS, &copy]);
    let ask = |address: &str| {
        let terminal = Terminal::new();
        let mut command = cp(&[source.as_str(), address]);
        command.stdin(terminal.output()).stdout(Stdio::piped()).stderr(terminal.output());
        command.env_remove("HANDOFF_KEY");
        in_its_own_session(&mut command);
        (command.spawn().unwrap(), terminal)
    };
    let echoes = |terminal: &Terminal| {
        let modes = rustix::termios::tcgetattr(&terminal.theirs).unwrap().local_modes;
        modes.contains(rustix::termios::LocalModes::ECHO)
    };
    let asks = |terminal: &mut Terminal| {
        terminal.line("the question", |line| line.contains("KEY (not shown):"));
        eventually("nothing is shown", || (!echoes(terminal)).then_some(()));
    };
    let (mut sender, mut terminal) = ask(&listener.address);
    asks(&mut terminal);
    terminal.ours.write_all(b"abcd-efgh\n").unwrap();
    terminal.line("the mistake", |line| line.contains("a KEY has 56 letters"));
    eventually("it asks again", || (!echoes(&terminal)).then_some(()));
    writeln!(terminal.ours, "{}", listener.key).unwrap();
    assert_eq!(sender.wait().unwrap().code(), Some(0));
    assert!(echoes(&terminal));
    let rest = terminal.rest();
    assert!(!rest.contains(&listener.key), "{rest}");
    assert_eq!(listener.end().code, Some(0));

    // A signal puts the terminal back, too.
    let (mut sender, mut terminal) = ask("tls://127.0.0.1:1");
    asks(&mut terminal);
    terminal.ours.write_all(b"\x03").unwrap();
    assert_eq!(sender.wait().unwrap().code(), Some(130));
    assert!(echoes(&terminal));

    // There may be none.
    let mut command = cp(&[source.as_str(), "tls://127.0.0.1:1"]);
    command.env_remove("HANDOFF_KEY");
    let mut without = Command::new("setsid");
    without.arg("--wait").arg(command.get_program()).args(command.get_args());
    without.stdin(Stdio::null()).env_remove("HANDOFF_KEY");
    Running::start(&mut without).end().says(2, "no KEY: there is no terminal to ask for it");
}

impl Listens {
    /// Whether it has a file of this directory open.
    fn writes(&self, directory: &Path) -> bool {
        is_open(self.running.pid(), directory)
    }
}

fn is_open(pid: u32, directory: &Path) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .filter_map(|it| fs::read_link(it.ok()?.path()).ok())
        .any(|it| it.starts_with(directory))
}

/// A sender that has sent a part, and waits for the rest.
fn halfway(listener: &Listens, key: &str) -> (Running, std::process::ChildStdin) {
    let mut sender = with_key(&["-", &listener.address], key);
    let mut sender = Running::start(sender.stdin(Stdio::piped()));
    let mut input = sender.input();
    // More than is on the way: the receiver takes it.
    input.write_all(&pattern(6 << 20)).unwrap();
    (sender, input)
}

#[test]
fn a_transfer_that_is_cut_off_may_be_tried_again_with_the_same_key() {
    let (directory, source, copy) = files(5_000_000);
    let listener = Listens::start(&[ADDRESS, &copy]);
    let (sender, _input) = halfway(&listener, &listener.key);
    sender.signal(Signal::KILL);
    sender.end();
    listener.running.line("midway, after");
    listener.running.line("listening on");
    let (sender, _input) = halfway(&listener, &listener.key);
    sender.signal(Signal::INT);
    sender.end().says(130, "stopped by SIGINT");
    let line = listener.running.line("the sender gave up: stopped by SIGINT");
    assert!(line.contains("the KEY is good for another try"), "{line}");
    listener.running.line("listening on");
    assert_eq!(names(directory.path()), ["source"]);
    let args = ["--verify", "--streams", "3", &source, &listener.address];
    assert_eq!(run_with_key(&args, &listener.key).code, Some(0));
    assert_eq!(listener.end().code, Some(0));
    assert!(fs::read(&copy).unwrap() == pattern(5_000_000));

    // The listener sends: a receiver that has no room, then one that has.
    fs::remove_file(&copy).unwrap();
    let listener = Listens::start(&[source.as_str(), ADDRESS]);
    let refused = run_with_key(&["--max-size", "1k", &listener.address, &copy], &listener.key);
    refused.says(1, "--max-size");
    listener.running.line("the KEY is good for another try");
    // It listens again.
    listener.running.line("listening on");
    let mut pipe = with_key(&[listener.address.as_str(), "-"], &listener.key);
    let mut reader = pipe.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    reader.stdout.take().unwrap().read_exact(&mut [0; 1000]).unwrap();
    reader.wait().unwrap();
    listener.running.line("the KEY is good for another try");
    listener.running.line("listening on");
    assert_eq!(run_with_key(&[listener.address.as_str(), &copy], &listener.key).code, Some(0));
    assert_eq!(listener.end().code, Some(0));
    assert!(fs::read(&copy).unwrap() == pattern(5_000_000));
    assert_eq!(names(directory.path()), ["copy", "source"]);
}

#[test]
fn a_pipe_cannot_be_tried_again() {
    let listener = Listens::start(&[ADDRESS, "-"]);
    let (sender, _input) = halfway(&listener, &listener.key);
    sender.signal(Signal::KILL);
    sender.end();
    let ended = listener.end();
    assert!(ended.code == Some(1) && ended.stderr.contains("midway, after"), "{ended:?}");
}

#[test]
fn a_signal_ends_the_listener_midway_and_nothing_is_left() {
    let (directory, _, copy) = files(1);
    let file = directory.path().join("key");
    let args = ["--key-file", path(&file), ADDRESS, &copy];
    let listener = Listens::by_file(&args, &file);
    let (sender, _input) = halfway(&listener, &listener.key);
    listener.running.signal(Signal::TERM);
    let ended = listener.running.end();
    assert!(ended.code == Some(143) && ended.stderr.contains("stopped by SIGTERM"), "{ended:?}");
    sender.end().says(1, "the receiver failed: stopped by SIGTERM");
    assert_eq!(names(directory.path()), ["source"]);
}
