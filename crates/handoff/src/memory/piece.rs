//! Pieces of memory with one owner each.
//!
//! Contracts:
//! - a [`Piece`] owns its bytes alone: two pieces never overlap, except those of a
//!   [`Frozen`](super::Frozen) buffer, which nobody writes;
//! - the memory stays mapped as long as any piece of it lives;
//! - a part of other memory (a frozen buffer, a buffer of a pool) holds that part until its last piece
//!   goes. Only memory itself can be registered, so only memory has a table of registrations.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use super::backing::{Backing, SLOT_SPAN};
use super::chunk::Chunk;
use super::io_buf::{IoBuf, LentOwner};

/// What keeps the bytes of a piece in place.
#[derive(Clone)]
enum Hold {
    /// There are no bytes.
    Nothing,
    /// The memory that it was cut from.
    Memory(Arc<Backing>),
    /// A buffer that was frozen.
    Frozen(Arc<Piece>),
    /// A buffer of a pool.
    Pooled(Chunk),
    /// A vector; only the room behind its bytes is lent.
    Vector(Arc<Vec<u8>>),
    /// An owner of any kind.
    Owner(Arc<LentOwner>),
}

impl Hold {
    /// Whether both are of the same memory, or of the same part.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => Arc::ptr_eq(one, other),
            (Self::Pooled(one), Self::Pooled(other)) => one.is_same(other),
            _ => false,
        }
    }
}

/// A range of memory: `capacity` bytes of which the first `len` are in use. It is owned alone; or, in a
/// frozen buffer, shared and only read.
pub(crate) struct Piece {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
    hold: Hold,
}

// Sends move it.
const _: () = assert!(size_of::<Hold>() == 16);
const _: () = assert!(size_of::<Piece>() == 40);

