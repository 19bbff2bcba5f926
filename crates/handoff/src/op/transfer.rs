//! A read or write of a file, a receive into a chosen buffer, and a wait for a file.

use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::task::Waker;

use socket2::SockAddr;

use super::ancillary::Beside;
use super::loan::Loan;
use super::socket_state::SocketShared;
use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::file::rw_flags::RwFlags;
use crate::memory::{AddressRange, Piece};
use crate::ring::{Endpoint, Key, MAX_REQUEST};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
    /// From a socket: what there is.
    Receive,
    /// From a stream: until the buffer is full.
    ReceiveAll,
    /// From a Unix socket: what there is, with descriptors and the sender.
    ReceiveMessage,
    /// Moves nothing: over when the socket is connected.
    Connect,
    /// Moves nothing: over when there is something to read.
    AwaitRead,
    /// The same, when something can be written.
    AwaitWrite,
    /// The same, when the connection is broken.
    AwaitEnd,
}

impl Direction {
    /// What to wait for with poll(2).
    pub(crate) fn events(self) -> i16 {
        match self {
            Self::Read
            | Self::Receive
            | Self::ReceiveAll
            | Self::ReceiveMessage
            | Self::AwaitRead => libc::POLLIN,
            Self::Write | Self::Connect | Self::AwaitWrite => libc::POLLOUT,
            // Errors and ends are always reported.
            Self::AwaitEnd => 0,
        }
    }

    /// Whether it only waits.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::AwaitRead | Self::AwaitWrite | Self::AwaitEnd)
    }

    fn moves_nothing(self) -> bool {
        self == Self::Connect || self.waits()
    }

    /// Whether a call of it never blocks, and so is the best test of readiness.
    pub(crate) fn is_told_by_calls(self) -> bool {
        self.receives() || self == Self::Connect
    }

    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveAll | Self::ReceiveMessage)
    }
}

/// The kernel's internal error for a call cut short by a signal. Linux 6.1 returns it for a cancelled read
/// whose worker waits for a pipe.
const ERESTARTSYS: i32 = 512;

/// What the transfer reads from, writes to or receives from.
#[derive(Clone)]
pub(crate) enum Attached {
    File(Rc<Endpoint>),
    Socket(Rc<SocketShared>),
}

impl Deref for Attached {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        match self {
            Self::File(file) => file,
            Self::Socket(socket) => &socket.endpoint,
        }
    }
}

/// A transfer from its start to its end.
pub(crate) struct TransferOp {
    pub(crate) file: Attached,
    /// Whether the file can be waited for: a pipe, a terminal, a socket.
    pub(crate) pollable: bool,
    pub(crate) direction: Direction,
    /// Where to connect to.
    pub(crate) address: Option<Box<SockAddr>>,
    /// Offset in the file; `None` for pipes and the like.
    pub(crate) offset: Option<u64>,
    /// Of a read or write at an offset.
    pub(crate) flags: RwFlags,
    pub(crate) loan: Option<Loan>,
    pub(crate) done: usize,
    pub(crate) total: usize,
    pub(crate) state: TransferState,
    /// The most descriptors that a message may have; 0 closes all that come.
    pub(crate) most_descriptors: usize,
    /// What came beside the bytes of a message.
    pub(crate) beside: Beside,
    /// What is under way is the driver's wait for the file.
    pub(crate) waits: bool,
    pub(crate) holder: Waiter,
    /// It is its socket's receiver, or waits to be.
    is_receiver: bool,
}

/// How far a transfer has come.
pub(crate) enum TransferState {
    /// The kernel has nothing of it, and must be asked.
    Idle,
    /// The kernel has a request of it, or the driver waits for the file.
    InKernel,
    /// The same, and no request follows.
    Last,
    /// All was moved, or an error.
    Over(Result<usize>),
    /// The same, and its holder has the result.
    Told,
}

