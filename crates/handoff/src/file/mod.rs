//! A file attached to a driver: regular files, block devices, pipes.
//!
//! A read fills the lent buffer, a write empties it. For a file opened without `O_DIRECT`, the CPU copies
//! the bytes from or to the page cache, and [`File::is_direct`] says so; the kernel itself reports nothing.
//!
//! Minimum kernel: 5.1 (`READ_FIXED` and `WRITE_FIXED` for registered buffers, else `READ` and `WRITE`,
//! 5.6). Capability: none. Return signal: the completion. [`storage`] and [`directory`] have what moves no bytes.

pub(crate) mod call;
pub(crate) mod directory;
pub(crate) mod metadata;
pub(crate) mod open_options;
pub(crate) mod rw_flags;
pub(crate) mod storage;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, FsWord, OFlags, StatxFlags, fcntl_getfl, fstat, fstatfs, statx,
};

use self::metadata::{Alignment, Metadata};
use self::open_options::OpenOptions;
use self::rw_flags::RwFlags;
use crate::error::{Error, Result};
use crate::op::loan::{Lendable, Payload, PayloadMut, Refused};
use crate::op::{Attached, Direction};
use crate::reactor::Reactor;
use crate::ring::{Endpoint, FileKind, MAX_REQUEST};
use crate::transfer::{Readiness, Transfer};

/// `TMPFS_MAGIC` of `include/uapi/linux/magic.h`.
const TMPFS: FsWord = 0x0102_1994;

/// Blocks of a direct file whose file system does not say: a page, the largest on common devices.
const BLOCKS: usize = 4096;

/// A file, used through its driver.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Region};
///
/// let driver = Driver::new()?;
/// let mut region = Region::anonymous(1 << 16)?;
/// let file = driver.file(std::fs::File::open("disk.img")?)?;
/// let buffer = region.take(1 << 16).unwrap();
/// let read = driver.block_on(file.read_at(buffer, 4096)?)??;
/// println!("{} bytes: {:?}", read.result?, &read.buffer[..16]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct File {
    endpoint: Rc<Endpoint>,
    driver: Rc<Reactor>,
}

/// What a file system says about the alignment of direct I/O.
fn alignment(fd: &OwnedFd) -> Option<Alignment> {
    let asked = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    let told = statx(fd, "", AtFlags::EMPTY_PATH, asked).ok()?;
    Metadata(Box::new(told)).alignment()
}

/// What the kernel says about a file. It always reports type and flags of an open file; if it did not, the file would
/// be used as a plain one.
fn kind(fd: &OwnedFd) -> FileKind {
    let kind = fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let kind = kind.unwrap_or(FileType::Unknown);
    // A file system in memory accepts the flag, and is its own page cache. Nodes of devices lie in one,
    // too.
    let direct = fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
        && (kind == FileType::BlockDevice
            || fstatfs(fd).is_ok_and(|system| system.f_type != TMPFS));
    FileKind {
        pollable: matches!(kind, FileType::Fifo | FileType::Socket | FileType::CharacterDevice),
        blocks: direct.then(|| alignment(fd).map_or(BLOCKS, |it| it.blocks)),
    }
}

impl File {
    pub(crate) fn attach(driver: Rc<Reactor>, fd: OwnedFd) -> Self {
        Self { endpoint: Rc::new(Endpoint::unlisted(&driver.core.io, fd)), driver }
    }

    /// What the kernel says about it. The first who needs that asks, once: a splice needs no look.
    fn kind(&self) -> FileKind {
        *self.endpoint.kind.get_or_init(|| kind(&self.endpoint.fd))
    }

    /// Whether the file was opened with `O_DIRECT` and bypasses the page cache: the device moves the bytes, not
    /// the CPU.
    pub fn is_direct(&self) -> bool {
        self.kind().blocks.is_some()
    }

    /// The alignment of reads and writes past the page cache; `None` where the file is not
    /// [direct](Self::is_direct), or the file system does not say (`STATX_DIOALIGN`, Linux 6.1).
    ///
    /// Align each of several pieces that are read or written together to `memory`, in address and length, and
    /// all of them together to `blocks`.
    pub fn alignment(&self) -> Option<Alignment> {
        self.is_direct().then(|| alignment(&self.endpoint.fd))?
    }

    /// Reads at `offset` until the buffer's length in use is filled or the file ends.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when too many operations are under way, or the offset is 2^63 or more.
    pub fn read_at<B: PayloadMut>(
        &self,
        buffer: B,
        offset: u64,
    ) -> Result<Transfer<B>, Refused<B>> {
        self.read_at_with(buffer, offset, RwFlags::NONE)
    }

