//! Mirrors whose legs have records: made, started, degraded, refused.

use std::fs;

use serde_json::json;

use super::command::{
    Added, Files, blk, driver_or_skip, nothing_is_left, read_block, refused, write_block,
};

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
    untouched(&files, &["--create", "--keep-first", two, one], "by dd if=/dev/zero of=");
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
