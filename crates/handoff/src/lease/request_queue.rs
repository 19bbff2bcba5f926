//! A queue of a block device: its requests as the kernel describes them, and the results that go back.
//!
//! Minimum kernel, capability and return signal: as [`request`](super::request) says.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::rc::{Rc, Weak};
use std::task::Waker;

use handoff_sys::ublk::{self, Descriptor};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::pending::{Pending, TagResult};
use crate::memory::page_size;
use crate::ring::Endpoint;

/// A queue, as its driver has it.
pub(crate) struct Served {
    pub(crate) queue: Rc<QueueShared>,
    /// Closed and unmapped with the ring, even if leases are left: that tells the device that nobody serves
    /// it any more.
    pub(crate) device: Endpoint,
    pub(crate) descriptors: Descriptors,
}

/// The device's descriptions of a queue's requests, mapped.
pub(crate) struct Descriptors {
    address: NonNull<Descriptor>,
    depth: u16,
}

impl Descriptors {
    pub(crate) fn map(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let room = |depth: u16| {
            (usize::from(depth) * ublk::DESCRIPTOR_BYTES).next_multiple_of(page_size())
        };
        let offset = usize::from(queue) * room(ublk::MAX_QUEUE_DEPTH);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe {
            mmap(ptr::null_mut(), room(depth), ProtFlags::READ, flags, device, offset as u64)?
        };
        Ok(Self { address: NonNull::new(address.cast()).expect("not null"), depth })
    }

    /// The description of the request that has arrived with a tag.
    pub(crate) fn of(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "a request has one of the queue's tags");
        // SAFETY: inside of the mapping, which has one for each tag; the driver does not write it before
        // the request is answered.
        unsafe { self.address.as_ptr().add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let len = (usize::from(self.depth) * ublk::DESCRIPTOR_BYTES).next_multiple_of(page_size());
        // SAFETY: the mapping is ours, and descriptions are copied out of it.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), len) };
    }
}

/// Shared by the requests and leases of a queue.
pub(crate) struct QueueShared {
    /// Weak, since the driver has the queue.
    pub(crate) pending: Weak<Pending>,
    pub(crate) ring: u32,
    /// Of the driver.
    pub(crate) place: u16,
    /// Of the device.
    pub(crate) number: u16,
    pub(crate) depth: u16,
    /// As many slots as there are tags.
    pub(crate) first_slot: u16,
    /// Tags of requests that nobody has taken.
    pub(crate) arrived: RefCell<VecDeque<u16>>,
    /// Tags that get no more requests.
    pub(crate) gone: Cell<u16>,
    pub(crate) failure: Cell<Option<i32>>,
    /// Nobody takes requests any more.
    pub(crate) abandoned: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

impl QueueShared {
    /// Whether somebody waits for a request that may come.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.abandoned.get() && self.gone.get() < self.depth
    }
}

/// The result of a request; dropping it sends it to the driver.
pub(crate) struct Answer {
    pub(crate) queue: Rc<QueueShared>,
    tag: u16,
    pub(super) result: Cell<i32>,
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
        let Some(pending) = self.queue.pending.upgrade() else { return };
        let (queue, tag, result) = (self.queue.place, self.tag, self.result.get());
        pending.mark_answer(TagResult { queue, tag, result });
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("tag", &self.tag).field("result", &self.result).finish()
    }
}
