//! A read or write of a file, and a wait for one.

use std::io;
use std::rc::Rc;

use super::loan::Loan;
use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::memory::AddressRange;
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

/// The kernel's own word for a call that a signal cut short, which Linux 6.1 tells of a read that is cancelled
/// while a worker waits for a pipe.
const ERESTARTSYS: i32 = 512;

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
    pub(crate) state: TransferState,
    pub(crate) holder: Waiter,
}

/// How far a transfer is.
pub(crate) enum TransferState {
    /// The kernel has nothing of it, and is to be asked.
    Idle,
    /// The kernel has a request of it, or waits for the file.
    InKernel,
    /// As well, and nothing is asked of the kernel after that.
    Last,
    /// All was moved, or why not.
    Over(Result<usize>),
    /// So it is, and its holder has the result.
    Told,
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
            state: TransferState::Idle,
            holder: Waiter::Polls,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        matches!(self.state, TransferState::InKernel | TransferState::Last)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, TransferState::Over(_) | TransferState::Told)
    }

    /// Nobody can turn the driver: the request under way is the last.
    pub(crate) fn is_last(&mut self) {
        if self.kernel_holds() {
            self.state = TransferState::Last;
        }
    }

    /// The kernel has let go, of what was the last request or not.
    pub(crate) fn came_back(&mut self) -> bool {
        matches!(std::mem::replace(&mut self.state, TransferState::Idle), TransferState::Last)
    }

    /// The result, for its holder.
    pub(crate) fn tell(&mut self) -> Option<Result<usize>> {
        let TransferState::Over(result) = &mut self.state else { return None };
        let result = std::mem::replace(result, Ok(0));
        self.state = TransferState::Told;
        Some(result)
    }

    /// It is over, with this result.
    pub(crate) fn end(&mut self, result: Result<usize>) {
        self.state = TransferState::Over(result);
    }

    /// The next range, with its slot in `ring`, and where it goes in the file.
    pub(crate) fn left(&self, ring: Option<u32>) -> (AddressRange, Option<u64>) {
        let offset = self.offset.map(|offset| offset + self.done as u64);
        let left = self.loan.as_ref().and_then(|loan| loan.first(self.done, ring));
        let none = AddressRange { start: std::ptr::dangling_mut(), len: 0, slot: None };
        let mut span = left.unwrap_or(none);
        span.len = span.len.min(MAX_REQUEST);
        (span, offset)
    }

    /// Takes the outcome of one request in; says whether another is needed.
    pub(crate) fn took(&mut self, result: i32) -> bool {
        match result {
            _ if result < 0 && matches!(-result, libc::EINTR | libc::EAGAIN | ERESTARTSYS) => {
                return true;
            }
            _ if -result == libc::ECANCELED => self.end(Err(Error::Canceled { done: self.done })),
            _ if result < 0 => {
                let action = match self.direction {
                    Direction::Read => "reading",
                    Direction::Write => "writing",
                    Direction::AwaitRead | Direction::AwaitWrite => "waiting for a file",
                };
                self.end(Err(Error::errno(action, -result)));
            }
            _ if self.direction.only_waits() => self.end(Ok(0)),
            0 if self.direction == Direction::Write && self.done < self.total => {
                self.end(Err(Error::io("writing", io::ErrorKind::WriteZero.into())));
            }
            _ => {
                self.done += result as usize;
                let wants_all = self.direction == Direction::Write || self.offset.is_some();
                if result > 0 && self.done < self.total && wants_all {
                    return true;
                }
                self.end(Ok(self.done));
            }
        }
        false
    }
}
