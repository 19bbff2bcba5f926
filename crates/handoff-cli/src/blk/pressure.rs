//! The processes behind a device when memory is short.
//!
//! Memory may be short because what is dirty waits to be written through the very device, or because
//! what was put out is to come back from it. Its processes are what all of that waits for, so:
//! - they wait for no memory that is to be had by writing (PR_SET_IO_FLUSHER, which threads and the
//!   kernel's workers for them inherit, so it is set before there are any);
//! - what they have touched is not put out (mlockall);
//! - the OOM killer takes others, since their memory is bounded and what it would free is little.
//!
//! A server that was killed all the same is followed as any other.
//!
//! Capabilities: CAP_SYS_RESOURCE, CAP_IPC_LOCK. Without, each is left as it is, and the log says so.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use handoff_block::Kind;
use handoff_block::state::Record;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;

/// Why there should be no swap on a device, if it can be told: what has a file system below it takes memory
/// of the kernel's for what it writes, most where the file has holes; so does the page cache.
pub(super) fn no_swap(record: &Record) -> Option<String> {
    let spec = &record.spec;
    if spec.target == Kind::Null {
        return Some("it keeps nothing".to_owned());
    }
    if !spec.direct {
        return Some(
            "it goes through the page cache, which takes memory to write (--buffered)".to_owned(),
        );
    }
    let below = spec.files.iter().find_map(|file| file_system_below(file));
    let below =
        below.map(|reason| format!("{reason}, which takes memory to write; whole disks do not"));
    below.or_else(|| {
        record.takes_memory().map(|reason| format!("it takes memory to serve: {reason}"))
    })
}

fn file_system_below(file: &Path) -> Option<String> {
    let metadata = fs::metadata(file).ok()?;
    let name = file.display();
    if metadata.is_file() {
        let holes = if metadata.blocks() * 512 < metadata.len() { " and has holes" } else { "" };
        return Some(format!("{name} lies on a file system{holes}"));
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let file = file_below(Path::new(&format!("/sys/dev/block/{major}:{minor}")))?;
    Some(format!("{name} has the file {file} below it, on a file system"))
}

/// The file of a loop device that a disk or partition is, or is made of.
fn file_below(disk: &Path) -> Option<String> {
    // What a partition has is its disk's.
    ["", ".."].iter().map(|place| disk.join(place)).find_map(|disk| {
        let file = fs::read_to_string(disk.join("loop/backing_file"));
        let made_of = || fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
        let of_parts = || made_of().find_map(|part| file_below(&part.path()));
        file.ok().map(|file| file.trim_end().to_owned()).or_else(of_parts)
    })
}

/// Readies this process and those that it starts. Has to come before its threads and rings.
pub(super) fn stand() {
    let spared = fs::write("/proc/self/oom_score_adj", "-1000");
    told("the OOM killer may take it", spared);
    told("it may wait for itself", configure_io_flusher_behavior(true));
}

/// Keeps this process in memory: its program whole, the rest as it comes to be used.
pub(super) fn stay_in_memory() {
    let later = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let locked = mlockall(MlockAllFlags::CURRENT).and_then(|()| mlockall(later));
    told("it may be put out of memory", locked);
}

fn told<E: std::fmt::Display>(what: &str, done: Result<(), E>) {
    if let Err(error) = done {
        tracing::warn!("{what}: {error}");
    }
}
