//! The end of a device that is in use: by a signal, and by `del --force`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use handoff_testbed::helpers::bytes_at;
use handoff_testbed::load;
use rustix::process::Signal;

use super::command::{
    Added, Files, blk, driver_or_skip, kill, nothing_is_left, parent, read_block, refused, tell,
    write_block,
};
use super::file_systems::run;
use super::processes::{eventually, hold, log};

/// So many bytes are in a file that nobody has synced.
const BYTES: usize = 16 << 20;

/// A mounted file system with data that is not on its device yet. It is unmounted, and its directory removed, when this
/// is dropped.
struct Mounted {
    point: tempfile::TempDir,
}

impl Mounted {
    fn fresh(node: &str) -> Self {
        run("mkfs.ext4", &["-q", "-F", node]);
        let mounted = Self::of(node);
        fs::write(mounted.file(), bytes_at(0, BYTES)).expect("written");
        mounted
    }

    fn of(node: &str) -> Self {
        let point = tempfile::tempdir().expect("a directory");
        run("mount", &[node, point.path().to_str().expect("UTF-8")]);
        Self { point }
    }

    fn path(&self) -> &str {
        self.point.path().to_str().expect("UTF-8")
    }

    fn file(&self) -> PathBuf {
        self.point.path().join("file")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: nothing may hinder the tests that follow.
        let _ = Command::new("umount").args(["--lazy", self.path()]).output();
    }
}

/// All is there on a new device of the same file.
#[track_caller]
fn all_is_there(files: &Files, is_clean: bool) {
    let device = Added::new(&["loop", files.name(0)]);
    if is_clean {
        run("fsck.ext4", &["-f", "-n", &device.node()]);
    }
    let mounted = Mounted::of(&device.node());
    assert!(fs::read(mounted.file()).expect("read") == bytes_at(0, BYTES), "bytes were lost");
    drop(mounted);
    device.del();
    nothing_is_left();
}

