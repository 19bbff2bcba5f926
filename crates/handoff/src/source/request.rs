//! Requests of a block device that is served from user space (ublk), each with its memory on loan.
//!
//! Minimum kernel: 6.16 (`UBLK_F_AUTO_BUF_REG`; tried on 7.2). Capability: to open the device's
//! `/dev/ublkcN`, which is root's. Set-up: a device that was made for it (`handoff_block::OwnDevice`).
//! Return signal: the commit of the request's result.
//!
//! Contracts:
//! - what a write brings is a [`Lease`], which can only be read; what a read asks for is a [`LeaseMut`],
//!   which can only be filled; the kernel refuses the other direction too;
//! - a result goes to the driver when the request was answered and the last lease of its memory is gone,
//!   from handles and from operations: nothing can use the memory of a request that is over;
//! - a request that nobody answers, or takes, has failed, and those that are out when the driver goes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use handoff_sys::ublk::{self, Descriptor};

use crate::driver::Inner;
use crate::endpoint::Endpoint;
use crate::engine::requests::{self, Descriptors};
use crate::error::{Error, Result};
use crate::source::kernel::{Bytes, Held, Lease, LeaseMut};

/// A queue of a block device, whose requests this driver takes until it goes or the device is stopped.
///
/// Dropped, it leaves the requests that come to fail.
///
/// ```no_run
/// # async fn serve(device: std::fs::File, peer: std::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
/// # let driver = handoff::Driver::new()?;
/// let queue = driver.requests(device, 0, 64)?;
/// let socket = driver.socket(peer)?;
/// while let Some(request) = queue.next().await? {
///     // Sent from where the writer has it.
///     if let Some(lease) = request.source() {
///         let sent = socket.send(lease)?.await;
///         request.answer(sent.sent.map_err(Into::into));
///     }
/// }
/// # Ok(()) }
/// ```
pub struct RequestQueue {
    shared: Rc<QueueShared>,
    /// Its ring has the queue.
    driver: Rc<Inner>,
}

/// A queue, as its driver has it.
pub(crate) struct Served {
    pub(crate) queue: Rc<QueueShared>,
    /// Closed and unmapped with the ring, whatever leases there are: it tells the device that nobody
    /// serves it any more.
    pub(crate) device: Endpoint,
    pub(crate) descriptors: Descriptors,
}

/// What requests and leases need of a queue.
pub(crate) struct QueueShared {
    /// Weak, since the driver has the queue.
    pub(crate) driver: Weak<Inner>,
    pub(crate) ring: u32,
    /// Of the driver.
    pub(crate) place: u16,
    /// Of the device.
    pub(crate) number: u16,
    pub(crate) depth: u16,
    /// Of as many slots as there are tags.
    pub(crate) first_slot: u16,
    /// Tags of requests that nobody has taken.
    pub(crate) arrived: RefCell<VecDeque<u16>>,
    /// Tags that come no more.
    pub(crate) gone: Cell<u16>,
    pub(crate) failure: Cell<Option<i32>>,
    /// Nobody takes requests any more.
    pub(crate) abandoned: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

impl RequestQueue {
    pub(crate) fn open(
        driver: &Rc<Inner>,
        device: OwnedFd,
        number: u16,
        depth: u16,
    ) -> Result<Self> {
        let shared = requests::open(driver, device, number, depth)?;
        Ok(Self { shared, driver: Rc::clone(driver) })
    }