    /// As [`read_at`](Self::read_at), with flags for this read (preadv2(2)).
    ///
    /// # Errors
    ///
    /// As `read_at`; [`Error::Invalid`] for flags of writes.
    pub fn read_at_with<B: PayloadMut>(
        &self,
        buffer: B,
        offset: u64,
        flags: RwFlags,
    ) -> Result<Transfer<B>, Refused<B>> {
        match flags.check_read() {
            Ok(()) => self.transfer(Direction::Read, Some(offset), buffer, flags),
            Err(error) => Err(Refused { buffer, error }),
        }
    }

    /// Reads what there is, as from a pipe; 0 bytes mean its end.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn read<B: PayloadMut>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Read, None, buffer, RwFlags::NONE)
    }

    /// Writes all of the buffer's length in use at `offset`. Several pieces go as one request, more than 1,024 as
    /// several.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when too many operations are under way, or the offset is 2^63 or more.
    pub fn write_at<B: Payload>(&self, buffer: B, offset: u64) -> Result<Transfer<B>, Refused<B>> {
        self.write_at_with(buffer, offset, RwFlags::NONE)
    }

    /// As [`write_at`](Self::write_at), with flags for this write (pwritev2(2)).
    ///
    /// ```no_run
    /// # async fn example(log: &handoff::File, record: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
    /// use handoff::RwFlags;
    ///
    /// // The record is on the device when this ends, at the end of the log.
    /// let written = log.write_at_with(record, 0, RwFlags::APPEND | RwFlags::DSYNC)?.await?;
    /// println!("{} bytes are safe", written.result?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As `write_at`; [`Error::Invalid`] for an [atomic](RwFlags::ATOMIC) write that one request cannot take: of several
    /// pieces, or more than 1 GiB.
    pub fn write_at_with<B: Payload>(
        &self,
        buffer: B,
        offset: u64,
        flags: RwFlags,
    ) -> Result<Transfer<B>, Refused<B>> {
        if flags.is_atomic() {
            let extent = buffer.extent();
            if extent.pieces > 1 || extent.bytes > MAX_REQUEST {
                let error = Error::Invalid(
                    "an atomic write is one request of one piece of memory: lend less",
                );
                return Err(Refused { buffer, error });
            }
        }
        self.transfer(Direction::Write, Some(offset), buffer, flags)
    }

    /// Writes all of the buffer, as to a pipe. Concurrent writes may mix.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write<B: Payload>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Write, None, buffer, RwFlags::NONE)
    }

    /// Waits until there is something to read, an end, or an error. Nothing is read.
    ///
    /// # Errors
    ///
    /// [`Error::DriverGone`](crate::Error::DriverGone).
    pub fn readable(&self) -> Result<Readiness> {
        Readiness::begin(&self.driver, self.attached(), self.kind().pollable, Direction::AwaitRead)
    }

    /// Waits until something can be written, or an error.
    ///
    /// # Errors
    ///
    /// [`Error::DriverGone`](crate::Error::DriverGone).
    pub fn writable(&self) -> Result<Readiness> {
        Readiness::begin(&self.driver, self.attached(), self.kind().pollable, Direction::AwaitWrite)
    }

    /// For a request to the ring.
    fn attached(&self) -> Attached {
        self.kind();
        Attached::File(self.enlisted())
    }

    /// The same, where no bytes move.
    fn enlisted(&self) -> Rc<Endpoint> {
        self.endpoint.enlist(&self.driver.core.io);
        Rc::clone(&self.endpoint)
    }

    fn transfer<B: Lendable>(
        &self,
        direction: Direction,
        offset: Option<u64>,
        buffer: B,
        flags: RwFlags,
    ) -> Result<Transfer<B>, Refused<B>> {
        if let Some(offset) = offset
            && i64::try_from(offset).is_err()
        {
            let error = Error::Invalid("an offset in a file is below 2^63");
            return Err(Refused { buffer, error });
        }
        if (flags.polls() || flags.is_atomic()) && buffer.extent().home.is_some() {
            let error = Error::Invalid(
                "a lease has no address, which the kernel wants for RwFlags::HIPRI and ATOMIC: leave them out",
            );
            return Err(Refused { buffer, error });
        }
        let pollable = self.kind().pollable && offset.is_none();
        Transfer::begin_with(
            &self.driver,
            self.attached(),
            pollable,
            direction,
            offset,
            buffer,
            flags,
        )
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("fd", &self.endpoint.fd)
            .field("direct", &self.is_direct())
            .finish()
    }
}