fn gone(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_supervisor_that_is_asked_to_end_serves_on_until_the_file_system_is_unmounted() {
    driver_or_skip!();
    for signal in [Signal::TERM, Signal::HUP] {
        let files = Files::new(1, 64 << 20);
        // It is not detached from a session, so it hears of the session's end.
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.args(["blk", "add", "loop", files.name(0), "--id", "61", "--foreground"]);
        let errors = files.directory.path().join("errors");
        command.stderr(fs::File::create(&errors).expect("a file"));
        let mut supervisor = command.spawn().expect("handoff starts");
        let device = eventually(|| Added::existing(61));
        let server = device.server(None);
        let mounted = Mounted::fresh(&device.node());
        tell(supervisor.id() as i32, signal);
        let waits =
            format!("/dev/ublkb61 is served until it is free: mounted at {}", mounted.path());
        eventually(|| fs::read_to_string(&errors).expect("read").contains(&waits).then_some(()));
        // Meanwhile a server that dies is followed by another.
        kill(server);
        device.server(Some(server));
        assert!(supervisor.try_wait().expect("a child").is_none(), "it serves on");
        drop(mounted);
        let ended = supervisor.wait().expect("ends");
        assert_eq!(ended.code(), Some(128 + signal.as_raw()));
        nothing_is_left();
        all_is_there(&files, true);
    }
}

#[test]
fn a_server_that_is_asked_to_end_keeps_the_same_rule() {
    driver_or_skip!();
    let files = Files::new(1, 64 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let server = device.server(None);
    let supervisor = parent(server);
    let mounted = Mounted::fresh(&device.node());
    kill(supervisor);
    tell(server, Signal::TERM);
    eventually(|| log(&device).contains("is served until it is free").then_some(()));
    drop(mounted);
    eventually(|| gone(server).then_some(()));
    nothing_is_left();
    all_is_there(&files, true);
}

#[test]
fn who_insists_loses_nothing_that_can_be_written() {
    driver_or_skip!();
    let files = Files::new(1, 64 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let supervisor = parent(device.server(None));
    let mounted = Mounted::fresh(&device.node());
    tell(supervisor, Signal::TERM);
    eventually(|| log(&device).contains("is served until it is free").then_some(()));
    tell(supervisor, Signal::TERM);
    eventually(|| gone(supervisor).then_some(()));
    drop(mounted);
    nothing_is_left();
    all_is_there(&files, false);

    fs::remove_file(&files.paths[0]).expect("removed");
    fs::File::create(&files.paths[0]).and_then(|it| it.set_len(64 << 20)).expect("a file");
    let device = Added::new(&["loop", files.name(0)]);
    let mounted = Mounted::fresh(&device.node());
    let output = blk(&["del", "--force", &device.id.to_string()]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    drop(mounted);
    nothing_is_left();
    all_is_there(&files, false);
}

#[test]
fn a_forced_end_comes_although_the_server_stands_still() {
    driver_or_skip!();
    for engine in super::command::ENGINES {
        let files = Files::new(1, 8 << 20);
        let device = Added::new(&["loop", files.name(0), "--engine", engine]);
        let (node, server) = (device.node(), device.server(None));
        hold(server);
        let reader = std::thread::spawn(move || read_block(&node, 0));
        eventually(|| (device.under_way() > 0).then_some(()));
        let output = blk(&["del", "--force", "--grace", "1", &device.id.to_string()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.contains("is killed"), "{engine}: {stderr}");
        // It is over: failed, or answered by a next server that came in between.
        let _ = reader.join().expect("no panic");
        nothing_is_left();
    }
}

/// A frozen file system below, as a full thin pool or a suspended disk.
#[test]
fn a_forced_end_says_what_the_server_waits_for() {
    driver_or_skip!();
    load("loop", &[]).expect("loads");
    let place = Files::new(1, 64 << 20);
    run("mkfs.ext4", &["-q", "-F", place.name(0)]);
    let point = tempfile::tempdir().expect("a directory");
    let path = point.path().to_str().expect("UTF-8");
    run("mount", &["-o", "loop", place.name(0), path]);
    let backing = point.path().join("backing");
    fs::File::create(&backing).and_then(|file| file.set_len(8 << 20)).expect("a file");
    let backing = backing.to_str().expect("UTF-8");
    let device = Added::new(&["loop", backing, "--engine", "user-auto"]);
    let (node, server) = (device.node(), device.server(None));
    run("fsfreeze", &["--freeze", path]);
    let writer = std::thread::spawn(move || write_block(&node, 1, 0));
    eventually(|| (device.under_way() > 0).then_some(()));
    let output = blk(&["del", "--force", "--grace", "1", &device.id.to_string()]);
    // Before anything can fail: in a frozen file system nothing can be removed.
    run("fsfreeze", &["--unfreeze", path]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("cannot end before {backing} answers")), "{stderr}");
    let _ = writer.join().expect("no panic");
    eventually(|| gone(server).then_some(()));
    nothing_is_left();
    run("umount", &[path]);
}

#[test]
fn a_forced_end_of_a_file_system_without_a_mount_returns() {
    driver_or_skip!();
    let files = Files::new(1, 64 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let mounted = Mounted::fresh(&device.node());
    let mut open = fs::File::options().append(true).open(mounted.file()).expect("opens");
    drop(mounted);
    let id = device.id.to_string();
    let output = blk(&["del", "--force", &id]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("its number is free when nobody has it open any more"), "{stderr}");
    let _ = open.write_all(&[1]);
    drop(open);
    nothing_is_left();
    all_is_there(&files, false);
}

#[test]
fn a_loop_device_on_it_is_named() {
    driver_or_skip!();
    load("loop", &[]).expect("loads");
    let files = Files::new(1, 8 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let output = Command::new("losetup").args(["--find", "--show", &device.node()]).output();
    let upper = String::from_utf8(output.expect("losetup").stdout).expect("UTF-8");
    let upper = upper.trim();
    let line = refused(&["del", &device.id.to_string()], 1);
    run("losetup", &["--detach", upper]);
    let name = upper.strip_prefix("/dev/").expect("a device");
    assert!(line.contains(&format!("part of {name}")), "{line}");
    device.del();
    nothing_is_left();
}

/// How often the threads of a process were put on a processor, without those that the kernel has for it.
fn wakes(pid: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let count = |task: PathBuf| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.starts_with("iou-") {
            return 0;
        }
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
    };
    tasks.map(|task| count(task.expect("one").path())).sum()
}

#[test]
fn the_processes_of_an_idle_device_sleep() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    for engine in super::command::ENGINES {
        let device = Added::new(&["loop", files.name(0), "--engine", engine]);
        let server = device.server(None);
        let supervisor = parent(server);
        let next = super::processes::waiting(supervisor, server, None);
        let all = [server, supervisor, next];
        // What was begun is over when nothing more happens for a second.
        let mut last = all.map(wakes);
        eventually(|| {
            std::thread::sleep(Duration::from_secs(1));
            let now = all.map(wakes);
            let before = std::mem::replace(&mut last, now);
            (before == now).then_some(())
        });
        device.del();
    }
    nothing_is_left();
}
