//! The driver's control commands.

use std::fs;
use std::thread;
use std::time::Duration;

use handoff_block::{Control, Engine, Kind, OwnDevice, Spec};

use super::device::{Device, Files, MIB, driver_or_skip, spec, write_at};

/// The highest number, which nobody has.
const NOBODY: u32 = (1 << 20) - 1;

/// A worker that is about to end, because the thread's last ring has gone, leaves the next ring's
/// command undone.
#[test]
fn the_kernels_workers_stay_from_one_control_to_the_next() {
    driver_or_skip!();
    let worker = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let is_there = || {
        let tasks = fs::read_dir("/proc/self/task").expect("tasks").flatten();
        let mut names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name.trim_end() == worker))
    };
    Control::open().and_then(|mut control| control.stop(NOBODY)).expect("nothing to stop");
    assert!(is_there(), "no worker did it");
    thread::sleep(Duration::from_millis(100));
    assert!(is_there(), "the worker has ended");
}

#[test]
fn a_device_that_somebody_else_has_removed_leaves_the_next_of_its_number() {
    driver_or_skip!();
    let id = Some(43);
    let first = OwnDevice::new(MIB, &Spec { id, ..Spec::default() });
    let first = first.unwrap_or_else(|error| panic!("{error}"));
    let mut control = Control::open().expect("the driver");
    control.remove(43).expect("removed");
    assert!(
        control.wait_until_gone(43, Duration::from_secs(10)).expect("asks"),
        "somebody has it open"
    );
    let files = Files::new(&[MIB]);
    let next = Device::of(&Spec { id, ..spec(Kind::Loop, &files, Engine::UserAuto) });
    drop(first);
    write_at(&next.open(), 0, &[3; 4096]).expect("it is served");
    next.end();
}
