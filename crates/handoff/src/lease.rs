//! What is lent: pieces of memory with one owner each, and the ways they change hands.
//!
//! Contracts:
//! - a [`Piece`] owns its bytes alone; two pieces never overlap, and the memory behind stays mapped
//!   as long as any piece of it lives;
//! - lending moves the buffer in; it comes back whole, as the type it was, with the verdict on its
//!   bytes ([`Returned`]), or at once with the error when the lend is refused ([`Refused`]).

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::error::Error;
use crate::receipt::Receipt;
use crate::source::kernel::Bytes;
use crate::source::received::Ticket;

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
    fn behind(&self, skip: usize, ring: Option<u32>) -> Span {
        // SAFETY: `skip` is within the piece.
        let start = unsafe { self.start.add(skip) }.as_ptr();
        Span { start, len: self.len - skip, slot: ring.and_then(|ring| self.slot(ring)) }
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

/// A lent buffer while an operation holds it. Each kind of buffer has a variant of its own, so that it
/// comes back as what it was: what others may write never becomes a slice.
#[derive(Debug)]
pub(crate) enum Loan {
    /// One piece of memory of this process alone.
    One(Piece),
    /// Several, used one after another.
    Many(Vec<Piece>),
    /// One piece of memory that other processes may write.
    Shared(Piece),
    /// Several such, used one after another.
    ManyShared(Vec<Piece>),
    /// A span of a receive pool, with the ticket that gives its chunk back.
    Received(Piece, Ticket),
    /// Several such spans, used one after another, with their tickets in the same order.
    ManyReceived(Vec<Piece>, Vec<Ticket>),
    /// Bytes of the kernel, which a ring has in a slot and nobody here can reach.
    Kernel(Bytes),
    /// The same, to be filled.
    KernelToFill(Bytes),
}

/// A range as a request names it: an address, or a place within the buffer of a slot.
pub(crate) struct Span {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    pub(crate) slot: Option<u16>,
}

impl Loan {
    /// Its pieces of user memory.
    pub(crate) fn pieces(&self) -> &[Piece] {
        match self {
            Self::One(piece) | Self::Shared(piece) | Self::Received(piece, _) => {
                std::slice::from_ref(piece)
            }
            Self::Many(pieces) | Self::ManyShared(pieces) | Self::ManyReceived(pieces, _) => pieces,
            Self::Kernel(_) | Self::KernelToFill(_) => &[],
        }
    }

    fn of_kernel(&self) -> Option<&Bytes> {
        match self {
            Self::Kernel(bytes) | Self::KernelToFill(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self.of_kernel() {
            Some(bytes) => bytes.len(),
            None => self.pieces().iter().map(Piece::len).sum(),
        }
    }

    /// What is left behind the first `skip` bytes, if it is one range.
    pub(crate) fn sole(&self, skip: usize, ring: u32) -> Option<Span> {
        match self {
            Self::One(piece) | Self::Shared(piece) | Self::Received(piece, _) => {
                Some(piece.behind(skip, Some(ring)))
            }
            Self::Kernel(bytes) | Self::KernelToFill(bytes) => Some(bytes.behind(skip)),
            Self::Many(pieces) | Self::ManyShared(pieces) | Self::ManyReceived(pieces, _) => {
                match &pieces[..] {
                    [piece] => Some(piece.behind(skip, Some(ring))),
                    _ => None,
                }
            }
        }
    }

    /// The first range that is left behind the first `skip` bytes, with its slot in `ring`.
    pub(crate) fn first(&self, mut skip: usize, ring: Option<u32>) -> Option<Span> {
        if let Some(bytes) = self.of_kernel() {
            return (skip < bytes.len()).then(|| bytes.behind(skip));
        }
        for piece in self.pieces() {
            if skip < piece.len() {
                return Some(piece.behind(skip, ring));
            }
            skip -= piece.len();
        }
        None
    }

    /// The slot of its beginning in `ring`.
    pub(crate) fn slot(&self, ring: u32) -> Option<u16> {
        match self.of_kernel() {
            Some(bytes) => bytes.behind(0).slot,
            None => self.pieces().first().and_then(|piece| piece.slot(ring)),
        }
    }

    /// Whether only requests of the ring can use it.
    pub(crate) fn is_of_kernel(&self) -> bool {
        self.of_kernel().is_some()
    }

    /// Whether the buffer may be dropped while the kernel still reads its pages.
    pub(crate) fn outlives_its_mapping(&self) -> bool {
        self.pieces().iter().all(Piece::pinned_by_page)
    }
}

/// How much is lent, and to whom it can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) pieces: usize,
    pub(crate) bytes: usize,
    /// The only ring that has it, if it is in the kernel.
    pub(crate) home: Option<u32>,
}

impl Extent {
    pub(crate) fn one(piece: &Piece) -> Self {
        Self { pieces: 1, bytes: piece.len(), home: None }
    }

    pub(crate) fn many<'a>(pieces: impl ExactSizeIterator<Item = &'a Piece>) -> Self {
        Self { pieces: pieces.len(), bytes: pieces.map(Piece::len).sum(), home: None }
    }

    /// Whether operations of a ring can use it; user memory asks for none.
    #[inline]
    pub(crate) fn check_home(&self, ring: impl FnOnce() -> u32) -> Result<(), Error> {
        match self.home {
            Some(home) if home != ring() => {
                Err(Error::Invalid("the lease is of another driver than the socket or file"))
            }
            _ => Ok(()),
        }
    }
}

/// How a buffer becomes a loan and is one again. Whoever could call this could make a buffer of one kind
/// from the loan of another, so its privacy, which the compiler keeps behind bounds too, is what
/// [`Lendable`] rests on.
pub(crate) trait AsLoan: Sized + 'static {
    fn extent(&self) -> Extent;
    fn into_loan(self) -> Loan;
    fn from_loan(loan: Loan) -> Self;
}

/// What can be moved into an operation, and is handed back with its return signal.
#[allow(private_bounds, reason = "what a loan is made with is for this crate only")]
pub trait Lendable: AsLoan {}

/// A buffer that an operation may read: send, or write to a file.
///
/// Implemented for [`Buffer`](crate::Buffer), [`SharedBuffer`](crate::SharedBuffer),
/// [`Received`](crate::Received), [`Lease`](crate::Lease), and vectors of the first three, whose pieces
/// are used one after another.
pub trait Lend: Lendable {}

/// A buffer that an operation may write into.
///
/// Implemented for [`Buffer`](crate::Buffer), [`SharedBuffer`](crate::SharedBuffer), and
/// [`LeaseMut`](crate::LeaseMut).
pub trait LendMut: Lendable {}

/// Memory that buffers are cut from and that a ring can have registered.
///
/// Implemented for [`Region`](crate::Region) and [`SharedRegion`](crate::SharedRegion).
#[allow(private_bounds, reason = "the memory itself is for this crate only")]
pub trait Memory: Backed {}

/// What has a backing.
pub(crate) trait Backed {
    fn backing(&self) -> &Arc<Backing>;
}

/// A buffer back from a loan.
#[derive(Debug)]
pub struct Returned<B> {
    /// The buffer, whole.
    pub buffer: B,
    /// What became of its bytes.
    pub receipt: Receipt,
}

/// An operation that was not started; the buffer comes back with the reason.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// The buffer, untouched.
    pub buffer: B,
    /// Why the operation was not started.
    #[source]
    pub error: Error,
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}
