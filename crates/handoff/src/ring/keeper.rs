//! The ring that keeps registered memory, so that all rings of the process share one pinning.
//!
//! Minimum kernel: 6.13 (`IORING_REGISTER_CLONE_BUFFERS` into an existing table). Capability: none. A driver's
//! ring is bound to its thread, and the kernel lets no other thread take entries from it. So the pages are
//! pinned in the table of a ring that is bound to no thread and does nothing else. The process has one; it is
//! made when memory is first registered, where the kernel can clone.
//!
//! Contracts:
//! - the keeper has memory only while a driver has it from there, and while the memory is there;
//! - slots are empty when others can take them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::PoisonError;

use handoff_sys::clone_buffers::{self, Entries};
use handoff_sys::process::Process;
use io_uring::IoUring;

use super::queues::Queues;
use super::slots::{Slots, part};
use crate::memory::{Backing, Keeping};
use crate::sync::Mutex;

/// Slots of the keeper: one for each started GiB of a region.
const SLOTS: u32 = 1024;

/// A ring's table of registered buffers, from which other rings take entries.
pub(super) trait Table {
    /// Another ring.
    type Other;

    /// Makes another ring's entries from `start` on name the same memory as ours from `first` on.
    fn lend(&self, first: usize, other: &Self::Other, start: usize, run: usize) -> io::Result<()>;

    /// Makes the kernel pin the pages of a backing.
    fn pin(&self, backing: &Backing, first: usize, run: usize) -> io::Result<()>;

    fn clear(&self, first: usize, run: usize);
}

impl Table for IoUring {
    type Other = Queues;

    fn lend(&self, first: usize, other: &Queues, start: usize, run: usize) -> io::Result<()> {
        // SAFETY: both rings are open as long as they are borrowed.
        let (ring, other) = unsafe {
            (BorrowedFd::borrow_raw(self.as_raw_fd()), BorrowedFd::borrow_raw(other.as_raw_fd()))
        };
        let source = Entries { ring, first: first as u32 };
        clone_buffers::clone(source, Entries { ring: other, first: start as u32 }, run as u32)
    }

    fn pin(&self, backing: &Backing, first: usize, run: usize) -> io::Result<()> {
        for span in 0..run {
            let memory = [part(backing, span)];
            let update = || {
                // SAFETY: the memory is mapped as long as the backing. From here on the kernel has the pages
                // themselves.
                unsafe {
                    self.submitter().register_buffers_update((first + span) as u32, &memory, None)
                }
            };
            if let Err(error) = update() {
                self.clear(first, span);
                return Err(error);
            }
        }
        Ok(())
    }

    fn clear(&self, first: usize, run: usize) {
        if run == 0 {
            return;
        }
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: empty entries name no memory.
        let cleared = unsafe {
            self.submitter().register_buffers_update(first as u32, &vec![empty; run], None)
        };
        if let Err(error) = cleared {
            tracing::warn!(%error, "the pages of a region stay pinned");
        }
    }
}

pub(super) struct Keeper<T> {
    made_by: Process,
    table: T,
    slots: Mutex<Slots>,
}

impl<T: Table> Keeper<T> {
    /// Keeps memory in a table of so many empty slots.
    pub(super) fn new(table: T, slots: u32) -> Self {
        Self { made_by: Process::this(), table, slots: Mutex::new(Slots::new(slots)) }
    }

    /// Finds room for a memory.
    fn reserve(&self, run: usize) -> io::Result<usize> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.take(run).ok_or_else(|| io::Error::other("the table of shared memory is full"))
    }

    fn release(&self, start: usize, run: usize) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).release(start, run);
    }

    /// As [`share`].
    pub(super) fn share(
        &self,
        ring: &T::Other,
        backing: &Backing,
        keeping: &mut Keeping,
        start: usize,
        run: usize,
    ) -> io::Result<bool> {
        let table = &self.table;
        if let Some(kept_in) = keeping.kept_in {
            return table.lend(kept_in.into(), ring, start, run).map(|()| false);
        }
        let first = self.reserve(run)?;
        // With empty slots, this only tests whether the ring can share, and pins nothing.
        let kept = table
            .lend(first, ring, start, run)
            .and_then(|()| table.pin(backing, first, run))
            .and_then(|()| {
                table.lend(first, ring, start, run).inspect_err(|_| table.clear(first, run))
            });
        match kept {
            Ok(()) => keeping.kept_in = Some(first as u16),
            Err(_) => self.release(first, run),
        }
        kept.map(|()| true)
    }

    /// Lets go of so many slots.
    pub(super) fn let_go(&self, first: u16, run: usize) {
        self.table.clear(first.into(), run);
        self.release(first.into(), run);
    }
}

static KEEPER: std::sync::Mutex<Option<&'static Keeper<IoUring>>> = std::sync::Mutex::new(None);

/// The keeper of this process, made for the first ring that can share; or why there is none.
fn keeper(ring: &Queues) -> io::Result<&'static Keeper<IoUring>> {
    let mut made = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(keeper) = *made
        && keeper.made_by.is_this()
    {
        return Ok(keeper);
    }
    // SAFETY: the ring is open as long as it is borrowed.
    clone_buffers::is_possible(unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })?;
    // If descriptors or memory were exhausted, the next driver tries again.
    let ring = IoUring::builder().dontfork().build(1)?;
    ring.submitter().register_buffers_sparse(SLOTS)?;
    Ok(*made.insert(Box::leak(Box::new(Keeper::new(ring, SLOTS)))))
}

/// Makes a ring take memory from the keeper, which pins it first if necessary; returns whether it did.
///
/// # Errors
///
/// When the ring cannot share; nothing is pinned then.
pub(super) fn share(
    ring: &Queues,
    backing: &Backing,
    keeping: &mut Keeping,
    start: usize,
    run: usize,
) -> io::Result<bool> {
    keeper(ring)?.share(ring, backing, keeping, start, run)
}

/// Makes the keeper let go of memory that no ring has from it any more.
pub(super) fn let_go_if_unused(keeping: &mut Keeping, run: usize) {
    if let Some(first) = take_if_unused(keeping) {
        let_go_of_kept(first, run);
    }
}

/// The slots of memory that no ring has from the keeper any more.
pub(super) fn take_if_unused(keeping: &mut Keeping) -> Option<u16> {
    if keeping.places.iter().any(|place| place.shares) {
        return None;
    }
    keeping.kept_in.take()
}

/// Makes the keeper let go of so many slots.
pub(crate) fn let_go_of_kept(first: u16, run: usize) {
    let made = *KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(keeper) = made
        && keeper.made_by.is_this()
    {
        keeper.let_go(first, run);
    }
}