impl TransferOp {
    pub(crate) fn new(
        file: Attached,
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
            address: None,
            offset,
            flags: RwFlags::NONE,
            loan: Some(loan),
            done: 0,
            total,
            state: TransferState::Idle,
            most_descriptors: 0,
            beside: Beside::default(),
            waits: false,
            holder: Waiter::Polls,
            is_receiver: direction.receives(),
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        matches!(self.state, TransferState::InKernel | TransferState::Last)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, TransferState::Over(_) | TransferState::Told)
    }

    /// Makes the request under way the last: the operation is to end, or nobody can turn the driver.
    pub(crate) fn make_last(&mut self) {
        if self.kernel_holds() {
            self.state = TransferState::Last;
        }
    }

    /// Whether the kernel tries a request again when the file is ready, so that it may be about to. A request
    /// of a disk is with the disk.
    pub(crate) fn is_tried_again(&self) -> bool {
        self.pollable || matches!(self.file, Attached::Socket(_))
    }

    /// The kernel has let go, whether or not that was the last request.
    pub(crate) fn came_back(&mut self) -> bool {
        self.waits = false;
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

    /// It is over, or its holder is gone and the kernel has nothing of it. Returns the receive of its
    /// socket that waited for that, and the waker to call. Bytes that nobody takes are lost to the stream.
    pub(crate) fn leave_socket(&mut self, key: Key) -> (Option<Key>, Vec<Waker>) {
        let Attached::Socket(socket) = &self.file else { return Default::default() };
        if self.holder.is_gone() && socket.stream && !matches!(self.state, TransferState::Told) {
            socket.reception.lose(self.done);
        }
        match std::mem::take(&mut self.is_receiver) {
            true => (socket.reception.leave(key), socket.reception.behind.take()),
            false => Default::default(),
        }
    }

    /// The task that waits for the end of a dropped receive of its socket.
    pub(crate) fn take_behind(&self) -> Vec<Waker> {
        match &self.file {
            Attached::Socket(socket) => socket.reception.behind.take(),
            Attached::File(_) => Vec::new(),
        }
    }

    /// Notes that the holder goes while the kernel has the buffer.
    pub(crate) fn start_leaving(&self) {
        if let (Attached::Socket(socket), true) = (&self.file, self.is_receiver) {
            socket.reception.start_leaving();
        }
    }

    /// The next range, with its slot in `ring`, and its offset in the file.
    pub(crate) fn left(&self, ring: Option<u32>) -> (AddressRange, Option<u64>) {
        let offset = self.offset_left();
        let left = self.loan.as_ref().and_then(|loan| loan.first(self.done, ring));
        let none = AddressRange { start: std::ptr::dangling_mut(), len: 0, slot: None };
        let mut span = left.unwrap_or(none);
        span.len = span.len.min(MAX_REQUEST);
        (span, offset)
    }

    /// Offset in the file of the next range.
    pub(crate) fn offset_left(&self) -> Option<u64> {
        self.offset.map(|offset| offset + self.done as u64)
    }

    /// The loan, if one request must read or write several of its pieces.
    pub(crate) fn left_in_pieces(&self) -> Option<&Loan> {
        let vectored = matches!(self.direction, Direction::Read | Direction::Write);
        let loan = self.loan.as_ref().filter(|_| vectored)?;
        let last = loan.pieces().last().map_or(0, Piece::len);
        (loan.pieces().len() > 1 && self.total - self.done > last).then_some(loan)
    }

    /// Whether a request with this outcome has to wait.
    pub(crate) fn is_blocked(&self, result: i32) -> bool {
        match -result {
            libc::EAGAIN => true,
            libc::EINPROGRESS | libc::EALREADY => self.direction == Direction::Connect,
            _ => false,
        }
    }

    fn error(&self, action: &'static str, errno: i32) -> Error {
        match &self.file {
            Attached::Socket(socket) => socket.error(action, errno),
            Attached::File(_) => Error::errno(action, errno),
        }
    }

    /// Takes the outcome of one request; returns whether another is needed.
    pub(crate) fn took(&mut self, result: i32) -> bool {
        match result {
            // What there was is all there is.
            _ if -result == libc::EAGAIN && self.flags.never_waits() && self.done > 0 => {
                self.end(Ok(self.done));
            }
            _ if self.is_blocked(result) && !self.flags.never_waits()
                || matches!(-result, libc::EINTR | ERESTARTSYS) =>
            {
                return true;
            }
            _ if -result == libc::ECANCELED => self.end(Err(Error::Canceled { done: self.done })),
            _ if result < 0 => {
                let action = match (self.direction, &self.file) {
                    (Direction::Read, _) => self.flags.failed(false, -result),
                    (Direction::Write, _) => self.flags.failed(true, -result),
                    (direction, _) if direction.receives() => "receiving",
                    (Direction::Connect, _) => "connecting",
                    (_, Attached::Socket(_)) => "waiting for a socket",
                    (_, Attached::File(_)) => "waiting for a file",
                };
                self.end(Err(self.error(action, -result)));
            }
            _ if self.direction.moves_nothing() => self.end(Ok(0)),
            0 if self.direction == Direction::Write && self.done < self.total => {
                self.end(Err(Error::io("writing", io::ErrorKind::WriteZero.into())));
            }
            0 if self.direction == Direction::ReceiveAll && self.done < self.total => {
                let (received, wanted) = (self.done, self.total);
                self.end(Err(Error::StreamEnded { received, wanted }));
            }
            _ => {
                self.done += result as usize;
                let wants_all = self.offset.is_some()
                    || matches!(self.direction, Direction::Write | Direction::ReceiveAll);
                if result > 0 && self.done < self.total && wants_all {
                    return true;
                }
                self.end(Ok(self.done));
            }
        }
        false
    }
}
