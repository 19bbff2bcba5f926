//! The driver's control commands.

use std::fs;
use std::thread;
use std::time::Duration;

use handoff_block::Control;

use super::device::driver_or_skip;

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
