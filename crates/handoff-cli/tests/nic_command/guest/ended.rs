//! A command that runs with queues set aside, and how it may end.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::host::{Host, nothing_is_left, wait_for};

#[test]
fn a_command_is_told_its_queues_and_its_exit_code_is_ours() {
    let host = Host::new();
    let before = host.settings();
    let script = "echo $HANDOFF_NIC $HANDOFF_NIC_QUEUES; ethtool -n $HANDOFF_NIC >&2; exit 7";
    let arguments = ["prepare", host.device(), "--queues", "2", "--port", "8000"];
    let output = host.nic(&[&arguments[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, format!("{} 2,3\n", host.device()).as_bytes());
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(errors.contains("Total 2 rules") && errors.contains("queues 2,3 are set aside"));
    assert_eq!(host.settings(), before);

    let answer = host.answer(&[&arguments[..], &["--", "sh", "-c", "echo not JSON"]].concat());
    assert_eq!(answer["queues"], serde_json::json!([2, 3]));
    assert_eq!(answer["undone"]["put_back"].as_array().expect("a list").len(), 4);
    assert_eq!(host.settings(), before);
    nothing_is_left();
}

/// Starts a command that says its number and stays.
fn staying(host: &Host, place: &Path) -> (std::process::Child, Pid) {
    let number = place.join("number");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60", number.display());
    let arguments = ["prepare", host.device(), "--port", "8000", "--", "sh", "-c", &script];
    let mut command = host.command(&arguments);
    let child = command.stderr(Stdio::null()).spawn().expect("handoff starts");
    wait_for(&number);
    let text = std::fs::read_to_string(&number).expect("is there");
    let sleeps = text.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
    (child, sleeps)
}

#[test]
fn a_signal_ends_the_command_and_puts_everything_back() {
    let host = Host::new();
    let before = host.settings();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let place = tempfile::tempdir().expect("a directory");
        let (mut child, sleeps) = staying(&host, place.path());
        assert_ne!(host.settings(), before);
        kill_process(Pid::from_child(&child), signal).expect("lives");
        assert_eq!(child.wait().expect("ends").code(), Some(code));
        assert!(test_kill_process(sleeps).is_err(), "the command goes on");
        assert_eq!(host.settings(), before);
        nothing_is_left();
    }
}

#[test]
fn after_a_kill_restore_puts_everything_back() {
    let host = Host::new();
    let device = host.device();
    let before = host.settings();
    let place = tempfile::tempdir().expect("a directory");
    let (mut child, sleeps) = staying(&host, place.path());
    let line = host.refused(&["restore", device], 1);
    assert!(line.contains(&format!("process {}: end it first", child.id())), "{line}");
    child.kill().expect("kills");
    child.wait().expect("ends");
    assert_ne!(host.settings(), before);
    let line = host.refused(&["prepare", device], 1);
    assert!(line.contains("which is gone: handoff nic restore"), "{line}");
    let undone = host.answer(&["restore", device]);
    assert_eq!(undone[0]["put_back"].as_array().expect("a list").len(), 4, "{undone}");
    assert_eq!(host.settings(), before);
    nothing_is_left();
    kill_process(sleeps, Signal::KILL).expect("nobody else ends it");
}
