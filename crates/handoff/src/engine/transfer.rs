//! Reads and writes of a file, on registered buffers where they are registered.
//!
//! Contracts:
//! - a write goes on with the rest until all is written; a read at an offset goes on until the
//!   buffer is full or the file ends; a read without an offset gives what there is;
//! - a pipe that has nothing, or no room, is waited for, and never blocks the thread: without a ring
//!   it is asked first, with one only when its descriptor is non-blocking;
//! - the record owns the buffer until the last completion, also when nobody waits for it any more.

use std::io;
use std::rc::Rc;
use std::task::Waker;

use io_uring::{opcode, squeue};

use crate::driver::{Backend, Inner};
use crate::endpoint::{Endpoint, with_target};
use crate::error::{Error, Result};
use crate::inflight::{Key, STAGE_READY, STAGE_TRANSFER, Token};
use crate::lease::{Loan, Span};
use crate::ring::{MAX_REQUEST, Ring};

/// What a pipe that is ready for writing takes without blocking (`PIPE_BUF`).
const PIPE_ROOM: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
    /// Nothing is moved: it is over when there is something to read.
    AwaitRead,
    /// As well: when something can be written.
    AwaitWrite,
}

impl Direction {
    /// What to wait for with poll(2).
    fn events(self) -> i16 {
        match self {
            Self::Read | Self::AwaitRead => libc::POLLIN,
            Self::Write | Self::AwaitWrite => libc::POLLOUT,
        }
    }

    fn only_waits(self) -> bool {
        matches!(self, Self::AwaitRead | Self::AwaitWrite)
    }
}

/// A read or write from its start to its end.
pub(crate) struct TransferOp {
    file: Rc<Endpoint>,
    /// Whether the file is of a kind that can be waited for: a pipe, a terminal, a socket.
    pollable: bool,
    direction: Direction,
    /// Where in the file; `None` for pipes and the like.
    offset: Option<u64>,
    loan: Option<Loan>,
    done: usize,
    total: usize,
    in_kernel: bool,
    result: Option<Result<usize>>,
    held: bool,
    /// Nothing is asked of the kernel any more.
    last: bool,
    waker: Option<Waker>,
}

impl TransferOp {
    pub(crate) fn new(
        file: Rc<Endpoint>,
        pollable: bool,
        direction: Direction,
        offset: Option<u64>,
        loan: Loan,
    ) -> Self {
        let total = loan.len();
        Self {
            file,
            pollable,
            direction,
            offset,
            loan: Some(loan),
            done: 0,
            total,
            in_kernel: false,
            result: None,
            held: true,
            last: false,
            waker: None,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel
    }

    /// The wait for the file ends with the driver that has no ring.
    pub(crate) fn end_wait(&mut self) {
        self.in_kernel = false;
    }

    /// Nobody can turn the driver: the request under way is the last.
    pub(crate) fn is_last(&mut self) {
        self.last = true;
    }

    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// The driver goes: the request under way is the last.
    pub(crate) fn give_up(&mut self) {
        self.held = false;
    }

    /// Gives the waker of before, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        self.waker.replace(waker)
    }

    /// The next range, with its slot in `ring`, and where it goes in the file.
    fn left(&self, ring: Option<u32>) -> (Span, Option<u64>) {
        let offset = self.offset.map(|offset| offset + self.done as u64);
        let left = self.loan.as_ref().and_then(|loan| loan.first(self.done, ring));
        let none = Span { start: std::ptr::dangling_mut(), len: 0, slot: None };
        let mut span = left.unwrap_or(none);
        span.len = span.len.min(MAX_REQUEST);
        (span, offset)
    }

    fn entry(&self, ring: &Ring) -> squeue::Entry {
        let (Span { start, len, slot }, offset) = self.left(Some(ring.id));
        // The file's own position is named by -1.
        let offset = offset.unwrap_or(u64::MAX);
        let len = len as u32;
        with_target!(self.file, |fd| match (self.direction, slot) {
            (Direction::Read, Some(slot)) =>
                opcode::ReadFixed::new(fd, start, len, slot).offset(offset).build(),
            (Direction::Read, None) => opcode::Read::new(fd, start, len).offset(offset).build(),
            (Direction::Write, Some(slot)) =>
                opcode::WriteFixed::new(fd, start, len, slot).offset(offset).build(),
            (Direction::Write, None) => opcode::Write::new(fd, start, len).offset(offset).build(),
            (Direction::AwaitRead | Direction::AwaitWrite, _) =>
                opcode::PollAdd::new(fd, self.direction.events() as u32).build(),
        })
    }

    /// Whether a call would not block now. Several may wait for one event, of which the first to be told
    /// leaves nothing for the others.
    fn is_ready(&self) -> bool {
        let mut asked =
            libc::pollfd { fd: self.file.raw(), events: self.direction.events(), revents: 0 };
        // SAFETY: the entry is one, and lives through the call, which waits for nothing.
        unsafe { libc::poll(&raw mut asked, 1, 0) != 0 }
    }

