//! What can't be, said in one line, with nothing left behind.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use handoff_testbed::{Disk as _, Flaky, LoopDisk, NullDisk, Schedule};

use super::command::{
    Added, Files, answer, blk, driver_or_skip, kill, nothing_is_left, refused, write_block,
};
use super::processes::eventually;

#[test]
fn mistakes_name_themselves() {
    driver_or_skip!();
    let files = Files::new(2, 1 << 20);
    let (one, two) = (files.name(0), files.name(1));
    let tiny = files.directory.path().join("tiny");
    fs::write(&tiny, [0; 100]).expect("a file");
    let tiny = tiny.to_str().expect("UTF-8");
    let here = files.directory.path().to_str().expect("UTF-8");
    for (arguments, expected) in [
        (&["loop"][..], "loop takes one file, not 0"),
        (&["loop", "/nowhere"], "/nowhere: No such file"),
        (&["loop", here], "neither a file nor a block device"),
        (&["loop", tiny], "less than a block"),
        (&["mirror", one, one], "given twice"),
        (&["stripe", one, two, "--chunk", "12k"], "a power of two"),
        (&["loop", one, "--block-size", "1024"], "512 or 4096"),
        (&["loop", one, "--depth", "5000"], "1 to 4096"),
        (&["loop", one, "--queues", "0"], "1 to 64"),
        (&["loop", one, "--max-request", "64m"], "at most 33554432"),
        (&["null", "--size", "100"], "100 bytes are not possible: a multiple of a block of 512"),
        (&["null", "--size", "1000"], "1000 bytes are not possible"),
        (&["null", "--size", "18446744073709551104"], "at most 9223372036854775296"),
        (&["null", "--size", "8589934592g"], "at most 9223372036854775296"),
        (&["null", "--id", "99999999"], "99999999 is no number of a device: 0 to 1048575"),
        (&["loop", one, "--size", "4096"], "loop is as large as its files"),
        (&["linear", one, "--check"], "--check compares the files of a mirror"),
        (&["stripe", one, two, "--chunk", "2m"], "less than a chunk"),
    ] {
        let line = refused(&[&["add"], arguments].concat(), 2);
        assert!(line.contains(expected), "{arguments:?}: {line}");
    }
    let line = refused(&["add", "loop", one, "--engine", "batch-auto", "--depth", "1"], 3);
    assert!(line.contains("batch-auto is not possible") && line.contains("depth of 2"), "{line}");
    for action in ["show", "del", "recover"] {
        let line = refused(&[action, "77"], 2);
        assert!(line.contains("there is no device 77"), "{line}");
    }
    // Who may nothing.
    let mut command = std::process::Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        env!("CARGO_BIN_EXE_handoff"),
    ]);
    let output = command.args(["blk", "add", "null"]).output().expect("setpriv starts");
    let line = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(3), "{line}");
    assert!(line.contains("/dev/ublk-control may not be opened: run as root"), "{line}");
    nothing_is_left();
}

#[test]
fn a_device_that_cannot_be_served_is_removed_again() {
    driver_or_skip!();
    let large = ["add", "null", "--engine", "user-copy", "--depth", "4096", "--max-request", "32m"];
    let line = refused(&large, 1);
    assert!(line.contains("cannot be served") && line.contains("memory"), "{line}");
    nothing_is_left();
}

#[test]
fn a_device_of_which_one_queue_cannot_be_served_is_removed_again() {
    driver_or_skip!();
    let large = ["null", "--engine", "user-copy", "--depth", "65", "--max-request", "4m"];
    let device = Added::new(&large);
    let status = fs::read_to_string(format!("/proc/{}/status", device.server(None)));
    let status = status.expect("it lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("a line");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    device.del();
    // For the threads of both queues, and the buffers of one.
    let most = peak + (200 << 10);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {most}; exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_handoff")).args(["blk", "add"]).args(large);
    command.args(["--queues", "2"]).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    eventually(|| child.try_wait().expect("a child"));
    let output = child.wait_with_output().expect("has ended");
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("cannot be served") && line.contains("memory"), "{line}");
    nothing_is_left();
}

