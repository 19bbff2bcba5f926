//! The way into the kernel: a ring, or system calls and epoll where there is none.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use handoff_sys::process::Process;

use super::epoll::Epoll;
use super::instance::Ring;
use crate::error::Error;

#[allow(clippy::large_enum_variant, reason = "there is one for each driver")]
pub(crate) enum Backend {
    Ring(RefCell<Ring>),
    Readiness(RefCell<Epoll>),
}

/// What a driver works with.
pub(crate) struct Io {
    /// Whose ring it is: a child shares it, and leaves it alone.
    pub(crate) made_by: Process,
    pub(crate) backend: Backend,
    no_ring: Option<String>,
    ring_id: u32,
    /// Whether a thread of the kernel polls the ring's queue.
    pub(crate) is_polled: bool,
    /// Why none does, although one was asked for.
    pub(crate) why_not_polled: Option<String>,
    /// Whether the kernel reports if it copied a zero-copy send.
    pub(crate) reports_usage: bool,
    /// The driver goes: it waits for nothing any more, and keeps no connection.
    pub(crate) is_closing: Cell<bool>,
    /// Numbers of pools that the ring has, and where to look for another.
    groups: RefCell<HashSet<u16>>,
    next_group: Cell<u16>,
}

impl Io {
    pub(crate) fn of_ring(ring: Ring) -> Self {
        let (ring_id, reports_usage) = (ring.id, ring.reports_usage);
        let is_polled = ring.is_polled();
        let backend = Backend::Ring(RefCell::new(ring));
        Self { is_polled, ..Self::new(backend, None, ring_id, reports_usage) }
    }

    /// Without a ring, for this reason.
    pub(crate) fn of_epoll(epoll: Epoll, reason: String) -> Self {
        let backend = Backend::Readiness(RefCell::new(epoll));
        Self::new(backend, Some(reason), 0, false)
    }

    fn new(backend: Backend, no_ring: Option<String>, ring_id: u32, reports_usage: bool) -> Self {
        Self {
            made_by: Process::this(),
            backend,
            no_ring,
            ring_id,
            is_polled: false,
            why_not_polled: None,
            reports_usage,
            groups: RefCell::default(),
            is_closing: Cell::new(false),
            next_group: Cell::new(0),
        }
    }

    /// The ring, if there is one and it is of this process.
    pub(crate) fn ring(&self) -> Option<&RefCell<Ring>> {
        match &self.backend {
            Backend::Ring(ring) if self.made_by.is_this() => Some(ring),
            Backend::Ring(_) | Backend::Readiness(_) => None,
        }
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.ring().is_some()
    }

    /// Distinguishes rings where buffers are registered; 0 without a ring.
    pub(crate) fn ring_id(&self) -> u32 {
        self.ring_id
    }

    /// The ring's descriptor; -1, which names none, without a ring.
    pub(crate) fn ring_raw(&self) -> RawFd {
        self.ring().map_or(-1, |ring| ring.borrow().io.as_raw_fd())
    }

    /// A duplicate of the ring's descriptor, which keeps the ring open; `None` without a ring.
    pub(crate) fn ring_descriptor(&self) -> std::io::Result<Option<OwnedFd>> {
        let Some(ring) = self.ring() else { return Ok(None) };
        let ring = ring.borrow();
        // SAFETY: the descriptor is the ring's, which is open.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.io.as_raw_fd()) };
        fd.try_clone_to_owned().map(Some)
    }

    /// Why there is no ring, if there is none.
    pub(crate) fn why_no_ring(&self) -> Option<&str> {
        self.no_ring.as_deref()
    }

    pub(crate) fn no_ring(&self, action: &'static str) -> Error {
        Error::NoRing { action, reason: self.no_ring.clone().unwrap_or_default() }
    }

    /// Takes an empty slot for a buffer.
    pub(crate) fn take_buffer(&self) -> Option<u16> {
        self.take_buffers(1)
    }

    /// Takes so many consecutive slots for buffers.
    pub(crate) fn take_buffers(&self, run: u16) -> Option<u16> {
        self.ring()?.borrow_mut().buffers.take(run.into()).map(|slot| slot as u16)
    }

    /// A slot is empty again.
    pub(crate) fn release_buffer(&self, slot: u16) {
        if let Some(ring) = self.ring() {
            ring.borrow_mut().buffers.release(slot.into(), 1);
        }
    }

    pub(crate) fn install(&self, fd: RawFd) -> Option<u32> {
        self.ring()?.borrow_mut().install(fd)
    }

    pub(crate) fn uninstall(&self, slot: u32) {
        if let Some(ring) = self.ring() {
            ring.borrow_mut().uninstall(slot);
        }
    }

    /// Keeps a connection open without its descriptor; `None` if the ring has no room for it.
    pub(crate) fn park(&self, slot: Option<u32>, fd: RawFd) -> Option<u32> {
        self.ring()?.borrow_mut().park(slot, fd)
    }

    /// A parked connection closes.
    pub(crate) fn unpark(&self, slot: u32) {
        if let Some(ring) = self.ring() {
            ring.borrow_mut().unpark(slot);
        }
    }

    /// Takes a number for a pool that no other pool of the ring has; `None` if all are in use.
    pub(crate) fn take_group(&self) -> Option<u16> {
        let mut used = self.groups.borrow_mut();
        let from = self.next_group.get();
        let mut numbers = (0..=u16::MAX).map(|ahead| from.wrapping_add(ahead));
        let free = numbers.find(|number| !used.contains(number))?;
        used.insert(free);
        self.next_group.set(free.wrapping_add(1));
        Some(free)
    }

    /// The ring has no pool of this number any more.
    pub(crate) fn release_group(&self, number: u16) {
        self.groups.borrow_mut().remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_has_a_number_of_its_own_also_when_they_begin_anew() {
        let io = Io::of_epoll(Epoll::new().unwrap(), String::new());
        let stays = io.take_group().unwrap();
        for _ in 0..u32::from(u16::MAX) + 2 {
            let number = io.take_group().unwrap();
            assert_ne!(number, stays);
            io.release_group(number);
        }
        let all = std::iter::from_fn(|| io.take_group()).count();
        assert_eq!(all, usize::from(u16::MAX));
        io.release_group(stays);
        assert_eq!((io.take_group(), io.take_group()), (Some(stays), None));
    }
}
