//! What a backing does with whole ranges: whether it gives them back, and how, and whether zeroes take no data.
//! Found out once, when its device is made: what a file system or disk does not have, the kernel would refuse and
//! log at each request.
//!
//! Kernel interface: fallocate(2); of a disk, `/sys/dev/block/MAJOR:MINOR/queue` and `BLOCK_URING_CMD_DISCARD`
//! (Linux 6.12).

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};

use io_uring::{IoUring, opcode, types};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::limits::queue_limit;

/// `BLOCK_URING_CMD_DISCARD`.
const COMMAND_DISCARD: u32 = 0x1200;

/// How a backing takes discards and zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ranges {
    /// Whether ranges can be given back.
    pub(crate) discards: bool,
    /// Whether the block layer's command gives them back. Elsewhere that makes a hole, which reads as zeroes.
    pub(crate) by_command: bool,
    /// Whether zeroes take no data, with and without a hole.
    pub(crate) zeroes: bool,
}

impl Ranges {
    /// Of an open file of this length.
    pub(crate) fn of_file(file: &OwnedFd, len: u64) -> Self {
        let discards = punches(file, len);
        Self { discards, by_command: false, zeroes: discards && keeps_zeroes(file) }
    }

    /// Of an open disk. A hole in a disk is zeroes that the disk may unmap.
    pub(crate) fn of_disk(disk: &OwnedFd, device: u64) -> Self {
        let takes = |name| queue_limit(device, name).is_some_and(|most| most != 0);
        let zeroes = takes("write_zeroes_max_bytes");
        let gives_back = takes("discard_max_bytes");
        let by_command = gives_back && !zeroes && takes_command(disk);
        Self { discards: gives_back && (zeroes || by_command), by_command, zeroes }
    }
}

/// Whether a file system makes holes: tried behind the end of the file, where there is nothing.
fn punches(file: &OwnedFd, len: u64) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, len.next_multiple_of(4096), 4096).is_ok()
}

/// Whether a file system writes zeroes without a hole (tmpfs does not): tried on a file without a name beside this
/// one, since that takes blocks.
fn keeps_zeroes(file: &OwnedFd) -> bool {
    let zeroes = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let tried = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .ok()
        .and_then(|path| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(path.parent()?, flags, Mode::RUSR | Mode::WUSR).ok()
        })
        .filter(|beside| lies_with(beside, file))
        .map(|beside| fallocate(beside, zeroes, 0, 4096));
    // A full file system has come further than to the question.
    matches!(tried, Some(Ok(()) | Err(Errno::NOSPC | Errno::DQUOT)))
}

fn lies_with(one: &OwnedFd, other: &OwnedFd) -> bool {
    let device = |file| rustix::fs::fstat(file).map(|status| status.st_dev);
    matches!((device(one), device(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether the kernel has the command for disks: nothing to discard is wrong, and not unknown.
fn takes_command(disk: &OwnedFd) -> bool {
    let Ok(mut ring) = IoUring::new(1) else { return false };
    let disk = types::Fd(disk.as_raw_fd());
    let nothing = opcode::UringCmd16::new(disk, COMMAND_DISCARD).build();
    // SAFETY: it refers to nothing but the disk, which is open until it has completed.
    if unsafe { ring.submission().push(&nothing) }.is_err() || ring.submit_and_wait(1).is_err() {
        return false;
    }
    ring.completion().next().is_some_and(|done| done.result() == -libc::EINVAL)
}
