//! Flags of a single read or write (`RWF_*`, [preadv2(2)](https://man7.org/linux/man-pages/man2/preadv2.2.html)).

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::error::{Error, Result};

/// Flags of a single read or write, for [`File::read_at_with`](crate::File::read_at_with) and
/// [`File::write_at_with`](crate::File::write_at_with). They are joined by `|`.
///
/// A kernel or file system that does not know a flag refuses it with `EOPNOTSUPP`, and the buffer comes back.
///
/// ```
/// use handoff::RwFlags;
///
/// let flags = RwFlags::DSYNC | RwFlags::APPEND;
/// assert!(flags.contains(RwFlags::DSYNC) && !flags.contains(RwFlags::SYNC));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RwFlags(i32);

impl RwFlags {
    /// No flag: as [`File::read_at`](crate::File::read_at) and [`File::write_at`](crate::File::write_at).
    pub const NONE: Self = Self(0);
    /// A write ends when its bytes, and what is needed to read them again, are on the device (`RWF_DSYNC`, Linux 4.7).
    pub const DSYNC: Self = Self(libc::RWF_DSYNC);
    /// The same with all that the file system keeps of the file (`RWF_SYNC`, Linux 4.7).
    pub const SYNC: Self = Self(libc::RWF_SYNC);
    /// The thread polls the device instead of waiting for its interrupt (`RWF_HIPRI`, Linux 4.6), where the file is
    /// direct and the device has queues for that. A ring with sockets cannot poll devices. So such a read or write is a
    /// call, with a ring too, and is over when it was begun.
    pub const HIPRI: Self = Self(libc::RWF_HIPRI);
    /// What would have to wait, such as for a disk, ends (`RWF_NOWAIT`; reads Linux 4.14, writes of direct files 4.13,
    /// of others 6.0 or later by file system). The result has the bytes moved by then, or is `EAGAIN` if there are
    /// none.
    pub const NOWAIT: Self = Self(libc::RWF_NOWAIT);
    /// A write goes to the end of the file, whatever the offset (`RWF_APPEND`, Linux 4.16).
    pub const APPEND: Self = Self(libc::RWF_APPEND);
    /// A write is on the device whole or not at all, also when the power fails (`RWF_ATOMIC`, Linux 6.11, and a file
    /// system and a device that can: [`Metadata::atomic_write`](crate::Metadata::atomic_write)).
    pub const ATOMIC: Self = Self(libc::RWF_ATOMIC);

    const OF_WRITES: Self = Self(Self::DSYNC.0 | Self::SYNC.0 | Self::APPEND.0 | Self::ATOMIC.0);

    /// The bits, as the kernel has them.
    pub fn bits(self) -> i32 {
        self.0
    }

    /// Whether all of these are among them.
    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the thread itself makes the call.
    pub(crate) fn polls(self) -> bool {
        self.contains(Self::HIPRI)
    }

    pub(crate) fn never_waits(self) -> bool {
        self.contains(Self::NOWAIT)
    }

    /// Whether a write may not be cut.
    pub(crate) fn is_atomic(self) -> bool {
        self.contains(Self::ATOMIC)
    }

    /// Refuses what has no meaning for a read.
    pub(crate) fn check_read(self) -> Result<()> {
        match self.0 & Self::OF_WRITES.0 {
            0 => Ok(()),
            _ => Err(Error::Invalid(
                "a read has no flags of writes: DSYNC, SYNC, APPEND and ATOMIC are for write_at_with",
            )),
        }
    }

    /// What was being done, with what the error number may mean.
    pub(crate) fn failed(self, writes: bool, errno: i32) -> &'static str {
        match (errno, writes) {
            (libc::EAGAIN, true) => "writing without a wait (RWF_NOWAIT)",
            (libc::EAGAIN, false) => "reading without a wait (RWF_NOWAIT)",
            (libc::EINVAL, true) if self.is_atomic() => {
                "writing at once or not at all (RWF_ATOMIC: the length must be a power of two within \
                 Metadata::atomic_write, the offset a multiple of it, the memory one piece)"
            }
            (libc::EOPNOTSUPP, true) if self.is_atomic() => {
                "writing at once or not at all (RWF_ATOMIC: Linux 6.11, a file opened with O_DIRECT, and a file \
                 system and device that can)"
            }
            (libc::EOPNOTSUPP, true) if !self.is_empty() => {
                "writing with flags (the kernel, or the file system, does not know one of them)"
            }
            (libc::EOPNOTSUPP, false) if !self.is_empty() => {
                "reading with flags (the kernel, or the file system, does not know one of them)"
            }
            (_, true) => "writing",
            (_, false) => "reading",
        }
    }
}

impl BitOr for RwFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RwFlags {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl fmt::Debug for RwFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RwFlags({:#x})", self.0)
    }
}
