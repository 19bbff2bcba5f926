//! Reads and writes of a file, on registered buffers where they are registered.
//!
//! Contracts:
//! - a write goes on with the rest until all is written; a read at an offset goes on until the
//!   buffer is full or the file ends; a read without an offset gives what there is;
//! - the record owns the buffer until the last completion, also when nobody waits for it any more;
//! - what would block waits for readiness. Without a ring that holds for pipes and sockets (pipes
//!   from Linux 6.4), and for what is opened non-blocking; other calls block.

use std::io;
use std::rc::Rc;
use std::task::Waker;

use io_uring::{opcode, squeue};

use crate::driver::{Backend, Inner};
use crate::endpoint::{Endpoint, with_target};
use crate::error::{Error, Result};
use crate::inflight::{Key, STAGE_READY, Token};
use crate::lease::Loan;
use crate::ring::Ring;

/// The most bytes that one request is given; the kernel takes no more than 2 GiB at once.
const MAX_REQUEST: usize = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// A read or write from its start to its end.
pub(crate) struct TransferOp {
    file: Rc<Endpoint>,
    direction: Direction,
    /// Where in the file; `None` for pipes and the like.
    offset: Option<u64>,
    loan: Option<Loan>,
    done: usize,
    total: usize,
    in_kernel: bool,
    /// What is in the kernel is a wait for readiness.
    waiting: bool,
    /// Calls are to ask for readiness instead of blocking.
    nowait: bool,
    result: Option<Result<usize>>,
    held: bool,
    waker: Option<Waker>,
}

/// What is needed after a request or call.
enum Next {
    Nothing,
    Another,
    /// Another, once the file is ready.
    Readiness,
}

impl TransferOp {
    pub(crate) fn new(
        file: Rc<Endpoint>,
        direction: Direction,
        offset: Option<u64>,
        nowait: bool,
        loan: Loan,
    ) -> Self {
        let total = loan.len();
        Self {
            file,
            direction,
            offset,
            loan: Some(loan),
            done: 0,
            total,
            in_kernel: false,
            waiting: false,
            nowait,
            result: None,
            held: true,
            waker: None,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel
    }

    /// The driver goes: the request under way is the last.
    pub(crate) fn give_up(&mut self) {
        self.held = false;
    }

    /// A wait of a driver without a ring ends with it.
    pub(crate) fn end_wait(&mut self) {
        self.in_kernel = false;
    }

    /// Gives the waker of before, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        self.waker.replace(waker)
    }

    /// The next range in memory, its slot with `ring`, and where it goes in the file.
    fn left(&self, ring: Option<u32>) -> (*mut u8, usize, Option<u16>, Option<u64>) {
        let mut skip = self.done;
        for piece in self.loan.iter().flat_map(Loan::pieces) {
            let piece = &piece.0;
            if skip < piece.len() {
                // SAFETY: `skip` is within the piece.
                let start = unsafe { piece.start().add(skip) };
                let slot = ring.and_then(|ring| piece.slot(ring));
                let offset = self.offset.map(|offset| offset + self.done as u64);
                return (start.as_ptr(), (piece.len() - skip).min(MAX_REQUEST), slot, offset);
            }
            skip -= piece.len();
        }
        (std::ptr::dangling_mut(), 0, None, self.offset)
    }

