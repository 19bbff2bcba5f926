//! Requests of a block device that is served from user space (ublk), each with its memory on loan.
//!
//! Minimum kernel: 6.16 (`UBLK_F_AUTO_BUF_REG`; tried on 7.2). Capability: to open the device's
//! `/dev/ublkcN`, which is root's. Set-up: a device that was made for it (`handoff_block::OwnDevice`).
//! Return signal: the commit of the request's result.
//!
//! Contracts:
//! - a write request gives a [`Lease`], which can only be read; a read request gives a [`LeaseMut`], which
//!   can only be filled; the kernel refuses the other direction too;
//! - a result goes to the driver when the request was answered and the last lease of its memory is gone,
//!   from handles and from operations: nobody can use the memory of a finished request;
//! - a request fails if nobody takes or answers it, or if it is out when the driver goes.

use std::io;
use std::rc::Rc;

use handoff_sys::ublk::{self, Descriptor};

use super::kernel::{Bytes, Held, Lease, LeaseMut};
use super::request_queue::{Answer, QueueShared};

/// What a request asks for.
///
/// ```no_run
/// # async fn example(mut request: handoff::Request) -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::RequestKind;
///
/// match request.kind() {
///     RequestKind::Read => println!("fill {:?}", request.destination()),
///     RequestKind::Write => println!("take {:?}", request.source()),
///     _ => request.answer(Err(std::io::ErrorKind::Unsupported.into())),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestKind {
    /// Read: the device's bytes into the request's memory.
    Read,
    /// Write: the request's memory onto the device.
    Write,
    /// Anything else, by the kernel's number for it (`UBLK_IO_OP_*`). Only a device that announces such
    /// requests gets them.
    Other(u8),
}

/// A request to answer.
///
/// ```no_run
/// # async fn example(queue: handoff::RequestQueue, file: handoff::File) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(request) = queue.next().await? {
///     let offset = request.offset();
///     if let Some(lease) = request.source() {
///         let written = file.write_at(lease, offset)?.await?;
///         request.answer(written.result.map_err(Into::into));
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Request {
    kind: RequestKind,
    offset: u64,
    len: u32,
    memory: Option<Bytes>,
    answer: Rc<Answer>,
}

impl Request {
    pub(crate) fn new(queue: &Rc<QueueShared>, tag: u16, described: Descriptor) -> Self {
        let kind = match described.op_flags as u8 {
            ublk::OP_READ => RequestKind::Read,
            ublk::OP_WRITE => RequestKind::Write,
            other => RequestKind::Other(other),
        };
        // A request that moves nothing may concern more.
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

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no bytes, like a flush.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What a write brings, for you to send or write; `None` for other requests.
    pub fn source(&self) -> Option<Lease> {
        let memory = self.memory.as_ref().filter(|_| self.kind == RequestKind::Write);
        memory.cloned().map(Lease::of)
    }

    /// The memory that a read request wants filled; `None` for other requests, and after the first call.
    pub fn destination(&mut self) -> Option<LeaseMut> {
        self.memory.take_if(|_| self.kind == RequestKind::Read).map(LeaseMut::of)
    }

    /// Answers the request. The device's user hears of it when the last lease of the memory is gone: the
    /// bytes that were moved, at most its length, or an error, EIO if that has no number. A read or write
    /// that moved nothing has failed.
    pub fn answer(self, result: io::Result<usize>) {
        let result = match result {
            Ok(0) if self.len > 0 => -libc::EIO,
            Ok(moved) => moved.min(self.len()) as i32,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        self.answer.result.set(result);
    }
}
