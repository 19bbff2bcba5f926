//! Memory with an owner, and pieces of it with one owner each.
//!
//! Contracts:
//! - a [`Piece`] owns its bytes alone: two pieces never overlap, except those of a
//!   [`Frozen`](super::Frozen) buffer, which nobody writes;
//! - the memory stays mapped as long as any piece of it lives;
//! - a part of other memory (a frozen buffer, a buffer of a pool) holds that part until its last piece
//!   goes.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::Waker;

use super::pool::Chunk;
use super::registrations::Registrations;

/// Memory that pieces are cut from.
pub(crate) struct Backing {
    start: NonNull<u8>,
    len: usize,
    registrations: Registrations,
    /// What is known about the pages since they were registered: see [`Backing::is_huge`].
    huge: AtomicU8,
    /// Whether the pages of the memory outlive its mapping while the kernel uses them, so that the
    /// mapping may go while bytes are still on their way out. Heap memory would be handed out again, and so
    /// would a part of other memory.
    pinned_by_page: bool,
    owner: Owner,
}

/// The owner of the memory, until the last piece of it is gone.
enum Owner {
    /// Unmaps or frees it when dropped.
    Memory(#[allow(dead_code, reason = "only dropped")] Box<dyn Any + Send + Sync>),
    /// A buffer that was frozen: a part of other memory.
    Frozen(Piece),
    /// A buffer of a pool: a part of the pool's memory.
    Pooled(Chunk),
    /// A vector; only the room behind its bytes is lent.
    Vector(Vec<u8>),
    /// Bytes of the heap, or of another owner.
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

// SAFETY: the memory is owned by `owner`, which is `Send`, and is reached only through pieces, each
// of which owns its range alone or only reads it.
unsafe impl Send for Backing {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Backing {}

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
        Self::owned(start, len, pinned_by_page, Owner::Memory(owner))
    }

    fn owned(start: NonNull<u8>, len: usize, pinned_by_page: bool, owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            start,
            len,
            registrations: Registrations::default(),
            huge: AtomicU8::new(UNKNOWN),
            pinned_by_page,
            owner,
        })
    }

    /// The bytes in use of a piece, as memory that many pieces share.
    fn frozen(piece: Piece) -> Arc<Self> {
        Self::owned(piece.start, piece.len, false, Owner::Frozen(piece))
    }

    /// The pool's buffer, if there is one.
    pub(crate) fn pooled(start: NonNull<u8>, len: usize, chunk: Chunk) -> Arc<Self> {
        Self::owned(start, len, false, Owner::Pooled(chunk))
    }

    /// The memory that rings register: this, or the memory it is part of.
    #[inline]
    fn whole(self: &Arc<Self>) -> &Arc<Self> {
        match &self.owner {
            Owner::Memory(_) | Owner::Vector(_) => self,
            Owner::Frozen(piece) => piece.backing(),
            Owner::Pooled(chunk) => chunk.memory(),
            #[cfg(feature = "bytes")]
            Owner::Bytes(_) => self,
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The rings that have it registered.
    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    /// Whether rings may register it: heap memory shares its pages with other data.
    pub(crate) fn is_mapped(&self) -> bool {
        self.pinned_by_page
    }

    /// It was registered, or no ring has it any more. Pinned pages stay as they are; others may have been
    /// merged meanwhile.
    pub(crate) fn look_again_for_huge_pages(&self) {
        self.huge.store(UNKNOWN, Relaxed);
    }

    /// Whether any of the registered pages are huge; `look` finds out if it is not known.
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

/// A range of a backing: `capacity` bytes of which the first `len` are in use. It is owned alone; or, in a
/// frozen buffer, shared and only read.
pub(crate) struct Piece {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    backing: Arc<Backing>,
}

// SAFETY: a piece owns its range alone, or its range is only read, and the backing is `Send` and `Sync`.
unsafe impl Send for Piece {}
// SAFETY: shared access to a piece only reads.
unsafe impl Sync for Piece {}

impl Piece {
    /// # Safety
    ///
    /// No other piece may overlap the range, which must lie in the backing, unless none is written.
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

    /// Cuts off the first `at` bytes, in use and in capacity.
    pub(crate) fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split at {at} is past the length of {}", self.len);
        let head = Self { start: self.start, len: at, capacity: at, backing: self.backing.clone() };
        // SAFETY: `at` is within the piece.
        self.start = unsafe { self.start.add(at) };
        self.len -= at;
        self.capacity -= at;
        head
    }

    /// Joins the piece that directly follows in memory; both must be used to capacity.
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

    /// The memory that it is part of, which rings register.
    #[inline]
    pub(crate) fn backing(&self) -> &Arc<Backing> {
        self.backing.whole()
    }

    /// Whether it was cut from this memory itself, not from a part with an owner.
    pub(crate) fn is_cut_from(&self, backing: &Arc<Backing>) -> bool {
        Arc::ptr_eq(&self.backing, backing)
    }

    /// The room of this size behind a vector's bytes. It is not initialised.
    pub(crate) fn of_room(mut vector: Vec<u8>, room: usize) -> Self {
        let start = NonNull::from(&mut vector.spare_capacity_mut()[..room]).cast();
        // SAFETY: the room stays at its address as long as the vector is owned here, and nobody else reaches it.
        unsafe { Self::at(Backing::owned(start, room, false, Owner::Vector(vector)), start, room) }
    }

    /// The vector whose room it is.
    pub(crate) fn into_vector(self) -> Vec<u8> {
        match Arc::into_inner(self.backing) {
            Some(Backing { owner: Owner::Vector(vector), .. }) => vector,
            _ => unreachable!("the room of a vector is the only piece of its backing"),
        }
    }

    /// The piece of which bytes are lent.
    #[cfg(feature = "bytes")]
    pub(crate) fn of_bytes(bytes: bytes::Bytes) -> Self {
        let (start, len) = (NonNull::from(&bytes[..]).cast(), bytes.len());
        // SAFETY: the bytes stay at their address, and nobody writes them, as long as they are owned here.
        unsafe { Self::at(Backing::owned(start, len, false, Owner::Bytes(bytes)), start, len) }
    }

    /// The bytes whose piece it is.
    #[cfg(feature = "bytes")]
    pub(crate) fn into_bytes(self) -> bytes::Bytes {
        match Arc::into_inner(self.backing) {
            Some(Backing { owner: Owner::Bytes(bytes), .. }) => bytes,
            _ => unreachable!("a piece of bytes is the only one of its backing"),
        }
    }

    /// Nobody writes its bytes from here on, so it can be shared.
    pub(crate) fn freeze(self) -> Self {
        let (start, len) = (self.start, self.len);
        Self { start, len, capacity: len, backing: Backing::frozen(self) }
    }

    /// Part of a piece that is [frozen](Self::freeze).
    ///
    /// # Panics
    ///
    /// When the range is not within the length.
    pub(crate) fn share(&self, range: Range<usize>) -> Self {
        debug_assert!(
            matches!(self.backing.owner, Owner::Frozen(_)),
            "only what is frozen is shared"
        );
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "{start}..{end} is not within {}", self.len);
        // SAFETY: `start` is within the piece, as was just looked at.
        let at = unsafe { self.start.add(start) };
        let len = end - start;
        Self { start: at, len, capacity: len, backing: Arc::clone(&self.backing) }
    }

    /// The piece that was frozen, if this is the last one that shares it.
    pub(crate) fn unfreeze(self) -> Result<Self, Self> {
        let Self { start, len, capacity, backing } = self;
        match Arc::try_unwrap(backing) {
            Ok(Backing { owner: Owner::Frozen(piece), .. }) => Ok(piece),
            Ok(_) => unreachable!("what is unfrozen was frozen"),
            Err(backing) => Err(Self { start, len, capacity, backing }),
        }
    }

    /// The pool's buffer that it is part of, if any.
    pub(crate) fn chunk(&self) -> Option<&Chunk> {
        match &self.backing.owner {
            Owner::Pooled(chunk) => Some(chunk),
            Owner::Frozen(piece) => piece.chunk(),
            _ => None,
        }
    }

    /// Drops a piece that nobody wants. If that runs foreign code, `later` gets what calls it.
    pub(crate) fn let_go(self, later: &mut dyn FnMut(Waker)) {
        let Some(Backing { owner, .. }) = Arc::into_inner(self.backing) else { return };
        match owner {
            Owner::Memory(memory) => drop(memory),
            Owner::Vector(vector) => drop(vector),
            Owner::Frozen(piece) => piece.let_go(later),
            Owner::Pooled(chunk) => chunk.give_back().into_iter().for_each(later),
            #[cfg(feature = "bytes")]
            Owner::Bytes(bytes) => later(super::lent_bytes::last_of(bytes)),
        }
    }

    /// The slot by which `ring` can use the piece, if one slot covers it whole.
    pub(crate) fn slot(&self, ring: u32) -> Option<u16> {
        let memory = self.backing();
        let first_slot = memory.registrations.of(ring)?;
        let offset = self.start.as_ptr().addr() - memory.start().as_ptr().addr();
        let span = offset / SLOT_SPAN;
        (self.len == 0 || (offset + self.len - 1) / SLOT_SPAN == span)
            .then(|| first_slot + span as u16)
    }

    /// What is left behind the first `skip` bytes; the piece has at least that many.
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

/// A range as a request names it: an address, or a place within a slot's buffer.
pub(crate) struct AddressRange {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) slot: Option<u16>,
}

/// Memory that buffers are cut from and that a ring can have registered.
///
/// Implemented for [`Region`](crate::Region), [`SharedRegion`](crate::SharedRegion),
/// [`BufferPool`](crate::BufferPool), and [`Frozen`](crate::Frozen), which stands for the region that it was cut from.
///
/// ```no_run
/// fn register(driver: &handoff::Driver, memory: &impl handoff::Memory) {
///     if let Err(error) = driver.register(memory) {
///         println!("sends go unregistered: {error}");
///     }
/// }
/// ```
#[allow(private_bounds, reason = "the memory itself is for this crate only")]
pub trait Memory: Backed {}

/// What has a backing.
pub(crate) trait Backed {
    fn backing(&self) -> &Arc<Backing>;
}
