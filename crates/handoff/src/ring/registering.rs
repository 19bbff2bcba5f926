//! What a ring has in its tables: memory as registered buffers, descriptors as files.
//!
//! Requests name a slot instead of an address or a descriptor, so the kernel looks up neither.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::instance::Ring;
use super::keeper;
use super::slots::{memlock_or, part, spans};
use crate::error::{Error, Result};
use crate::memory::{Backing, Departed, Keeping, Pinning, Registration};

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
        self.hand_over().map_err(|error| Error::io("entering the ring", error))?;
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
        self.clear_file(slot, true);
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
        // A request that nobody waits for may name the slot: it must not find the next file there.
        let taken = self.hand_over().inspect_err(|error| {
            tracing::warn!(%error, "a place in the table of files is not used again");
        });
        self.clear_file(slot, taken.is_ok());
    }

    /// Removes a file from the table; `reuse` says whether another may have its place.
    fn clear_file(&mut self, slot: u32, reuse: bool) {
        if self.io.submitter().register_files_update(slot, &[-1]).is_ok() && reuse {
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
