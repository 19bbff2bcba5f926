//! Mirrors whose legs have records: made, started, degraded, refused.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use handoff_testbed::{Disk as _, LoopDisk};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::command::{
    Added, Files, blk, driver_or_skip, kill, nothing_is_left, parent, read_block, refused,
    write_block,
};
use super::processes::eventually;

const LEN: u64 = 8 << 20;
/// What a mirror of small legs takes at their ends.
const ROOM: u64 = 76 << 10;

fn bytes(files: &Files) -> Vec<Vec<u8>> {
    files.paths.iter().map(|path| fs::read(path).unwrap_or_default()).collect()
}

/// What is refused, with nothing written.
#[track_caller]
fn untouched(files: &Files, arguments: &[&str], said: &str) {
    let before = bytes(files);
    let line = refused(&[&["add", "mirror"], arguments].concat(), 2);
    assert!(line.contains(said), "{arguments:?}: {line}");
    assert!(bytes(files) == before, "{arguments:?}: something was written");
}

fn notes(device: &Added) -> Vec<String> {
    let notes = device.answer["mirror"]["notes"].as_array().expect("a list").iter();
    notes.map(|note| note.as_str().expect("a line").to_owned()).collect()
}

#[test]
fn a_mirror_is_made_and_started_from_its_records() {
    driver_or_skip!();
    let files = Files::new(2, LEN + 512);
    let [one, two] = [0, 1].map(|leg| files.name(leg));
    untouched(&files, &[one, two], "backing-0 has no record of a mirror");
    let device = Added::new(&["mirror", "--create", one, two]);
    assert_eq!(device.answer["size"], LEN - ROOM);
    let uuid = device.answer["mirror"]["uuid"].clone();
    write_block(&device.node(), 7, 5).expect("written");
    let last = (LEN - ROOM) / 4096 - 1;
    write_block(&device.node(), 8, last).expect("written");
    device.del();
    // In any order.
    let device = Added::new(&["mirror", two, one]);
    assert_eq!(device.answer["mirror"]["uuid"], uuid);
    assert_eq!(device.show()["files"], json!([one, two]), "by their numbers");
    assert!(
        notes(&device)[0].ends_with("backing-1 is leg 1, named as leg 0"),
        "{:?}",
        notes(&device)
    );
    assert_eq!(read_block(&device.node(), 5).expect("read"), [7; 4096]);
    assert_eq!(read_block(&device.node(), last).expect("read"), [8; 4096]);
    assert_eq!(device.show()["failed_legs"], json!([]));
    device.del();
    untouched(&files, &["--no-record", one, two], "start that without --no-record");
    untouched(&files, &["--create", one, two], "is leg 0 of the mirror");
    untouched(&files, &["--create", "--keep-first", two, one], "backing-0 is leg 0 of the mirror");
    nothing_is_left();
}

#[test]
fn a_mirror_lacks_a_leg_only_if_that_is_demanded() {
    driver_or_skip!();
    let files = Files::new(2, LEN);
    let [one, two] = [0, 1].map(|leg| files.name(leg));
    Added::new(&["mirror", "--create", one, two]).del();
    untouched(&files, &[one], "leg 1 may have newer data and cannot be read");
    let away = files.directory.path().join("away");
    fs::rename(&files.paths[1], &away).expect("renamed");
    untouched(&files, &[one, two], "leg 1 may have newer data and cannot be read");
    let device = Added::new(&["mirror", "--degraded", one, two]);
    let said = notes(&device);
    assert!(said[0].contains("backing-1: No such file"), "{said:?}");
    assert_eq!(said[1], "leg 1 of the mirror is out: the data is on leg 0 only");
    write_block(&device.node(), 9, 3).expect("written");
    assert_eq!(device.show()["failed_legs"], json!([1]));
    let text = String::from_utf8(blk(&["show", &device.id.to_string()]).stdout).expect("UTF-8");
    assert!(text.contains("degraded     without leg 1"), "{text}");
    device.del();
    // From here on its record says so.
    Added::new(&["mirror", one]).del();
    fs::rename(&away, &files.paths[1]).expect("renamed");
    untouched(&files, &[two], "leg 0 may have newer data and cannot be read");
    let device = Added::new(&["mirror", two, one]);
    assert_eq!(device.show()["failed_legs"], json!([1]));
    assert_eq!(read_block(&device.node(), 3).expect("read"), [9; 4096]);
    device.del();
    // Now the other leg knows it, too.
    untouched(&files, &[two], "all that is here went out before leg 0");
    let device = Added::new(&["mirror", "--trust", two, one, two]);
    assert_eq!(read_block(&device.node(), 3).expect("read"), [0; 4096], "the older data");
    assert_eq!(device.show()["failed_legs"], json!([0]));
    device.del();
    nothing_is_left();
}

