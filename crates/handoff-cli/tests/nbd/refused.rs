//! Mistakes on the command line, and files that cannot be served.

use std::fs;

use crate::server::{Server, command, directory, empty, is_missing};

fn outcome(options: &[&str]) -> (Option<i32>, String) {
    let output = command(options).args(["--listen", "127.0.0.1:0"]).output().expect("starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn says(options: &[&str], code: i32, words: &str) {
    let (ended, errors) = outcome(options);
    assert_eq!(ended, Some(code), "{options:?}: {errors}");
    let lines = errors.lines().filter(|line| line.starts_with("handoff: ")).count();
    assert!(lines <= 1 && errors.contains(words), "{options:?}: {errors}");
}

#[test]
fn what_makes_no_sense_is_said() {
    let place = directory();
    let path = |name: &str| place.path().join(name).to_str().expect("UTF-8").to_owned();
    let file = path("file");
    empty(file.as_ref(), 1 << 16);
    fs::hard_link(&file, path("twin")).expect("links");
    let (twin, directory) = (path("twin"), path(""));
    says(&[&path("none")], 1, "No such file");
    says(&[&directory], 2, "is a directory");
    says(&["/dev/null"], 2, "is a character device");
    says(&["a="], 2, "a file goes behind the =");
    says(&["a\tb=c"], 2, "control character");
    says(&[&file, &file], 2, "two exports have no name");
    says(&[&format!("a={file}"), &format!("a={twin}")], 2, "the name \"a\"");
    says(&[&format!("a={file}"), &format!("b={twin}")], 2, "are one file");
    says(&["--min-block", "3", &file], 2, "power of 2");
    says(&["--max-request", "4k", &file], 2, "at least 64k");
    let odd = path("odd");
    empty(odd.as_ref(), 5000);
    says(&["--min-block", "4096", &odd], 2, "no multiple of --min-block 4096");
    says(&["--temporary", "--read-only", &file], 2, "cannot be used with");
    says(&["--threads", "3", "--max-connections", "2", &file], 2, "below --threads");
    says(&[], 2, "required");
    let long = "x".repeat(5000);
    says(&[&format!("{long}={file}")], 2, "more than 4096 bytes");
}

#[test]
fn a_file_in_use_is_refused() {
    let place = directory();
    let path = |name: &str| place.path().join(name).to_str().expect("UTF-8").to_owned();
    let file = path("file");
    empty(file.as_ref(), 1 << 20);
    let writer = Server::start(&[&file]);
    says(&[&file], 1, "is in use: another program has locked it");
    says(&["--read-only", &file], 1, "is in use");
    writer.stop();
    let readers = [Server::start(&["-r", &file]), Server::start(&["--temporary", &file])];
    says(&[&file], 1, "is in use");
    drop(readers);
    if is_missing("qemu-io") {
        return;
    }
    let writer = Server::start(&[&file]);
    let qemu = std::process::Command::new("qemu-io")
        .args(["-f", "raw", "-c", "read 0 512", &file])
        .output()
        .expect("starts");
    assert!(!qemu.status.success(), "QEMU sees our locks: {qemu:?}");
    writer.stop();
}
