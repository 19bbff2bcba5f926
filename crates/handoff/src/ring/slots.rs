//! The tables of registered buffers and files: which slots are taken, and by what.
//!
//! Requests name a slot instead of an address or a descriptor, so the kernel looks up neither.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};

use io_uring::{opcode, types};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Queues, Ring, Until, keeper};
use crate::error::{Error, Result};
use crate::memory::{Backing, Departed, Keeping, Pinning, Registration, SLOT_SPAN};

/// A table of slots; runs of slots are handed out first fit.
pub(crate) struct Slots {
    taken: Vec<bool>,
    /// No slot below this one is free.
    hint: usize,
}

impl Slots {
    pub(crate) fn new(len: u32) -> Self {
        Self { taken: vec![false; len as usize], hint: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }

    pub(crate) fn take(&mut self, run: usize) -> Option<usize> {
        let start = (self.hint..self.taken.len().checked_sub(run)? + 1)
            .find(|start| !self.taken[*start..start + run].contains(&true))?;
        self.taken[start..start + run].fill(true);
        if start == self.hint {
            self.hint += run;
        }
        Some(start)
    }

    pub(crate) fn release(&mut self, start: usize, run: usize) {
        self.taken[start..start + run].fill(false);
        self.hint = self.hint.min(start);
    }
}

/// The table of files: those in use, and connections that only loans keep.
pub(crate) struct Files {
    slots: Slots,
    in_use: usize,
    /// The most of these, so that there are slots for the others.
    most_in_use: usize,
}

impl Files {
    pub(crate) fn new(slots: u32, most_in_use: u32) -> Self {
        Self { slots: Slots::new(slots), in_use: 0, most_in_use: most_in_use as usize }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

fn spans(backing: &Backing) -> usize {
    backing.len().div_ceil(SLOT_SPAN)
}

/// The part of a backing that goes into a slot.
pub(super) fn part(backing: &Backing, span: usize) -> libc::iovec {
    libc::iovec {
        // SAFETY: every span starts within the backing.
        iov_base: unsafe { backing.start().add(span * SLOT_SPAN) }.as_ptr().cast(),
        iov_len: SLOT_SPAN.min(backing.len() - span * SLOT_SPAN),
    }
}

/// Makes a table for at most `files` files; returns its size.
///
/// There is no table where a removed descriptor stays open until earlier requests end (Linux up to 6.12
/// lets go in order): a peer would not see its connection end.
pub(crate) fn register_files(io: &mut Queues, files: u32) -> io::Result<u32> {
    static LETS_GO: OnceLock<bool> = OnceLock::new();
    let lets_go = match LETS_GO.get() {
        Some(known) => *known,
        None => {
            let tried = lets_go_at_once(io)?;
            *LETS_GO.get_or_init(|| tried)
        }
    };
    if !lets_go || files == 0 {
        return Ok(0);
    }
    io.submitter().register_files_sparse(files)?;
    Ok(files)
}

/// Tests this: while one entry is polled, a pipe's last writer leaves the table.
fn lets_go_at_once(io: &mut Queues) -> io::Result<bool> {
    let (polled, kept) = pipe_with(PipeFlags::CLOEXEC)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    io.submitter().register_files(&[polled.as_raw_fd(), writer.as_raw_fd()])?;
    let poll = opcode::PollAdd::new(types::Fixed(0), libc::POLLIN as u32).build();
    // SAFETY: the entry names no memory.
    unsafe { io.submission().push(&poll) }.map_err(io::Error::other)?;
    io.submitter().submit()?;
    drop(writer);
    io.submitter().register_files_update(1, &[-1])?;
    let at_end = rustix::io::read(&reader, &mut [0u8; 1]) == Ok(0);
    // The end of the other pipe ends the poll.
    drop(kept);
    io.await_next()?;
    // Some kernels wait here for requests that still use the table.
    while let Err(error) = io.submitter().unregister_files() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(at_end)
}

impl Ring {
    /// Registers memory. The kernel pins its pages once for all rings if it can share them (Linux 6.13),
    /// otherwise once for each. If the memory goes, `departed` hears of it. Needs Linux 5.19.
    pub(crate) fn register(
        &mut self,
        backing: &Backing,
        departed: &Arc<Departed>,
    ) -> Result<Pinning> {
        if !backing.is_mapped() {
            return Err(Error::Invalid(
                "memory of the heap can't be registered: cut buffers from a Region",
            ));
        }
        let registrations = backing.registrations();
        // Other threads may register the same memory.
        let mut keeping = registrations.keeping();
        if registrations.of(self.id).is_some() {
            return Err(Error::Invalid("the region is registered with this driver already"));
        }
        let run = spans(backing);
        let start = self.buffers.take(run).ok_or(Error::Invalid(
            "the ring's table of registered buffers is full (DriverBuilder::registered_buffers)",
        ))?;
        let taken_in = self.take_in(backing, &mut keeping, start, run);
        match &taken_in {
            Ok((_, shares)) => {
                let (slots, departed) = (start..start + run, Arc::clone(departed));
                keeping.places.push(Registration {
                    ring: self.id,
                    slots,
                    shares: *shares,
                    departed,
                });
                registrations.enter(self.id, start as u16);
                backing.look_again_for_huge_pages();
            }
            Err(_) => self.buffers.release(start, run),
        }
        taken_in.map(|(pinning, _)| pinning)
    }

    /// Pins the pages, or shares them with other rings; returns which.
    fn take_in(
        &mut self,
        backing: &Backing,
        keeping: &mut Keeping,
        start: usize,
        run: usize,
    ) -> Result<(Pinning, bool)> {
        let elsewhere = !keeping.places.is_empty();
        let reason = match keeper::share(&self.io, backing, keeping, start, run) {
            Ok(true) => return Ok((Pinning::Own, true)),
            Ok(false) => return Ok((Pinning::Shared, true)),
            Err(error) => error,
        };
        self.pin(backing, start, run)?;
        if !elsewhere {
            return Ok((Pinning::Own, false));
        }
        let reason = format!(
            "rings share registered memory from Linux 6.13 on, for one user and process: {reason}"
        );
        tracing::info!(%reason, "the pages of a region are pinned once more");
        Ok((Pinning::Again(reason), false))
    }

    /// Makes the kernel pin the pages for this ring.
    fn pin(&mut self, backing: &Backing, start: usize, run: usize) -> Result<()> {
        for span in 0..run {
            // One at a time: of several, the kernel passes over the failure of all but the first.
            // SAFETY: the memory is mapped as long as the backing. From here on the kernel has the pages themselves,
            // and requests name the slots only for pieces of the backing.
            if let Err(error) = unsafe { self.update_buffers(start + span, &[part(backing, span)]) }
            {
                self.clear(start, span)?;
                return Err(memlock_or("registering buffers", backing.len() as u64, error));
            }
        }
        Ok(())
    }

    /// Clears the slots of a backing. Requests under way keep their hold on the pages.
    pub(crate) fn unregister(&mut self, backing: &Backing) -> Result<()> {
        let first_slot = backing.registrations().of(self.id);
        let start = usize::from(
            first_slot.ok_or(Error::Invalid("the region is not registered with this driver"))?,
        );
        // Queued requests must find their memory before it goes.
        self.enter(Until::Now).map_err(|error| Error::io("entering the ring", error))?;
        self.clear(start, spans(backing))?;
        self.leave(backing);
        self.buffers.release(start, spans(backing));
        Ok(())
    }

    /// The ring no longer has the memory, or is about to close.
    pub(crate) fn leave(&self, backing: &Backing) {
        let registrations = backing.registrations();
        let mut keeping = registrations.keeping();
        if registrations.leave(self.id).is_none() {
            return;
        }
        backing.look_again_for_huge_pages();
        keeping.places.retain(|place| place.ring != self.id);
        keeper::let_go_if_unused(&mut keeping, spans(backing));
    }

    /// Clears slots of memory that is gone.
    pub(crate) fn clear_departed(&mut self, slots: Range<usize>) {
        let (start, run) = (slots.start, slots.len());
        match self.clear(start, run) {
            Ok(()) => self.buffers.release(start, run),
            Err(error) => tracing::warn!(%error, "pages of memory that is gone stay pinned"),
        }
    }

    fn clear(&mut self, start: usize, run: usize) -> Result<()> {
        if run == 0 {
            return Ok(());
        }
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: empty entries name no memory.
        unsafe { self.update_buffers(start, &vec![empty; run]) }
            .map_err(|error| Error::io("clearing registered buffers", error))
    }

    unsafe fn update_buffers(&mut self, start: usize, iovecs: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the caller's duty.
        unsafe { self.io.submitter().register_buffers_update(start as u32, iovecs, None) }?;
        Ok(())
    }

    /// Puts a descriptor into the table; `None` when the table is full or refuses it. The plain descriptor
    /// then serves.
    pub(crate) fn install(&mut self, fd: RawFd) -> Option<u32> {
        if self.files.in_use == self.files.most_in_use {
            return None;
        }
        let slot = self.put(fd)?;
        self.files.in_use += 1;
        Some(slot)
    }

    pub(crate) fn uninstall(&mut self, slot: u32) {
        self.files.in_use -= 1;
        self.unpark(slot);
    }

    /// Keeps a connection, which may be in the table already, without its descriptor.
    pub(crate) fn park(&mut self, slot: Option<u32>, fd: RawFd) -> Option<u32> {
        if slot.is_some() {
            self.files.in_use -= 1;
        }
        slot.or_else(|| self.put(fd))
    }

    /// A parked connection closes.
    pub(crate) fn unpark(&mut self, slot: u32) {
        if self.io.submitter().register_files_update(slot, &[-1]).is_ok() {
            self.files.slots.release(slot as usize, 1);
        }
    }

    fn put(&mut self, fd: RawFd) -> Option<u32> {
        let slot = self.files.slots.take(1)?;
        match self.io.submitter().register_files_update(slot as u32, &[fd]) {
            Ok(1) => Some(slot as u32),
            _ => {
                self.files.slots.release(slot, 1);
                None
            }
        }
    }
}

/// Tells the limit on locked memory, if this thread has one, from other failures.
pub(crate) fn memlock_or(action: &'static str, need: u64, error: io::Error) -> Error {
    let short = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS));
    match handoff_probe::lock_limit().filter(|_| short) {
        Some(limit) => {
            Error::Memlock { action, need, locked: handoff_probe::locked_already(), limit }
        }
        None => Error::io(action, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_never_overlap_and_come_back(steps in prop::collection::vec((1usize..5, any::<bool>()), 1..100)) {
            let mut slots = Slots::new(32);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (run, release) in steps {
                if release && !held.is_empty() {
                    let (start, run) = held.swap_remove(0);
                    slots.release(start, run);
                } else if let Some(start) = slots.take(run) {
                    for (other, len) in &held {
                        prop_assert!(start + run <= *other || other + len <= start);
                    }
                    held.push((start, run));
                }
            }
            for (start, run) in held {
                slots.release(start, run);
            }
            prop_assert_eq!(slots.take(32), Some(0));
        }
    }
}
