//! What storage engines do with an open file beside reads and writes.
//!
//! Minimum kernel: 6.1 with a ring (`FSYNC`, 5.1; `SYNC_FILE_RANGE`, 5.2; `FALLOCATE`, `FADVISE`, `STATX`, 5.6; `LINKAT`,
//! 5.15; `FTRUNCATE`, 6.9, and before that ftruncate(2), which blocks the thread). Without a ring any. Capability: none.
//! Return signal: the completion.

use std::path::Path;
use std::rc::Rc;

use rustix::fs::{Advice as FileAdvice, AtFlags, FallocateFlags};

use super::call::{self, FileCall};
use super::directory::Directory;
use super::{File, Metadata};
use crate::error::{Error, Result};
use crate::op::{FileCall as Call, Name, Rest};
use crate::ring::Endpoint;

/// What becomes of a range of a file ([`File::allocate`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allocation {
    /// It gets room on the device, so that writes there do not fail for lack of it. A file that is shorter grows.
    Grow,
    /// The same, and the file keeps its length (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// Its bytes become zero, and its room goes (`FALLOC_FL_PUNCH_HOLE`). The file keeps its length.
    PunchHole,
    /// Its bytes become zero, and it has room (`FALLOC_FL_ZERO_RANGE`). A file that is shorter grows.
    Zero,
    /// The same, and the file keeps its length.
    ZeroKeepSize,
}

/// What a program will do with a range of a file ([`File::advise`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Nothing that is known.
    Normal,
    /// Read it in order: the kernel reads more ahead.
    Sequential,
    /// Read it here and there: the kernel reads nothing ahead.
    Random,
    /// Read it once.
    NoReuse,
    /// Read it soon: the kernel begins to read it into the page cache.
    WillNeed,
    /// Nothing more: pages that are on the device leave the page cache.
    DontNeed,
}

/// How far [`File::write_back`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteBack {
    /// The kernel begins to write the range's changed pages.
    Begin,
    /// It has written them.
    Finish,
}

impl File {
    fn call(&self, call: impl FnOnce(Rc<Endpoint>) -> Call) -> Result<FileCall<()>> {
        FileCall::begin(&self.driver, call(self.enlisted()), call::nothing)
    }

    /// Puts the file's bytes, and all that the file system keeps of it, on the device (fsync(2)). Its name is in a
    /// directory: see [`Directory::sync_all`].
    ///
    /// The kernel reports a failed write back once, to each who had the file open by then. Then nobody knows which
    /// bytes are on the device; do not try again.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] when too many operations are under way. [`FileCall`] reports later errors.
    pub fn sync_all(&self) -> Result<FileCall<()>> {
        self.call(|file| Call::Sync(file, false))
    }

    /// As [`sync_all`](Self::sync_all), only with what is needed to read the bytes again (fdatasync(2)).
    ///
    /// # Errors
    ///
    /// As `sync_all`.
    pub fn sync_data(&self) -> Result<FileCall<()>> {
        self.call(|file| Call::Sync(file, true))
    }

    /// Writes changed pages of a range back (sync_file_range(2)); `len` 0 means up to the end. This spreads the work of a
    /// later sync, and is none: neither the device's cache is flushed, nor what is needed to find the bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a range that ends beyond 2^63 - 1; else as [`sync_all`](Self::sync_all).
    pub fn write_back(&self, offset: u64, len: u64, how: WriteBack) -> Result<FileCall<()>> {
        let rest = range(offset, len)?;
        let flags = match how {
            WriteBack::Begin => libc::SYNC_FILE_RANGE_WRITE,
            WriteBack::Finish => {
                libc::SYNC_FILE_RANGE_WAIT_BEFORE
                    | libc::SYNC_FILE_RANGE_WRITE
                    | libc::SYNC_FILE_RANGE_WAIT_AFTER
            }
        };
        self.call(|file| Call::WriteBack(file, rest, flags))
    }

    /// Gives room to a range, or takes its bytes (fallocate(2)).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty range, or one that ends beyond 2^63 - 1; else as [`sync_all`](Self::sync_all).
    pub fn allocate(&self, offset: u64, len: u64, how: Allocation) -> Result<FileCall<()>> {
        let range = range(offset, len)?;
        if len == 0 {
            return Err(Error::Invalid("a range to allocate has bytes"));
        }
        let mode = match how {
            Allocation::Grow => FallocateFlags::empty(),
            Allocation::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocation::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocation::Zero => FallocateFlags::ZERO_RANGE,
            Allocation::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        self.call(|file| Call::Allocate(file, range, mode))
    }

    /// Cuts the file to this length, or lengthens it by a hole (ftruncate(2)). Before Linux 6.9 a ring cannot do that,
    /// and the call blocks the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a length beyond 2^63 - 1; else as [`sync_all`](Self::sync_all).
    pub fn set_len(&self, len: u64) -> Result<FileCall<()>> {
        range(len, 0)?;
        self.call(|file| Call::SetLen(file, len))
    }

    /// Tells the kernel what you will do with a range (posix_fadvise(2)); `len` 0 means up to the end.
    ///
    /// # Errors
    ///
    /// As [`write_back`](Self::write_back).
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<FileCall<()>> {
        let rest = range(offset, len)?;
        let advice = match advice {
            Advice::Normal => FileAdvice::Normal,
            Advice::Sequential => FileAdvice::Sequential,
            Advice::Random => FileAdvice::Random,
            Advice::NoReuse => FileAdvice::NoReuse,
            Advice::WillNeed => FileAdvice::WillNeed,
            Advice::DontNeed => FileAdvice::DontNeed,
        };
        self.call(|file| Call::Advise(file, rest, advice))
    }

    /// Asks what the kernel knows of the file (statx(2)).
    ///
    /// # Errors
    ///
    /// As [`sync_all`](Self::sync_all).
    pub fn metadata(&self) -> Result<FileCall<Metadata>> {
        let itself = Name { directory: Some(self.enlisted()), path: c"".into() };
        let call = Call::Stat(itself, AtFlags::EMPTY_PATH, Box::new_uninit());
        FileCall::begin(&self.driver, call, call::metadata)
    }

    /// Gives the file a name, which must be free: one that was opened as
    /// [temporary](crate::OpenOptions::temporary), or another (linkat(2) by `/proc/self/fd`).
    ///
    /// # Errors
    ///
    /// As [`Directory::open`].
    pub fn link(&self, directory: &Directory, path: impl AsRef<Path>) -> Result<FileCall<()>> {
        let to = directory.name(path)?;
        let file = self.enlisted();
        let own = format!("/proc/self/fd/{}", file.raw());
        // The name keeps the descriptor open until the kernel has followed it.
        let own = call::name(Some(file), Path::new(&own))?;
        FileCall::begin(&self.driver, Call::Link(own, to), call::nothing)
    }
}

/// A range within the largest file.
fn range(offset: u64, len: u64) -> Result<Rest> {
    match offset.checked_add(len).map(i64::try_from) {
        Some(Ok(_)) => Ok(Rest { offset, len }),
        _ => Err(Error::Invalid("a file ends before 2^63")),
    }
}