// SAFETY: a piece owns its range alone, or its range is only read, and all that holds it is `Send` and `Sync`, except an
// owner, whose piece stays with the loan and on its thread.
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
        Self { start, len: capacity, capacity, hold: Hold::Memory(backing) }
    }

    /// The buffer of a pool, which begins there.
    ///
    /// # Safety
    ///
    /// The range is that of the buffer, and no other piece is of that buffer.
    pub(crate) unsafe fn of_pool(chunk: Chunk, start: NonNull<u8>, capacity: usize) -> Self {
        Self { start, len: capacity, capacity, hold: Hold::Pooled(chunk) }
    }

    /// No bytes, of no memory.
    pub(crate) fn nothing() -> Self {
        Self { start: NonNull::dangling(), len: 0, capacity: 0, hold: Hold::Nothing }
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
        let head = Self { start: self.start, len: at, capacity: at, hold: self.hold.clone() };
        // SAFETY: `at` is within the piece.
        self.start = unsafe { self.start.add(at) };
        self.len -= at;
        self.capacity -= at;
        head
    }

    /// Joins the piece that directly follows in memory; both must be used to capacity.
    pub(crate) fn join(&mut self, next: Self) -> Result<(), Self> {
        // SAFETY: one past the end of a piece is within or one past its memory.
        let end = unsafe { self.start.add(self.capacity) };
        if self.hold.is_same(&next.hold) && end == next.start && self.len == self.capacity {
            self.len += next.len;
            self.capacity += next.capacity;
            Ok(())
        } else {
            Err(next)
        }
    }

    /// The memory that it is part of, which rings register; `None` for what no ring can register.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&Arc<Backing>> {
        match &self.hold {
            Hold::Memory(memory) => Some(memory),
            Hold::Pooled(chunk) => Some(chunk.memory()),
            Hold::Frozen(frozen) => frozen.memory(),
            Hold::Nothing | Hold::Vector(_) | Hold::Owner(_) => None,
        }
    }

    /// Whether it was cut from this memory itself, not from a part with an owner.
    pub(crate) fn is_cut_from(&self, backing: &Arc<Backing>) -> bool {
        matches!(&self.hold, Hold::Memory(memory) if Arc::ptr_eq(memory, backing))
    }

    /// The room of this size behind a vector's bytes. It is not initialised.
    pub(crate) fn of_room(mut vector: Vec<u8>, room: usize) -> Self {
        // The room stays at its address as long as the vector is owned here, and nobody else reaches it.
        let start = NonNull::from(&mut vector.spare_capacity_mut()[..room]).cast();
        Self { start, len: room, capacity: room, hold: Hold::Vector(Arc::new(vector)) }
    }

    /// The vector whose room it is.
    pub(crate) fn into_vector(self) -> Vec<u8> {
        match self.hold {
            Hold::Vector(vector) => Arc::into_inner(vector).expect("it has one piece"),
            _ => unreachable!("the room of a vector is the only piece of it"),
        }
    }

    /// The bytes of an owner that is lent.
    pub(crate) fn of_owner<B: IoBuf>(owner: B) -> Self {
        // They stay at their address, and nobody else writes them, as long as the owner is here.
        let (lent, start, len) = LentOwner::lend(owner);
        Self { start, len, capacity: len, hold: Hold::Owner(lent) }
    }

    /// The owner whose bytes they are.
    pub(crate) fn into_owner<B: IoBuf>(self) -> B {
        match self.hold {
            Hold::Owner(lent) => LentOwner::give_back(lent).expect("it has one piece"),
            _ => unreachable!("the bytes of an owner come back to it"),
        }
    }

    /// Nobody writes its bytes from here on, so it can be shared.
    pub(crate) fn freeze(self) -> Self {
        let (start, len) = (self.start, self.len);
        Self { start, len, capacity: len, hold: Hold::Frozen(Arc::new(self)) }
    }

    /// Part of a piece that is [frozen](Self::freeze).
    ///
    /// # Panics
    ///
    /// When the range is not within the length.
    pub(crate) fn share(&self, range: Range<usize>) -> Self {
        debug_assert!(matches!(self.hold, Hold::Frozen(_)), "only what is frozen is shared");
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "{start}..{end} is not within {}", self.len);
        // SAFETY: `start` is within the piece, as was just looked at.
        let at = unsafe { self.start.add(start) };
        let len = end - start;
        Self { start: at, len, capacity: len, hold: self.hold.clone() }
    }

    /// The piece that was frozen, if this is the last one that shares it.
    pub(crate) fn unfreeze(self) -> Result<Self, Self> {
        let Self { start, len, capacity, hold } = self;
        let Hold::Frozen(frozen) = hold else { unreachable!("what is unfrozen was frozen") };
        Arc::try_unwrap(frozen).map_err(|frozen| Self {
            start,
            len,
            capacity,
            hold: Hold::Frozen(frozen),
        })
    }

    /// The pool's buffer that it is part of, if any.
    pub(crate) fn chunk(&self) -> Option<&Chunk> {
        match &self.hold {
            Hold::Pooled(chunk) => Some(chunk),
            Hold::Frozen(frozen) => frozen.chunk(),
            _ => None,
        }
    }

    /// Drops a piece that nobody wants. If that runs foreign code, `later` gets what calls it.
    pub(crate) fn let_go(self, later: &mut dyn FnMut(Waker)) {
        match self.hold {
            Hold::Nothing => {}
            Hold::Memory(memory) => drop(memory),
            Hold::Vector(vector) => drop(vector),
            Hold::Frozen(frozen) => {
                if let Some(piece) = Arc::into_inner(frozen) {
                    piece.let_go(later);
                }
            }
            Hold::Pooled(chunk) => chunk.give_back().into_iter().for_each(later),
            Hold::Owner(lent) => later(Waker::from(lent)),
        }
    }

    /// The slot by which `ring` can use the piece, if one slot covers it whole.
    #[inline]
    pub(crate) fn slot(&self, ring: u32) -> Option<u16> {
        let memory = self.memory()?;
        let first_slot = memory.registrations().of(ring)?;
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

    /// Whether its pages outlive their mapping while the kernel uses them. A part of other memory would be handed out
    /// again.
    pub(crate) fn pinned_by_page(&self) -> bool {
        match &self.hold {
            Hold::Memory(memory) => memory.is_mapped(),
            Hold::Nothing => true,
            _ => false,
        }
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
