//! `handoff report`, as a user meets it, on results of earlier runs and on a signal.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

fn report(directory: &TempDir, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .arg("report")
        .args(args)
        .current_dir(directory.path())
        .output()
        .expect("handoff starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn bench(bench: &str, row: &str) -> String {
    json!({
        "bench": bench, "version": "0.1.0", "date": "2026-01-02T03:04:05Z", "emulated": false,
        "machine": {"cpu": "a processor", "cores": 2, "kernel": "6.1", "virtualisation": "none"},
        "rows": [{"name": row, "engine": "copy", "config": {}, "baseline": true, "peer": false,
                  "ratio": 1.0, "bytes_per_s": 1e9}],
    })
    .to_string()
}

/// A directory with results of two benches among other files.
fn results() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("results")).unwrap();
    write("results/a.json", &bench("send", "row of sending"));
    write("results/b.json", &bench("recv", "row of receiving"));
    write("results/other.json", r#"{"a": 1}"#);
    write("results/notes.txt", "not JSON");
    directory
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a list").map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_page_is_drawn_from_a_directory_and_again_from_itself() {
    let directory = results();
    let output = report(&directory, &["--from", "results"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        stdout,
        "handoff-report.html: 2 tables of 2 runs, 2 rows, 0 of them without figures\n"
    );
    let page = directory.path().join("handoff-report.html");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("row of sending") && text.contains("row of receiving"));

    let again = ["--from", "handoff-report.html", "--output", "again.html", "--only", "recv"];
    let output = report(&directory, &[&["--json"], &again[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    let runs = json["runs"].as_array().expect("runs");
    assert_eq!((runs.len(), &runs[0]["bench"]), (1, &json!("recv")));
    let text = fs::read_to_string(directory.path().join("again.html")).unwrap();
    assert!(!text.contains("row of sending") && text.contains("row of receiving"));
    assert_eq!(names(directory.path()), ["again.html", "handoff-report.html", "results"]);
}

#[test]
fn mistakes_are_told_in_one_line_and_leave_no_page() {
    let directory = results();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--from", "missing.json"], 2, "missing.json: No such file"),
        (&["--from", "results/other.json"], 2, "results/other.json: neither the JSON of"),
        (&["--from", "."], 2, ".: no results of benches"),
        (&["--from", "results", "-o", "results"], 2, "results is a directory"),
        (
            &["--from", "results", "-o", "missing/page.html"],
            1,
            "missing/page.html cannot be written",
        ),
        (&["--from", "results", "--quick"], 2, "error: the argument '--from"),
    ];
    for (args, code, line) in cases {
        let output = report(&directory, args);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let text = stderr(&output);
        assert!(text.trim_start_matches("handoff: ").starts_with(line), "{text}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(names(directory.path()), ["results"]);
    let unknown = report(&directory, &["--only", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2));
    for name in ["send", "recv", "splice", "block"] {
        assert!(stderr(&unknown).contains(name), "{}", stderr(&unknown));
    }
}

#[test]
fn a_page_replaces_what_was_there_when_it_is_whole() {
    let directory = results();
    let page = directory.path().join("handoff-report.html");
    fs::write(&page, "earlier").unwrap();
    let failed = report(&directory, &["--from", "missing.json"]);
    assert_eq!(failed.status.code(), Some(2));
    assert_eq!(fs::read_to_string(&page).unwrap(), "earlier");
    assert!(report(&directory, &["--from", "results/a.json"]).status.success());
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
}

#[test]
fn a_signal_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    // Not in its short form, this takes minutes.
    let mut child = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["report", "--only", "splice"])
        .current_dir(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("handoff starts");
    let status = format!("/proc/{}/status", child.id());
    let begin = Instant::now();
    // The bench runs in a thread of its own.
    let works = || {
        let status = fs::read_to_string(&status).expect("it has not ended");
        !status.contains("Threads:\t1\n")
    };
    while !works() {
        assert!(begin.elapsed() < TIMEOUT, "it does not begin");
        thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it is there");
    let begin = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("it is ours") {
            break ended;
        }
        assert!(begin.elapsed() < TIMEOUT, "it does not end");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(ended.code(), Some(143));
    assert_eq!(names(directory.path()), [""; 0]);
}