    fn entry(&self, ring: &Ring) -> squeue::Entry {
        let (start, len, slot, offset) = self.left(Some(ring.id));
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
        })
    }

    fn call(&mut self) -> i32 {
        let (start, len, _, offset) = self.left(None);
        let fd = self.file.raw();
        let range = libc::iovec { iov_base: start.cast(), iov_len: len };
        // The file's own position is named by -1.
        let position = offset.map_or(-1, |offset| offset as libc::off_t);
        let flags = if self.nowait { libc::RWF_NOWAIT } else { 0 };
        // SAFETY: the range belongs to the record, alone and for the length of the call.
        let result = unsafe {
            match self.direction {
                Direction::Read => libc::preadv2(fd, &range, 1, position, flags),
                Direction::Write => libc::pwritev2(fd, &range, 1, position, flags),
            }
        };
        if result >= 0 {
            return result as i32;
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EOPNOTSUPP if self.nowait => {
                self.nowait = false;
                self.call()
            }
            errno => -errno,
        }
    }

    /// Takes the outcome of one request in.
    fn took(&mut self, result: i32) -> Next {
        match result {
            _ if -result == libc::EINTR => return Next::Another,
            _ if -result == libc::EAGAIN => return Next::Readiness,
            _ if -result == libc::ECANCELED => {
                self.result = Some(Err(Error::Canceled { done: self.done }))
            }
            _ if result < 0 => {
                let action = if self.direction == Direction::Read { "reading" } else { "writing" };
                self.result = Some(Err(Error::errno(action, -result)));
            }
            0 if self.direction == Direction::Write && self.done < self.total => {
                self.result = Some(Err(Error::io("writing", io::ErrorKind::WriteZero.into())));
            }
            _ => {
                self.done += result as usize;
                let wants_all = self.direction == Direction::Write || self.offset.is_some();
                if result > 0 && self.done < self.total && wants_all {
                    return Next::Another;
                }
                self.result = Some(Ok(self.done));
            }
        }
        Next::Nothing
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
                        let entry =
                            op.entry(&ring).user_data(Token { key, stage: 0 }.to_user_data());
                        // SAFETY: the range belongs to the record, which keeps it in place until the
                        // completion.
                        unsafe { ring.push(&entry) };
                        op.in_kernel = true;
                    }
                    Err(error) => op.result = Some(Err(Error::io("submitting a transfer", error))),
                }
            }
            Backend::Readiness(_) => loop {
                let result = op.call();
                match op.took(result) {
                    Next::Another => {}
                    Next::Nothing => break,
                    Next::Readiness => {
                        drop(inflight);
                        return wait_for_readiness(inner, key);
                    }
                }
            },
        }
    }
    advance(inner, key);
}

fn wait_for_readiness(inner: &Inner, key: Key) {
    let (file, events) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.in_kernel = true;
        op.waiting = true;
        let read = op.direction == Direction::Read;
        (Rc::clone(&op.file), if read { libc::POLLIN } else { libc::POLLOUT })
    };
    inner.await_readiness(&file, events, Token { key, stage: STAGE_READY });
}

/// The file is ready, or the wait for that was cancelled.
pub(crate) fn ready(inner: &Inner, key: Key) {
    let again = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.in_kernel = false;
        op.waiting = false;
        op.held
    };
    if again { start(inner, key) } else { advance(inner, key) }
}

/// A completion of the request under way.
pub(crate) fn completed(inner: &Inner, key: Key, result: i32) {
    let (next, held) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.in_kernel = false;
        (op.took(result), op.held)
    };
    match next {
        Next::Another if held => start(inner, key),
        Next::Readiness if held => wait_for_readiness(inner, key),
        _ => advance(inner, key),
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
    let cancel = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.transfer(key);
        op.held = false;
        let stage = if op.waiting { STAGE_READY } else { 0 };
        (op.in_kernel && op.direction == Direction::Read).then_some(stage)
    };
    match cancel {
        // What that ends sees to the record.
        Some(stage) => inner.cancel(Token { key, stage }),
        None => advance(inner, key),
    }
}

fn advance(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.transfer(key);
    let mut waker = None;
    if op.result.is_some() {
        inner.news.set(true);
        waker = op.waker.take();
    }
    let record = (!op.held && !op.in_kernel).then(|| inflight.remove(key));
    // What is dropped or woken may use the driver.
    drop(inflight);
    drop(record);
    if let Some(waker) = waker {
        waker.wake();
    }
}
