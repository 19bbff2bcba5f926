//! Buffers of the kernel, lent into the ring: pages of the page cache, received data, new pages.
//!
//! Minimum kernel: 7.2 with the module `getbuf` of this project (`docs/get-buf.md`), which makes
//! `/dev/getbuf`. Capability: to open the device, which is root's unless a udev rule says otherwise. Locked
//! memory (`RLIMIT_MEMLOCK`): all lent buffers, in whole folios. Return signal: none to the process; the
//! module counts the lends that came back (`GetBuf::stats`).
//!
//! Contracts:
//! - the bytes of a lease have no address in this process: only operations of the same driver can use them;
//! - a lease can be in any number of operations at once, since it is only read; its slot is cleared when
//!   the last handle and the last operation have let go of it;
//! - a lease is no snapshot: whoever may write to the file changes what is lent, as with `sendfile(2)`.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::rc::{Rc, Weak};

use super::getbuf_device::GetBufShared;
use super::pending::Pending;
use super::request_queue::Answer;
use crate::memory::{AddressRange, within};

/// A loan in slots of the ring, until this is dropped.
#[derive(Debug)]
pub(crate) enum Held {
    /// A lend of the device, which then clears the slots.
    Payload(Slots),
    /// The memory of a block request, which then ends.
    Request(Rc<Answer>),
}

/// Slots of the ring that hold one lend. Cleared when dropped.
pub(crate) struct Slots {
    /// Weak, since records of the driver own leases.
    pending: Weak<Pending>,
    getbuf: Rc<GetBufShared>,
    /// The slot to send and write from.
    slot: u16,
    /// The slot to fill, for new pages.
    fill: Option<u16>,
}

impl Held {
    pub(crate) fn new(
        pending: &Rc<Pending>,
        getbuf: Rc<GetBufShared>,
        slot: u16,
        fill: Option<u16>,
    ) -> Self {
        Self::Payload(Slots { pending: Rc::downgrade(pending), getbuf, slot, fill })
    }

    pub(crate) fn of_request(answer: Rc<Answer>) -> Self {
        Self::Request(answer)
    }

    /// The ring that has it.
    fn ring(&self) -> u32 {
        match self {
            Self::Payload(slots) => slots.getbuf.ring,
            Self::Request(answer) => answer.queue.ring,
        }
    }

    /// The slots to fill, if they differ from those to send and write from.
    fn fill(&self) -> Option<u16> {
        match self {
            Self::Payload(slots) => slots.fill,
            Self::Request(_) => None,
        }
    }

    fn slot(&self) -> u16 {
        match self {
            Self::Payload(slots) => slots.slot,
            Self::Request(answer) => answer.slot(),
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // A driver that is gone has closed its ring, which gave everything back.
        let Some(pending) = self.pending.upgrade() else { return };
        for slot in [Some(self.slot), self.fill].into_iter().flatten() {
            pending.mark_clear(&self.getbuf, slot);
        }
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("slot", &self.slot).field("fill", &self.fill).finish()
    }
}

/// Part of a lend, while an operation or a lease holds it.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    held: Rc<Held>,
    /// Whether the slot to fill is meant.
    fill: bool,
    start: u32,
    len: u32,
}

impl Bytes {
    pub(crate) fn new(held: Held, len: u32) -> Self {
        let fill = held.fill().is_some();
        Self { held: Rc::new(held), fill, start: 0, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// What is left behind the first `skip` bytes; the part has at least that many.
    pub(crate) fn behind(&self, skip: usize) -> AddressRange {
        let slot = if self.fill { self.held.fill() } else { Some(self.held.slot()) };
        // Requests name a byte of such a buffer by its distance from the beginning.
        let start = std::ptr::without_provenance_mut(self.start as usize + skip);
        AddressRange { start, len: self.len() - skip, slot }
    }

    /// The ring that has it.
    pub(crate) fn ring(&self) -> u32 {
        self.held.ring()
    }
}

/// A buffer of the kernel, lent for reading: sockets send it, files are written from it. It is part of a
/// file, of received data (`GetBuf`), or of what a block request writes
/// ([`Request::source`](crate::Request::source)).
///
/// Clones and parts share the buffer, and may be in several operations at once. The buffer goes back when
/// all of them are dropped and done.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, lease: handoff::Lease) -> Result<(), Box<dyn std::error::Error>> {
/// let (head, rest) = (lease.part(..4096), lease.part(4096..));
/// let sends = (socket.send(head)?, socket.send(rest)?);
/// println!("{} and {} bytes", sends.0.await?.sent?, sends.1.await?.sent?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Lease(pub(crate) Bytes);

impl Lease {
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Part of the lease, as a lease of its own.
    ///
    /// # Panics
    ///
    /// When the range is not within the length.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Self {
        let Range { start, end } = within(range, self.len());
        let mut bytes = self.0.clone();
        bytes.start += start as u32;
        bytes.len = (end - start) as u32;
        Self(bytes)
    }
}

/// New pages of the kernel, or the memory of a block request, lent for filling: files are read into it.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, pages: handoff::LeaseMut) -> Result<(), Box<dyn std::error::Error>> {
/// let received = socket.receive_exact(pages)?.await?;
/// let lease = received.buffer.freeze(received.result?);
/// println!("{} bytes to write to a file", lease.len());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct LeaseMut(pub(crate) Bytes);

impl LeaseMut {
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A buffer to fill is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Ends the filling of new pages: you can send and write the first `len` bytes.
    ///
    /// # Panics
    ///
    /// When `len` is more than its length. Also for the memory of a block request, which only the request's
    /// reader gets.
    pub fn freeze(self, len: usize) -> Lease {
        assert!(self.0.fill, "the memory of a block request can only be filled");
        Lease(Bytes { fill: false, ..self.0 }).part(..len)
    }
}
