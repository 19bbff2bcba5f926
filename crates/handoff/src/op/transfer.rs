//! A read or write of a file, and a wait for one.

use std::io;
use std::rc::Rc;
use std::task::Waker;

use super::loan::Loan;
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::ring::{Endpoint, MAX_REQUEST};

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
    pub(crate) fn events(self) -> i16 {
        match self {
            Self::Read | Self::AwaitRead => libc::POLLIN,
            Self::Write | Self::AwaitWrite => libc::POLLOUT,
        }
    }

    pub(crate) fn only_waits(self) -> bool {
        matches!(self, Self::AwaitRead | Self::AwaitWrite)
    }
}

/// A read or write from its start to its end.
pub(crate) struct TransferOp {
    pub(crate) file: Rc<Endpoint>,
    /// Whether the file is of a kind that can be waited for: a pipe, a terminal, a socket.
    pub(crate) pollable: bool,
    pub(crate) direction: Direction,
    /// Where in the file; `None` for pipes and the like.
    pub(crate) offset: Option<u64>,
    pub(crate) loan: Option<Loan>,
    pub(crate) done: usize,
    pub(crate) total: usize,
    pub(crate) in_kernel: bool,
    pub(crate) result: Option<Result<usize>>,
    pub(crate) held: bool,
    /// Nothing is asked of the kernel any more.
    pub(crate) last: bool,
    pub(crate) waker: Option<Waker>,
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
    pub(crate) fn left(&self, ring: Option<u32>) -> (Span, Option<u64>) {
        let offset = self.offset.map(|offset| offset + self.done as u64);
        let left = self.loan.as_ref().and_then(|loan| loan.first(self.done, ring));
        let none = Span { start: std::ptr::dangling_mut(), len: 0, slot: None };
        let mut span = left.unwrap_or(none);
        span.len = span.len.min(MAX_REQUEST);
        (span, offset)
    }

    /// What is not over by now is not gone on with, if that was the last request.
    pub(crate) fn end_if_last(&mut self) {
        if self.last && self.result.is_none() {
            self.result = Some(Err(Error::Canceled { done: self.done }));
        }
    }

    /// Takes the outcome of one request in; says whether another is needed.
    pub(crate) fn took(&mut self, result: i32) -> bool {
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
