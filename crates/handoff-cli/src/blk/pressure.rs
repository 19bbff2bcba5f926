//! The processes behind a device when memory is short.
//!
//! Memory may be short because dirty pages wait to be written through the very device, or because
//! swapped-out pages must come back from it. All of that waits for the device's processes, so:
//! - they never wait for memory that must be freed by writing (PR_SET_IO_FLUSHER; threads and the kernel's
//!   workers for them inherit it, so it is set before there are any);
//! - pages that they have touched are not swapped out (mlockall);
//! - the OOM killer takes others, since these processes' memory is limited and killing them would free
//!   little.
//!
//! A server that was killed nevertheless is replaced like any other.
//!
//! Capabilities: CAP_SYS_RESOURCE, CAP_IPC_LOCK. Without one, its setting is skipped, and the log says so.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use handoff_block::Kind;
use handoff_block::state::Record;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;

/// Why there should be no swap on a device, if known: a file system below it takes kernel memory for its
/// writes, most if the file has holes; so does the page cache.
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
    // A partition uses its disk's.
    ["", ".."].iter().map(|place| disk.join(place)).find_map(|disk| {
        let file = fs::read_to_string(disk.join("loop/backing_file"));
        let made_of = || fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
        let of_parts = || made_of().find_map(|part| file_below(&part.path()));
        file.ok().map(|file| file.trim_end().to_owned()).or_else(of_parts)
    })
}

/// Prepares this process and those that it starts. Call it before the process has threads and rings.
pub(super) fn stand() {
    let spared = fs::write("/proc/self/oom_score_adj", "-1000");
    told("the OOM killer may take it", spared);
    told("it may wait for itself", configure_io_flusher_behavior(true));
}

/// Keeps this process in memory: its program whole, the rest at its first use.
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