#[test]
fn a_degraded_mirror_is_recovered_and_doctor_tells_it() {
    driver_or_skip!();
    let files = Files::new(2, LEN);
    let [one, two] = [0, 1].map(|leg| files.name(leg));
    Added::new(&["mirror", "--create", one, two]).del();
    let device = Added::new(&["mirror", "--degraded", two]);
    assert_eq!(device.show()["files"], json!(["", two]));
    write_block(&device.node(), 4, 2).expect("written");
    let server = device.server(None);
    kill(parent(server));
    kill(server);
    eventually(|| (device.show()["state"] == "quiesced").then_some(()));
    assert!(blk(&["recover", &device.id.to_string()]).status.success());
    assert_eq!(device.show()["failed_legs"], json!([0]));
    assert_eq!(read_block(&device.node(), 2).expect("read"), [4; 4096]);
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_handoff"));
    let rows = doctor.args(["doctor", "--json"]).output().expect("starts").stdout;
    let rows: Value = serde_json::from_slice(&rows).expect("one JSON value");
    let name = format!("mirror {}", device.node());
    let mut rows = rows.as_array().expect("a list").iter();
    let row = rows.find(|row| row["mechanism"] == *name).expect("a row");
    assert_eq!(row["state"], "no");
    assert_eq!(row["reason"], "it is degraded, without leg 0");
    device.del();
    nothing_is_left();
}

#[test]
fn legs_with_records_are_compared_if_that_is_asked_for() {
    driver_or_skip!();
    let files = Files::new(2, LEN);
    let [one, two] = [0, 1].map(|leg| files.name(leg));
    Added::new(&["mirror", "--create", one, two]).del();
    Added::new(&["mirror", "--check", one, two]).del();
    let leg = fs::File::options().write(true).open(two).expect("opens");
    leg.write_all_at(&[1], 70_000).expect("written");
    let line = refused(&["add", "mirror", "--check", one, two], 1);
    assert!(line.contains("differ from byte 70000 on: copy the good one over the other"), "{line}");
    let line = refused(&["add", "mirror", "--read-only", "--degraded", one], 2);
    assert!(line.contains("start it once without --read-only"), "{line}");
    let device = Added::new(&["mirror", "--read-only", one, two]);
    device.del();
    nothing_is_left();
}