    fn call(&self) -> i32 {
        if self.pollable && !self.is_ready() {
            return -libc::EAGAIN;
        }
        let (Span { start, len, .. }, offset) = self.left(None);
        let fd = self.file.raw();
        // SAFETY: the range belongs to the record, alone and for the length of the call.
        let result = unsafe {
            match (self.direction, offset) {
                (Direction::Read, Some(offset)) => {
                    libc::pread(fd, start.cast(), len, offset as libc::off_t)
                }
                (Direction::Read, None) => libc::read(fd, start.cast(), len),
                (Direction::Write, Some(offset)) => {
                    libc::pwrite(fd, start.cast(), len, offset as libc::off_t)
                }
                (Direction::Write, None) if self.pollable => {
                    libc::write(fd, start.cast(), len.min(PIPE_ROOM))
                }
                (Direction::Write, None) => libc::write(fd, start.cast(), len),
                (Direction::AwaitRead | Direction::AwaitWrite, _) => 0,
            }
        };
        if result < 0 {
            -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
        } else {
            result as i32
        }
    }

    /// What is not over by now is not gone on with, if that was the last request.
    fn end_if_last(&mut self) {
        if self.last && self.result.is_none() {
            self.result = Some(Err(Error::Canceled { done: self.done }));
        }
    }

    /// Takes the outcome of one request in; says whether another is needed.
    fn took(&mut self, result: i32) -> bool {
        match result {
            _ if result < 0 && matches!(-result, libc::EINTR | libc::EAGAIN) => return true,
            _ if -result == libc::ECANCELED => {
                self.result = Some(Err(Error::Canceled { done: self.done }))
            }
            _ if result < 0 => {
                let action = match self.direction {
                    Direction::Read => "reading",
                    Direction::Write => "writing",
                    Direction::AwaitRead | Direction::AwaitWrite => "waiting for a file",
                };
                self.result = Some(Err(Error::errno(action, -result)));
            }
            _ if self.direction.only_waits() => self.result = Some(Ok(0)),
            0 if self.direction == Direction::Write && self.done < self.total => {
                self.result = Some(Err(Error::io("writing", io::ErrorKind::WriteZero.into())));
            }
            _ => {
                self.done += result as usize;
                let wants_all = self.direction == Direction::Write || self.offset.is_some();
                if result > 0 && self.done < self.total && wants_all {
                    return true;
                }
                self.result = Some(Ok(self.done));
            }
        }
        false
    }
}

/// Starts an operation, or its next request.
pub(crate) fn start(inner: &Inner, key: Key) {
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        match &inner.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                match ring.make_room(1) {
                    Ok(()) => {
                        let entry = op
                            .entry(&ring)
                            .user_data(Token { key, stage: STAGE_TRANSFER }.to_user_data());
                        // SAFETY: the range belongs to the record, which keeps it in place until the
                        // completion.
                        unsafe { ring.push(&entry) };
                        op.in_kernel = true;
                    }
                    Err(error) => op.result = Some(Err(Error::io("submitting a transfer", error))),
                }
            }
            Backend::Readiness(_) if op.pollable => {
                drop(inflight);
                return wait_for_file(inner, key);
            }
            Backend::Readiness(_) => while op.took(op.call()) {},
        }
    }
    inner.attend();
    advance(inner, key);
}

fn wait_for_file(inner: &Inner, key: Key) {
    let (file, events) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.in_kernel = true;
        (Rc::clone(&op.file), op.direction.events())
    };
    inner.await_readiness(&file, events, Token { key, stage: STAGE_READY });
}

/// The file that was waited for can be used, or failed: either way the next request tells.
pub(crate) fn ready(inner: &Inner, key: Key) {
    let again = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.in_kernel = false;
        op.end_if_last();
        let by_call = matches!(inner.backend, Backend::Readiness(_));
        op.held && op.result.is_none() && (!by_call || op.took(op.call()))
    };
    if again { start(inner, key) } else { advance(inner, key) }
}

/// A completion of the request under way.
pub(crate) fn completed(inner: &Inner, key: Key, result: i32) {
    let (again, wait) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.in_kernel = false;
        let again = op.took(result) && op.held;
        op.end_if_last();
        (again && op.result.is_none(), op.pollable && -result == libc::EAGAIN)
    };
    match (again, wait) {
        (true, true) => wait_for_file(inner, key),
        (true, false) => start(inner, key),
        (false, _) => advance(inner, key),
    }
}

/// Hands buffer and result to the holder, once the operation is over.
pub(crate) fn take(inner: &Inner, key: Key) -> Option<(Loan, Result<usize>)> {
    let (loan, result) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        let result = op.result.take()?;
        op.held = false;
        (op.loan.take().expect("a buffer is taken once"), result)
    };
    advance(inner, key);
    Some((loan, result))
}

/// The holder goes. A write goes on with the request under way; a read is not wanted any more.
pub(crate) fn let_go(inner: &Inner, key: Key) {
    let (under_way, writes) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.held = false;
        (op.in_kernel, op.direction == Direction::Write)
    };
    if !under_way {
        return advance(inner, key);
    }
    // Without a ring the operation may be over, and its record gone, when this returns.
    if matches!(inner.backend, Backend::Ring(_)) && !writes {
        inner.cancel(Token { key, stage: STAGE_TRANSFER });
    }
    inner.cancel(Token { key, stage: STAGE_READY });
}

fn advance(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.transfer(key);
    let mut waker = None;
    if op.result.is_some() {
        inner.news.set(true);
        waker = op.waker.take();
    }
    let over =
        (!op.held && !op.in_kernel).then(|| (op.loan.take(), op.waker.take(), Rc::clone(&op.file)));
    if over.is_some() {
        inflight.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(inflight);
    drop(over);
    inner.wake(waker);
}