    /// The next request, when there is one; `None` once the device is stopped.
    ///
    /// # Errors
    ///
    /// What the driver of the device refuses to ask for requests.
    pub async fn next(&self) -> Result<Option<Request>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<Option<Request>>> {
        let queue = &self.shared;
        if let Some(tag) = queue.arrived.borrow_mut().pop_front() {
            let described =
                self.driver.request_queues.borrow()[usize::from(queue.place)].descriptors.of(tag);
            return Poll::Ready(Ok(Some(Request::new(queue, tag, described))));
        }
        if let Some(errno) = queue.failure.get() {
            return Poll::Ready(Err(Error::errno("asking for requests of a block device", errno)));
        }
        if queue.gone.get() == queue.depth {
            return Poll::Ready(Ok(None));
        }
        self.driver.check_driven()?;
        let before = queue.waker.borrow_mut().replace(context.waker().clone());
        drop(before);
        Poll::Pending
    }
}

impl QueueShared {
    /// Whether a request may come that somebody waits for.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.abandoned.get() && self.gone.get() < self.depth
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        self.shared.abandoned.set(true);
        let arrived = self.shared.arrived.take();
        arrived.into_iter().for_each(|tag| drop(Answer::of(&self.shared, tag)));
    }
}

impl fmt::Debug for RequestQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestQueue")
            .field("number", &self.shared.number)
            .field("depth", &self.shared.depth)
            .finish_non_exhaustive()
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestKind {
    /// The device's bytes, into its memory.
    Read,
    /// Its memory, onto the device.
    Write,
    /// Anything else, by the number that the kernel has for it (`UBLK_IO_OP_*`). Only a device that
    /// announces such gets them.
    Other(u8),
}

/// A request, to be answered.
#[derive(Debug)]
pub struct Request {
    kind: RequestKind,
    offset: u64,
    len: u32,
    memory: Option<Bytes>,
    answer: Rc<Answer>,
}

impl Request {
    fn new(queue: &Rc<QueueShared>, tag: u16, described: Descriptor) -> Self {
        let kind = match described.op_flags as u8 {
            ublk::OP_READ => RequestKind::Read,
            ublk::OP_WRITE => RequestKind::Write,
            other => RequestKind::Other(other),
        };
        // One that moves nothing may be about more.
        let len = described.nr_sectors.saturating_mul(ublk::SECTOR as u32);
        let answer = Rc::new(Answer::of(queue, tag));
        let memory = match kind {
            RequestKind::Other(_) => None,
            _ => Some(Bytes::new(Held::of_request(Rc::clone(&answer)), len)),
        };
        Self { kind, offset: described.start_sector * ublk::SECTOR, len, memory, answer }
    }

    /// What it asks for.
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// Where on the device it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that it is about.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it is about none, as one that only flushes is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What a write brings, to be sent and written; `None` of other requests.
    pub fn source(&self) -> Option<Lease> {
        let memory = self.memory.as_ref().filter(|_| self.kind == RequestKind::Write);
        memory.cloned().map(Lease::of)
    }

    /// Where a read wants what it asks for, to be read into; `None` of other requests, and once it was
    /// taken.
    pub fn destination(&mut self) -> Option<LeaseMut> {
        self.memory.take_if(|_| self.kind == RequestKind::Read).map(LeaseMut::of)
    }

    /// Answers it, which the device's user hears of when the last lease of its memory is gone: with the
    /// bytes that were moved, at most its length, or with an error, EIO if that has no number. A read or
    /// write of which nothing was moved has failed.
    pub fn answer(self, result: io::Result<usize>) {
        let result = match result {
            Ok(0) if self.len > 0 => -libc::EIO,
            Ok(moved) => moved.min(self.len()) as i32,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        self.answer.result.set(result);
    }
}

/// The result of a request, which goes to the driver when this is dropped.
pub(crate) struct Answer {
    pub(crate) queue: Rc<QueueShared>,
    tag: u16,
    result: Cell<i32>,
}

impl Answer {
    pub(crate) fn of(queue: &Rc<QueueShared>, tag: u16) -> Self {
        Self { queue: Rc::clone(queue), tag, result: Cell::new(-libc::EIO) }
    }

    pub(crate) fn slot(&self) -> u16 {
        self.queue.first_slot + self.tag
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // A driver that is gone has closed its ring, and the device's driver knows.
        let Some(driver) = self.queue.driver.upgrade() else { return };
        driver.mark_answer(&self.queue, self.tag, self.result.get());
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("tag", &self.tag).field("result", &self.result).finish()
    }
}