#[test]
fn a_copy_that_is_interrupted_goes_on_at_the_next_start() {
    driver_or_skip!();
    // Holes are read quickly, and there are many.
    let files = Files::new(2, 64 << 30);
    let [one, two] = [0, 1].map(|leg| files.name(leg));
    let last = fs::File::options().write(true).open(one).expect("opens");
    last.write_all_at(&[1], 63 << 30).expect("written");
    let has_record = |path: &str| {
        let mut magic = [0; 8];
        let leg = fs::File::open(path).expect("opens");
        leg.read_exact_at(&mut magic, (64 << 30) - 4096).is_ok_and(|()| magic == *b"handoffM")
    };
    let interrupted = |arguments: &[&str], signal| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.args(["blk", "add", "mirror"]).args(arguments).args([one, two]);
        let child = command.stderr(Stdio::piped()).spawn().expect("starts");
        eventually(|| (has_record(one) && has_record(two)).then_some(()));
        std::thread::sleep(Duration::from_secs(1));
        kill_process(Pid::from_child(&child), signal).expect("told");
        let output = child.wait_with_output().expect("ends");
        let line = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(128 + signal.as_raw()), "{line}");
        assert!(line.starts_with("handoff: stopped by "), "{line}");
        nothing_is_left();
    };
    interrupted(&["--create", "--keep-first"], Signal::INT);
    interrupted(&[], Signal::TERM);
    interrupted(&["--foreground"], Signal::INT);
}

/// The commands below a heading of the page, run by a shell in a directory.
fn run_page(heading: &str, names: &[(&str, &str)], place: &Path) {
    const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/block.md"));
    let (_, section) = PAGE.split_once(heading).expect("the heading");
    let (_, commands) = section.split_once("```text\n").expect("commands");
    let (commands, _) = commands.split_once("```").expect("their end");
    let commands =
        names.iter().fold(commands.to_owned(), |text, (name, own)| text.replace(name, own));
    let program = Path::new(env!("CARGO_BIN_EXE_handoff")).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("is set"));
    let mut shell = Command::new("sh");
    shell.args(["-exc", &commands]).env("PATH", path).current_dir(place);
    let output = shell.output().expect("starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}: {errors}");
}

#[test]
fn what_the_page_says_to_type_replaces_a_disk_that_failed() {
    driver_or_skip!();
    let disks = [(), (), ()]
        .map(|()| LoopDisk::new(Path::new("/var/tmp"), LEN, 512, false).expect("a loop device"));
    let [one, two, new] = disks.each_ref().map(|disk| disk.path().to_str().expect("UTF-8"));
    Added::new(&["mirror", "--create", one, two]).del();
    let device = Added::new(&["mirror", "--degraded", one, "--id", "0"]);
    write_block(&device.node(), 6, 9).expect("written");
    let names = [("/dev/vdb", one), ("/dev/vdd", new)];
    run_page("#### A disk failed: what to type", &names, Path::new("/"));
    assert_eq!(device.show()["files"], json!([one, new]));
    assert_eq!(read_block(&device.node(), 9).expect("read"), [6; 4096]);
    device.del();
    let device = Added::new(&["mirror", "--degraded", new]);
    assert_eq!(read_block(&device.node(), 9).expect("read"), [6; 4096], "of the new disk");
    device.del();
    nothing_is_left();
}

#[test]
fn what_the_page_says_to_type_gives_a_mirror_records() {
    driver_or_skip!();
    let files = Files::new(2, 16 << 20);
    let place = files.directory.path();
    let paths = ["a.img", "b.img"].map(|name| place.join(name));
    for (file, path) in files.paths.iter().zip(&paths) {
        fs::rename(file, path).expect("renamed");
    }
    let [one, two] = paths.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let device = Added::new(&["mirror", "--no-record", one, two, "--id", "0"]);
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().expect("starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    };
    run("mkfs.ext4", &["-q", &device.node()]);
    drop(device);
    let line = refused(&["add", "mirror", "--create", one, two], 2);
    assert!(line.contains("an ext2, ext3 or ext4 file system of 16777216 bytes"), "{line}");
    let device = Added::new(&["mirror", "--no-record", one, two, "--id", "0"]);
    run_page("#### From a mirror without records", &[], place);
    let shown = device.show();
    assert_eq!(shown["size"], (17 << 20) - ROOM);
    assert!(shown["mirror"]["uuid"].is_string(), "{shown}");
    run("fsck.ext4", &["-fn", &device.node()]);
    device.del();
    nothing_is_left();
}
