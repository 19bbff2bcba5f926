//! What can't be, said in one line, with nothing left behind.

use std::fs;

use super::command::{Added, Files, driver_or_skip, nothing_is_left, refused};

#[test]
fn mistakes_name_themselves() {
    driver_or_skip!();
    let files = Files::new(2, 1 << 20);
    let (one, two) = (files.name(0), files.name(1));
    let tiny = files.directory.path().join("tiny");
    fs::write(&tiny, [0; 100]).expect("a file");
    let tiny = tiny.to_str().expect("UTF-8");
    let here = files.directory.path().to_str().expect("UTF-8");
    for (arguments, said) in [
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
        (&["null", "--size", "100"], "too small"),
        (&["stripe", one, two, "--chunk", "2m"], "less than a chunk"),
    ] {
        let line = refused(&[&["add"], arguments].concat(), 2);
        assert!(line.contains(said), "{arguments:?}: {line}");
    }
    let line = refused(&["add", "loop", one, "--engine", "batch-auto", "--depth", "1"], 3);
    assert!(line.contains("batch-auto is not possible") && line.contains("depth of 2"), "{line}");
    for action in ["show", "del", "recover"] {
        let line = refused(&[action, "77"], 2);
        assert!(line.contains("device 77"), "{line}");
    }
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
fn what_is_in_use_is_not_taken() {
    driver_or_skip!();
    let files = Files::new(1, 1 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let line = refused(&["add", "loop", files.name(0)], 2);
    assert!(line.contains("in use by another device"), "{line}");
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
