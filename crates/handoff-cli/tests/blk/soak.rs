//! The long forms, in guests of their own.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use super::native::lab::pressure::goes_on;

/// Three rounds, so each kind of killing comes once.
fn each_engine_goes_on_with(file_system: &str) {
    for engine in ["bpf", "user-auto", "batch-auto", "user-copy"] {
        goes_on([engine; 2], file_system, 3);
    }
}

#[test]
fn a_guest_that_is_short_of_memory_goes_on_with_ext4_and_swap_on_devices() {
    each_engine_goes_on_with("ext4");
}

#[test]
fn a_guest_that_is_short_of_memory_goes_on_with_xfs_and_swap_on_devices() {
    each_engine_goes_on_with("xfs");
}

/// This tells restarts, not losses of power: what the guest gave to its disks stays.
#[test]
fn a_mirror_is_whole_after_guests_were_ended_under_load() {
    const ROUNDS: u64 = 10;
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let disks = ["one", "two"].map(|name| {
        let path = directory.path().join(name);
        File::create(&path).and_then(|file| file.set_len(48 << 20)).expect("a file");
        format!("{name}={}", path.display())
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blk/ended.py");
    let mut last = "none".to_owned();
    for round in 0..=ROUNDS {
        let engine = ["bpf", "user-auto", "batch-auto", "user-copy"][round as usize % 4];
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.args(["lab", "run", "--timeout", "240", "--put", script]);
        command.args(["--disk", &disks[0], "--disk", &disks[1], "--", "python3", "/root/ended.py"]);
        command.args([engine, &last]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guest = command.spawn().expect("handoff starts");
        let lines = BufReader::new(guest.stdout.take().expect("a pipe"));
        // More or less of them, so the end comes at other moments of the load.
        let told: Vec<String> =
            lines.lines().map_while(Result::ok).take(60 + 30 * round as usize).collect();
        let is_over = guest.try_wait().expect("a child").is_some();
        guest.kill().expect("killed");
        let code = guest.wait().expect("it ends").code();
        let mut errors = String::new();
        guest.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("read");
        if code == Some(3) {
            handoff_testbed::skip!("{errors}");
        }
        let begins = told.first().is_some_and(|line| line == "begins");
        assert!(begins && !is_over && told.len() > 50, "round {round}, {engine}: {errors}");
        last.clone_from(told.last().expect("a number"));
    }
}
