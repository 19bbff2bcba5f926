//! A file attached to a driver: regular files, block devices, pipes.
//!
//! Reading lends a buffer to be filled, writing lends one to be emptied. A file opened without
//! `O_DIRECT` has its bytes copied from or to the page cache by the CPU, which
//! [`File::is_direct`] tells; the kernel makes no report of its own.
//!
//! Minimum kernel: 5.1 (`READ_FIXED` and `WRITE_FIXED` for registered buffers, else `READ` and `WRITE`,
//! 5.6). Capability: none. Return signal: the completion.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::fs::{FileType, FsWord, OFlags, fcntl_getfl, fstat, fstatfs};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::core::Core;
use crate::engine::transfer;
use crate::error::{Error, Result};
use crate::handle::{self, Awaited, Handle};
use crate::memory::Buffer;
use crate::op::loan::{Lendable, Payload, PayloadMut, Refused};
use crate::op::{Direction, Op, TransferOp};
use crate::reactor::Reactor;
use crate::ring::{Endpoint, Key};

/// `TMPFS_MAGIC` of `include/uapi/linux/magic.h`.
const TMPFS: FsWord = 0x0102_1994;

/// A file, used through its driver.
#[derive(Clone)]
pub struct File {
    endpoint: Rc<Endpoint>,
    direct: bool,
    pollable: bool,
    driver: Rc<Reactor>,
}

impl File {
    pub(crate) fn attach(driver: Rc<Reactor>, fd: OwnedFd) -> Result<Self> {
        let failed = |error: rustix::io::Errno| Error::io("looking at a file", error.into());
        // A file system in memory takes the flag, and is its page cache.
        let direct = fcntl_getfl(&fd).map_err(failed)?.contains(OFlags::DIRECT)
            && fstatfs(&fd).map_err(failed)?.f_type != TMPFS;
        let kind = FileType::from_raw_mode(fstat(&fd).map_err(failed)?.st_mode);
        let pollable =
            matches!(kind, FileType::Fifo | FileType::Socket | FileType::CharacterDevice);
        let endpoint = Rc::new(Endpoint::attach(&driver.io, fd));
        Ok(Self { endpoint, direct, pollable, driver })
    }

    /// Becomes readable when so much time is over.
    pub(crate) fn alarm(driver: Rc<Reactor>, time: Duration) -> Result<Self> {
        let failed = |error: rustix::io::Errno| Error::io("setting a timer", error.into());
        let fd =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map_err(failed)?;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A time of 0 would stop it.
        let time = time.max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(time)
            .map_err(|_| Error::Invalid("a time this long is past the end of the clock"))?;
        let timer = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&fd, TimerfdTimerFlags::empty(), &timer).map_err(failed)?;
        let endpoint = Rc::new(Endpoint::attach(&driver.io, fd));
        Ok(Self { endpoint, direct: false, pollable: true, driver })
    }

    /// Whether the file was opened with `O_DIRECT` and bypasses the page cache, so that the device moves the bytes and no CPU does.
    pub fn is_direct(&self) -> bool {
        self.direct
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
        self.transfer(Direction::Read, Some(offset), buffer)
    }

    /// Reads what there is, as from a pipe; 0 bytes are its end.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn read<B: PayloadMut>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Read, None, buffer)
    }

    /// Writes all of the buffer's length in use at `offset`.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when too many operations are under way, or the offset is 2^63 or more.
    pub fn write_at<B: Payload>(&self, buffer: B, offset: u64) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Write, Some(offset), buffer)
    }

    /// Writes all of the buffer, as to a pipe. Writes under way at once may mix.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write<B: Payload>(&self, buffer: B) -> Result<Transfer<B>, Refused<B>> {
        self.transfer(Direction::Write, None, buffer)
    }

    /// Waits until there is something to read, an end, or an error. Nothing is read.
    ///
    /// # Errors
    ///
    /// When too many operations are under way.
    pub fn readable(&self) -> Result<Readiness> {
        self.await_readiness(Direction::AwaitRead)
    }

    /// Waits until something can be written, or an error.
    ///
    /// # Errors
    ///
    /// When too many operations are under way.
    pub fn writable(&self) -> Result<Readiness> {
        self.await_readiness(Direction::AwaitWrite)
    }

    fn await_readiness(&self, direction: Direction) -> Result<Readiness> {
        self.transfer(direction, None, Vec::new())
            .map(Readiness)
            .map_err(|refused: Refused<Vec<Buffer>>| refused.error)
    }

    fn transfer<B: Lendable>(
        &self,
        direction: Direction,
        offset: Option<u64>,
        buffer: B,
    ) -> Result<Transfer<B>, Refused<B>> {
        let checked = match offset {
            Some(offset) if i64::try_from(offset).is_err() => {
                Err(Error::Invalid("an offset in a file is below 2^63"))
            }
            _ => buffer.extent().check_home(|| self.driver.io.ring_id()),
        };
        let checked = checked.and_then(|()| self.driver.check_room());
        if let Err(error) = checked {
            return Err(Refused { buffer, error });
        }
        let pollable = self.pollable && offset.is_none();
        let file = Rc::clone(&self.endpoint);
        let op = TransferOp::new(file, pollable, direction, offset, buffer.into_loan());
        let key = self.driver.records.borrow_mut().insert(|| Op::Transfer(op));
        transfer::start(&self.driver, key);
        Ok(Transfer(Handle::new(Rc::clone(&self.driver), key)))
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.fd.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("fd", &self.endpoint.fd).field("direct", &self.direct).finish()
    }
}

/// A read or write under way: a future of the buffer and of the bytes moved.
///
/// Dropped, a read is cancelled and a write goes on; the buffer is kept until the kernel is done.
#[must_use = "the buffer is dropped when it comes back and nobody waits for it"]
#[derive(Debug)]
pub struct Transfer<B: Lendable>(Handle<Moved<B>>);

/// What a read or write came to.
#[derive(Debug)]
pub struct Transferred<B> {
    /// Bytes moved, or why not.
    pub result: Result<usize>,
    /// The buffer.
    pub buffer: B,
}

/// That a read or write is over.
pub(crate) struct Moved<B>(PhantomData<B>);

impl<B: Lendable> Awaited for Moved<B> {
    type Key = Key;
    type Output = Transferred<B>;

    fn take(core: &Core, key: Key) -> Option<Transferred<B>> {
        let (loan, result) = transfer::take(core, key)?;
        Some(Transferred { result, buffer: B::from_loan(loan) })
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().transfer(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        transfer::let_go(core, key);
    }

    fn without_driver(error: Error) -> Transferred<B> {
        handle::never_back(&error)
    }
}

impl<B: Lendable> Transfer<B> {
    /// Buffer and result, once the operation is over.
    ///
    /// # Errors
    ///
    /// Gives itself back until then.
    pub fn try_take(mut self) -> Result<Transferred<B>, Self> {
        self.0.take().ok_or(self)
    }
}

impl<B: Lendable> Future for Transfer<B> {
    type Output = Transferred<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Transferred<B>> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<B: Lendable> Unpin for Transfer<B> {}

/// Future of [`File::readable`] and [`File::writable`].
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Readiness(Transfer<Vec<Buffer>>);

impl Future for Readiness {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll(context).map(|over| over.result.map(|_| ()))
    }
}