#[test]
fn what_is_in_use_is_not_taken() {
    driver_or_skip!();
    let files = Files::new(1, 1 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let line = refused(&["add", "loop", files.name(0)], 2);
    let id = device.id;
    assert!(line.contains(&format!("in use by device {id}: handoff blk del {id}")), "{line}");
    let line = refused(&["add", "null", "--id", &device.id.to_string()], 2);
    assert!(line.contains("already"), "{line}");
    let line = refused(&["recover", &device.id.to_string()], 2);
    assert!(line.contains("a server that lives"), "{line}");
    // On top of it, and then the lower one in use by the upper one.
    let upper = Added::new(&["loop", &device.node()]);
    let line = refused(&["add", "loop", &device.node()], 2);
    assert!(line.contains("in use"), "{line}");
    upper.del();
    device.del();
    nothing_is_left();
}

#[test]
fn a_disk_that_may_only_be_read_is_taken_for_reading_alone() {
    driver_or_skip!();
    let disk = LoopDisk::new(Path::new("/var/tmp"), 8 << 20, 512, false).expect("a disk");
    let node = disk.path().to_str().expect("UTF-8");
    let set = |what: &str| {
        let status = Command::new("blockdev").args([what, node]).status();
        assert!(status.expect("starts").success(), "{what}");
    };
    set("--setro");
    let line = refused(&["add", "loop", node], 2);
    assert!(
        line.contains(node) && line.contains("--setrw") && line.contains("--read-only"),
        "{line}"
    );
    Added::new(&["loop", node, "--read-only"]).del();
    // A device that has it already goes on with another server.
    set("--setrw");
    let device = Added::new(&["loop", node]);
    set("--setro");
    let server = device.server(None);
    kill(server);
    device.server(Some(server));
    set("--setrw");
    write_block(&device.node(), 1, 1).expect("written");
    device.del();
    nothing_is_left();
}

#[test]
fn the_largest_device_has_the_size_that_is_told() {
    driver_or_skip!();
    let device = Added::new(&["null", "--size", "9223372036854775296"]);
    let sectors =
        fs::read_to_string(format!("/sys/block/ublkb{}/size", device.id)).expect("a size");
    assert_eq!(sectors.trim().parse::<u64>().expect("a number") * 512, device.answer["size"]);
    device.del();
}

#[test]
fn legs_that_differ_are_told() {
    driver_or_skip!();
    let files = Files::new(2, 4 << 20);
    let legs = ["mirror", "--no-record", files.name(0), files.name(1), "--check"];
    let device = Added::new(&legs);
    assert_eq!(device.answer["unused"], 0);
    device.del();
    // In content, far behind the first step.
    let second = fs::File::options().write(true).open(&files.paths[1]).expect("opens");
    second.write_all_at(&[1], (3 << 20) + 5).expect("written");
    let line = refused(&[&["add"], &legs[..]].concat(), 1);
    assert!(line.contains("backing-1 differ from byte 3145733 on"), "{line}");
    // In length.
    second
        .write_all_at(&[0], (3 << 20) + 5)
        .and_then(|()| second.set_len(5 << 20))
        .expect("longer");
    let device = Added::new(&legs);
    assert_eq!(
        (&device.answer["size"], &device.answer["unused"]),
        (&(4 << 20).into(), &(1 << 20).into())
    );
    device.del();
    let output = blk(&[&["add"], &legs[..]].concat());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("backing-1 the last 1048576 bytes are not used"), "{text}");
    answer(&["del", "--all"]);
    nothing_is_left();
}

#[test]
fn a_device_that_should_carry_no_swap_says_so() {
    driver_or_skip!();
    let files = Files::new(2, 1 << 20);
    fs::write(&files.paths[1], [1; 1 << 20]).expect("a file without holes");
    let disk = NullDisk::strict(1, 512, 1 << 20).expect("a disk");
    let disk = disk.path().to_str().expect("UTF-8");
    let file_as_disk = LoopDisk::new(Path::new("/var/tmp"), 1 << 20, 512, false).expect("a disk");
    let file_as_disk = file_as_disk.path().to_str().expect("UTF-8");
    let lower = LoopDisk::new(Path::new("/var/tmp"), 1 << 20, 512, false).expect("a disk");
    let mapped = Flaky::over(lower, Schedule::WORKS).expect("a disk on a disk");
    let mapped = mapped.path().to_str().expect("UTF-8");
    for (arguments, expected) in [
        (
            &[files.name(0)][..],
            Some("lies on a file system and has holes, which takes memory to write"),
        ),
        (&[files.name(1)], Some("lies on a file system, which takes memory to write")),
        (&[file_as_disk], Some("on a file system, which takes memory to write")),
        (&[mapped], Some("below it, on a file system, which takes memory to write")),
        (
            &[disk, "--buffered"],
            Some("it goes through the page cache, which takes memory to write"),
        ),
        (&[disk, "--max-segments", "33"], Some("up to 33 segments: --max-segments 32")),
        (&[disk, "--depth", "129"], Some("than the kernel keeps: --depth 111")),
        (&[disk, "--max-request", "2m"], Some("cuts requests: --max-request 1048576")),
        (&[disk, "--queues", "2"], Some("room for 64 requests, of which 128 may be under way")),
        (&[disk], None),
    ] {
        let device = Added::new(&[&["loop"], arguments].concat());
        let reason = device.answer["no_swap"].as_str();
        assert_eq!(device.show()["no_swap"].as_str(), reason);
        assert_eq!(reason.is_some(), expected.is_some(), "{reason:?}");
        assert!(
            expected.is_none_or(|expected| reason.is_some_and(|it| it.contains(expected))),
            "{reason:?}"
        );
        device.del();
    }
    let text = blk(&["add", "loop", files.name(0), "--id", "57"]).stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.lines().any(|line| line.starts_with("put no swap on it: ")), "{text}");
    assert!(blk(&["del", "57"]).status.success());
    nothing_is_left();
}
