//! The built command, as a user meets it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use terminal::Terminal;

#[allow(dead_code, reason = "each test program uses a part")]
mod terminal;

fn handoff(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handoff")).args(args).output().expect("handoff starts")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ends by itself")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[test]
fn doctor_prints_json_and_nothing_else() {
    let output = handoff(&["doctor", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    let rows = rows.as_array().expect("a list");
    assert!(rows.iter().any(|row| row["mechanism"] == "SEND_ZC"));
    for row in rows {
        let state = row["state"].as_str().expect("a string");
        assert!(["yes", "no", "unknown"].contains(&state), "{row}");
        assert_eq!(row.as_object().expect("an object").len(), 5, "{row}");
    }
}

#[test]
fn doctor_explains_one_interface() {
    let output = handoff(&["doctor", "--iface", "lo"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("lo: zero-copy send"), "{text}");
    assert!(!text.contains('\x1b'), "colours without a terminal");
}

#[test]
fn colours_are_for_terminals_that_have_them_and_users_who_want_them() {
    for (name, value, coloured) in [
        ("TERM", "xterm", true),
        ("TERM", "dumb", false),
        ("NO_COLOR", "1", false),
        ("NO_COLOR", "", true),
    ] {
        let terminal = Terminal::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.args(["doctor", "--iface", "lo"]).stdout(terminal.output());
        command.env("TERM", "xterm").env_remove("NO_COLOR").env(name, value);
        let mut doctor = command.spawn().expect("handoff starts");
        // It has the terminal open, too.
        drop(command);
        let written = terminal.rest();
        assert!(doctor.wait().expect("ends").success());
        assert!(written.contains("lo: zero-copy send"), "{written}");
        assert_eq!(written.contains('\x1b'), coloured, "{name}={value}: {written}");
    }
}

#[test]
fn nic_explains_interfaces_without_a_card() {
    let output = handoff(&["nic", "show", "--json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    let lo = all.as_array().expect("a list").iter().find(|one| one["name"] == "lo");
    let obstacle = &lo.expect("everybody has it")["obstacles"][0];
    assert_eq!(obstacle["weight"], "blocks", "{obstacle}");
    for arguments in [&["nic", "prepare", "lo"][..], &["nic", "prepare", "lo", "--", "true"]] {
        let output = handoff(arguments);
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        assert!(stderr(&output).starts_with("handoff: lo: it is the loopback interface"));
    }
}

#[test]
fn mistakes_are_usage_errors_in_one_line() {
    let output = handoff(&["doctor", "--iface", "no-such-device"]);
    assert_eq!(code(&output), 2);
    let line = stderr(&output);
    assert!(line.starts_with("handoff: no network interface \"no-such-device\""), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(output.stdout.is_empty());

    assert_eq!(code(&handoff(&["no-such-command"])), 2);
    assert_eq!(code(&handoff(&[])), 2);
    assert_eq!(code(&handoff(&["man", "no-such-command"])), 2);
}

#[test]
fn a_failure_is_an_object_with_json() {
    for (args, exit) in [
        (&["doctor", "--iface", "no-such-device"][..], 2),
        (&["cp", "/no/such/file", "/tmp/copy"], 1),
        (&["cp", "/no/such/file", "-"], 1),
        (&["relay", "file", "tcp://127.0.0.1:1"], 2),
        (&["nic", "prepare", "lo"], 3),
        (&["rds", "ping", "no-such-host.invalid"], 2),
        (&["blk", "show", "987654"], 1),
        (&["no-such-command"], 2),
    ] {
        let output = handoff(&[args, &["--json"]].concat());
        let text = if args.last() == Some(&"-") { &output.stderr } else { &output.stdout };
        let text = String::from_utf8_lossy(text);
        let object = text.find('{').map(|begin| &text[begin..]).unwrap_or_default();
        let object: serde_json::Value = serde_json::from_str(object)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"));
        assert_eq!(object["exit_code"], code(&output), "{args:?}: {object}");
        assert!(!object["error"].as_str().expect("a text").is_empty(), "{object}");
        assert!(code(&output) == exit || code(&output) == 3, "{args:?}: {output:?}");
    }
}

#[test]
fn json_names_the_argument_that_is_missing() {
    let output = handoff(&["cp", "--json", "x"]);
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
    assert!(object["error"].as_str().expect("a text").contains("<DST>"), "{object}");
}

#[test]
fn version_and_help_go_to_stdout() {
    let version = handoff(&["--version"]);
    assert_eq!(code(&version), 0);
    assert_eq!(version.stdout, format!("handoff {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    let help = String::from_utf8(handoff(&["--help"]).stdout).expect("UTF-8");
    assert!(help.contains("Exit codes:") && help.contains("Examples:"), "{help}");
}

#[test]
fn completions_and_pages_come_out() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(handoff(&["completions", shell]).stdout).expect("UTF-8");
        assert!(script.contains("doctor"), "{shell}: {script}");
    }
    let page = |args: &[&str]| String::from_utf8(handoff(args).stdout).expect("UTF-8");
    assert!(page(&["man"]).contains("not possible on this machine"));
    for words in [".TH handoff-doctor 1", "Examples:", "json"] {
        assert!(page(&["man", "doctor"]).contains(words), "{words}");
    }
}

#[test]
fn all_man_pages_are_written_into_a_directory() {
    let place = tempfile::tempdir().expect("a directory");
    let man = place.path().join("share/man1");
    let output = handoff(&["man", "--all", man.to_str().expect("UTF-8")]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    let written = std::fs::read(man.join("handoff-blk-add.1")).expect("a page");
    assert_eq!(written, handoff(&["man", "blk", "add"]).stdout);
    let names = std::fs::read_dir(&man).expect("a directory");
    let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(names.len() > 20, "{names:?}");
    // Those of the other program are its own, and hidden commands have none.
    for name in ["handoff-bench.1", "handoff-lab.1", "handoff-blk-supervise.1"] {
        assert!(!names.contains(&name.into()), "{names:?}");
    }

    let file = place.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let output = handoff(&["man", "--all", file.to_str().expect("UTF-8")]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("file: File exists"), "{}", stderr(&output));
}

#[test]
fn commands_of_the_other_program_name_its_package_where_it_is_not() {
    let place = tempfile::tempdir().expect("a directory");
    let alone = place.path().join("handoff");
    std::fs::copy(env!("CARGO_BIN_EXE_handoff"), &alone).expect("copies");
    let run = |args: &[&str]| {
        Command::new(&alone).args(args).env("PATH", place.path()).output().expect("handoff starts")
    };
    for args in
        [&["bench", "send"][..], &["report"], &["lab", "--help"], &["tour"], &["man", "lab"]]
    {
        let output = run(args);
        let line = stderr(&output);
        assert_eq!((code(&output), line.lines().count()), (3, 1), "{args:?}: {line}");
        assert!(line.contains("install the package handoff-workshop"), "{line}");
    }
    // It does without in all else.
    let script = String::from_utf8(run(&["completions", "fish"]).stdout).expect("UTF-8");
    assert!(script.contains("tour"), "{script}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_handoff"))
        .args(["doctor"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("handoff starts");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
    assert_eq!(stderr, "");
    assert_eq!(child.wait().expect("ends").code(), Some(141));
}

#[test]
fn a_variable_selects_what_is_logged() {
    let log = |value: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        let output = command.args(args).env("HANDOFF_LOG", value).output().expect("handoff starts");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stderr(&output)
    };
    let probed = log("handoff_probe=debug", &["doctor"]);
    assert!(probed.contains("DEBUG handoff_probe"), "{probed}");
    assert_eq!(log("handoff_probe=warn", &["-vvv", "doctor"]), "");
    assert_eq!(log("", &["doctor"]), "");
    let wrong = log("handoff_probe=aloud", &["doctor"]);
    assert!(wrong.starts_with("handoff: note: HANDOFF_LOG is not followed: "), "{wrong}");
    assert_eq!(wrong.lines().count(), 1, "{wrong}");
}

#[test]
fn nobody_has_to_read_the_log() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    let (root, file) = (directory.path().to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    for command in [
        &["relay", "tcp-listen://127.0.0.1:0", "tcp://127.0.0.1:1"][..],
        &["serve", "--listen", "127.0.0.1:0", root],
        &["cp", "tcp-listen://127.0.0.1:0", file],
    ] {
        let mut running = Command::new(env!("CARGO_BIN_EXE_handoff"));
        let running = running.args(command).args(["--from", "127.0.0.2"]).stdin(Stdio::null());
        let mut running =
            running.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("handoff starts");
        let mut log = BufReader::new(running.stderr.take().expect("piped"));
        let mut line = String::new();
        log.read_line(&mut line).expect("it says where it listens");
        let (_, address) = line.trim().split_once("://").expect("an address");
        // What reads the log has ended.
        drop(log);
        for _ in 0..2 {
            let mut stranger = TcpStream::connect(address).expect("connects");
            // It is turned away, which is said.
            assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "{command:?}");
        }
        kill_process(Pid::from_child(&running), Signal::INT).expect("it runs");
        let ended = running.wait().expect("ends");
        assert_eq!(ended.code(), Some(130), "{command:?}: {ended}");
    }
    let (theirs, ours) = std::io::pipe().expect("a pipe");
    drop(theirs);
    let mut wrong = Command::new(env!("CARGO_BIN_EXE_handoff"));
    let wrong = wrong.args(["cp", "/none/such", file]).stderr(ours).status();
    assert_eq!(wrong.expect("handoff starts").code(), Some(1));
}

#[test]
fn a_full_disk_is_an_error() {
    for args in [&["man"][..], &["--help"], &["cp", "--help"], &["--version"]] {
        let full = std::fs::File::create("/dev/full").expect("/dev/full opens");
        let output = Command::new(env!("CARGO_BIN_EXE_handoff"))
            .args(args)
            .stdout(full)
            .output()
            .expect("handoff starts");
        assert_eq!(code(&output), 1, "{args:?}");
        assert!(stderr(&output).contains("could not be written"), "{}", stderr(&output));
    }
}
