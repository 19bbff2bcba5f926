//! Memory with an owner, and pieces of it with one owner each.
//!
//! Contracts:
//! - a [`Piece`] owns its bytes alone; two pieces never overlap, and the memory behind stays mapped
//!   as long as any piece of it lives.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Memory that pieces are cut from.
pub(crate) struct Backing {
    start: NonNull<u8>,
    len: usize,
    /// Which ring has it registered and in which slots; see [`Registration`].
    registration: AtomicU64,
    /// What was found out of the pages since they were registered: see [`Backing::is_huge`].
    huge: AtomicU8,
    /// Whether the pages of the memory outlive its mapping while the kernel uses them, so that the
    /// mapping may go while bytes are still on their way out. Heap memory would be handed out again.
    pinned_by_page: bool,
    /// Unmaps or frees when dropped.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is owned by `_owner`, which is `Send`, and is reached only through pieces, each
// of which owns its range alone.
unsafe impl Send for Backing {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Backing {}

/// Where a ring has a backing registered: consecutive slots, each for [`SLOT_SPAN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) ring: u32,
    pub(crate) first_slot: u16,
}

impl Registration {
    /// Ring numbers start at 1, so that none packs to 0.
    fn pack(self) -> u64 {
        (u64::from(self.ring) << 32) | u64::from(self.first_slot)
    }
}

/// The most that the kernel lets one registered buffer span.
pub(crate) const SLOT_SPAN: usize = 1 << 30;

/// What is known of whether pages are huge.
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

impl Backing {
    /// # Safety
    ///
    /// `owner` must keep `len` bytes from `start` mapped, initialised and at that address until it
    /// is dropped, and nobody else may access them.
    pub(crate) unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        pinned_by_page: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self {
            start,
            len,
            registration: AtomicU64::new(0),
            huge: AtomicU8::new(UNKNOWN),
            pinned_by_page,
            _owner: owner,
        })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn registration(&self) -> Option<Registration> {
        let packed = self.registration.load(Relaxed);
        (packed != 0)
            .then_some(Registration { ring: (packed >> 32) as u32, first_slot: packed as u16 })
    }

    /// Notes where the memory is registered; `false` where another ring has it, which may be another
    /// thread's.
    pub(crate) fn enter(&self, registration: Registration) -> bool {
        let entered = self.registration.compare_exchange(0, registration.pack(), Relaxed, Relaxed);
        // Pinned pages stay what they are; others may have been put together meanwhile.
        self.huge.store(UNKNOWN, Relaxed);
        entered.is_ok()
    }

    /// The ring has the memory no more; nothing changes where it is another's.
    pub(crate) fn leave(&self, ring: u32) {
        if let Some(registration) = self.registration().filter(|it| it.ring == ring) {
            // Only this ring's thread takes its own entry back.
            let _ = self.registration.compare_exchange(registration.pack(), 0, Relaxed, Relaxed);
            self.huge.store(UNKNOWN, Relaxed);
        }
    }

    /// Whether any of the pages, which are registered, are huge; `look` finds out where it is not known.
    pub(crate) fn is_huge(&self, look: impl FnOnce(&Self) -> bool) -> bool {
        match self.huge.load(Relaxed) {
            UNKNOWN => {
                let huge = look(self);
                self.huge.store(if huge { YES } else { NO }, Relaxed);
                huge
            }
            known => known == YES,
        }
    }
}

/// A range of a backing, owned alone: `capacity` bytes of which the first `len` are in use.
pub(crate) struct Piece {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    backing: Arc<Backing>,
}

// SAFETY: a piece owns its range alone and the backing is `Send` and `Sync`.
unsafe impl Send for Piece {}
// SAFETY: shared access to a piece only reads.
unsafe impl Sync for Piece {}

impl Piece {
    /// # Safety
    ///
    /// No other piece may overlap the range, which must lie in the backing.
    pub(crate) unsafe fn new(backing: Arc<Backing>, offset: usize, capacity: usize) -> Self {
        debug_assert!(offset + capacity <= backing.len());
        // SAFETY: the range lies in the backing.
        let start = unsafe { backing.start().add(offset) };
        // SAFETY: as the caller says.
        unsafe { Self::at(backing, start, capacity) }
    }

    /// # Safety
    ///
    /// As [`new`](Self::new).
    pub(crate) unsafe fn at(backing: Arc<Backing>, start: NonNull<u8>, capacity: usize) -> Self {
        Self { start, len: capacity, capacity, backing }
    }

    /// No bytes, of no memory.
    pub(crate) fn nothing() -> Self {
        let start = NonNull::dangling();
        // SAFETY: there are no bytes that anybody could reach.
        unsafe { Self::at(Backing::new(start, 0, true, Box::new(())), start, 0) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// # Panics
    ///
    /// When `len` is more than the capacity.
    pub(crate) fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "length {len} is past the capacity of {}", self.capacity);
        self.len = len;
    }

    /// Cuts the first `at` bytes off, in use and in capacity.
    pub(crate) fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split at {at} is past the length of {}", self.len);
        let head = Self { start: self.start, len: at, capacity: at, backing: self.backing.clone() };
        // SAFETY: `at` is within the piece.
        self.start = unsafe { self.start.add(at) };
        self.len -= at;
        self.capacity -= at;
        head
    }

    /// Joins the piece that directly follows in memory back on; both must be used to capacity.
    pub(crate) fn join(&mut self, next: Self) -> Result<(), Self> {
        // SAFETY: one past the end of a piece is within or one past its backing.
        let end = unsafe { self.start.add(self.capacity) };
        if Arc::ptr_eq(&self.backing, &next.backing)
            && end == next.start
            && self.len == self.capacity
        {
            self.len += next.len;
            self.capacity += next.capacity;
            Ok(())
        } else {
            Err(next)
        }
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The slot under which `ring` can use the piece, if it lies in one whole.
    pub(crate) fn slot(&self, ring: u32) -> Option<u16> {
        let registration = self.backing.registration().filter(|it| it.ring == ring)?;
        let offset = self.start.as_ptr().addr() - self.backing.start().as_ptr().addr();
        let span = offset / SLOT_SPAN;
        (self.len == 0 || (offset + self.len - 1) / SLOT_SPAN == span)
            .then(|| registration.first_slot + span as u16)
    }

    /// What is left behind the first `skip` bytes, which it has.
    pub(crate) fn behind(&self, skip: usize, ring: Option<u32>) -> AddressRange {
        // SAFETY: `skip` is within the piece.
        let start = unsafe { self.start.add(skip) }.as_ptr();
        AddressRange { start, len: self.len - skip, slot: ring.and_then(|ring| self.slot(ring)) }
    }

    pub(crate) fn pinned_by_page(&self) -> bool {
        self.backing.pinned_by_page
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}

/// A range as a request names it: an address, or a place within the buffer of a slot.
pub(crate) struct AddressRange {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) slot: Option<u16>,
}

/// Memory that buffers are cut from and that a ring can have registered.
///
/// Implemented for [`Region`](crate::Region) and [`SharedRegion`](crate::SharedRegion).
#[allow(private_bounds, reason = "the memory itself is for this crate only")]
pub trait Memory: Backed {}

/// What has a backing.
pub(crate) trait Backed {
    fn backing(&self) -> &Arc<Backing>;
}
