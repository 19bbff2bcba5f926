//! A received span: bytes in a chunk of a receive pool or of an rx queue's area, lent to the span's holder.
//!
//! Kernel and NIC do not touch the bytes until they get them back, so they are ordinary memory. They go
//! back when the last part of the span is dropped.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::datagram::{self, DATAGRAM_HEAD, Datagram};
use super::pending::Pending;
use super::pool::PoolShared;
use super::returns::Keep;
use super::rx_shared::RxShared;
use crate::memory::{Backing, Piece};

/// Keeps the memory of a span, and gives its chunk back when the last share of it is dropped.
pub(crate) struct Ticket(
    // Dropped by the ticket, which then needs no second look at the kind.
    ManuallyDrop<Origin>,
);

enum Origin {
    /// An empty datagram; the kernel takes no chunk for it.
    Nowhere,
    /// The pool, and the chunk's number; as wide as a place, so that all variants move alike.
    Pool(Rc<PoolShared>, u64),
    /// The same, of a chunk with the head of a datagram.
    Datagram(Rc<PoolShared>, u64),
    /// The rx queue, and the beginning of the span, in the kernel's words.
    Queue(Rc<RxShared>, u64),
    /// The ticket of a split span. Most spans are never split, and need no count of their own.
    Shared(Rc<Ticket>),
}

// Spans are many, and are moved often.
const _: () = assert!(size_of::<Origin>() == 3 * size_of::<u64>());

impl Origin {
    /// Drops the ticket, which is not a queue's.
    #[inline(never)]
    fn end(self) {
        if let Self::Pool(pool, chunk) | Self::Datagram(pool, chunk) = &self {
            PoolShared::give_back(pool, *chunk as u16);
        }
    }
}

impl Ticket {
    fn new(origin: Origin) -> Self {
        Self(ManuallyDrop::new(origin))
    }

    /// A second ticket for the same chunk.
    fn share(&mut self) -> Self {
        let whole = match std::mem::replace(&mut *self.0, Origin::Nowhere) {
            Origin::Shared(whole) => whole,
            sole => Rc::new(Self::new(sole)),
        };
        *self.0 = Origin::Shared(Rc::clone(&whole));
        Self::new(Origin::Shared(whole))
    }

    fn is_of_queue(&self) -> bool {
        match &*self.0 {
            Origin::Queue(..) => true,
            Origin::Shared(whole) => whole.is_of_queue(),
            Origin::Nowhere | Origin::Pool(..) | Origin::Datagram(..) => false,
        }
    }

    /// The driver goes, and the kernel may read the bytes for longer: the NIC never gets their chunk back.
    pub(crate) fn keep_from_nic(&self) {
        match &*self.0 {
            Origin::Queue(queue, place) => queue.keep_from_nic(*place),
            Origin::Shared(whole) => whole.keep_from_nic(),
            Origin::Nowhere | Origin::Pool(..) | Origin::Datagram(..) => {}
        }
    }

    fn datagram(&self) -> Option<Datagram> {
        match &*self.0 {
            // SAFETY: the chunk has a head, and the ticket keeps it.
            Origin::Datagram(pool, chunk) => datagram::parse(unsafe { pool.head(*chunk as u16) }),
            Origin::Shared(whole) => whole.datagram(),
            Origin::Nowhere | Origin::Pool(..) | Origin::Queue(..) => None,
        }
    }

    /// What goes with the driver whose chunk it is; `None` once that is gone, and for no chunk.
    pub(super) fn pending(&self) -> Option<Rc<Pending>> {
        match &*self.0 {
            Origin::Nowhere => None,
            Origin::Pool(pool, _) | Origin::Datagram(pool, _) => pool.pending(),
            Origin::Queue(queue, _) => queue.pending(),
            Origin::Shared(whole) => whole.pending(),
        }
    }

    pub(super) fn is_of_nowhere(&self) -> bool {
        match &*self.0 {
            Origin::Nowhere => true,
            Origin::Shared(whole) => whole.is_of_nowhere(),
            Origin::Pool(..) | Origin::Datagram(..) | Origin::Queue(..) => false,
        }
    }

    /// The head of its datagram.
    pub(super) fn head(&self) -> Option<NonNull<u8>> {
        match &*self.0 {
            Origin::Datagram(pool, chunk) => Some(pool.start(*chunk as u16)),
            Origin::Shared(whole) => whole.head(),
            Origin::Nowhere | Origin::Pool(..) | Origin::Queue(..) => None,
        }
    }

    fn into_origin(mut self) -> Origin {
        // SAFETY: the ticket is forgotten, and nothing else takes it.
        let origin = unsafe { ManuallyDrop::take(&mut self.0) };
        std::mem::forget(self);
        origin
    }

    /// The ticket of the whole chunk, if no other part shares it.
    pub(super) fn unshare(self) -> Result<Self, Self> {
        match self.into_origin() {
            Origin::Shared(whole) => {
                Rc::try_unwrap(whole).map_err(|whole| Self::new(Origin::Shared(whole)))
            }
            sole => Ok(Self::new(sole)),
        }
    }

    /// The driver goes, and another thread has the bytes: what keeps them, and gives them back if that is still possible.
    /// A pool's chunk is not given back any more: requests under way would receive into it.
    pub(super) fn into_keep(self) -> Keep {
        match self.into_origin() {
            Origin::Pool(pool, _) | Origin::Datagram(pool, _) => {
                Box::new(Arc::clone(pool.memory()))
            }
            Origin::Queue(queue, place) => Box::new(queue.leave_behind(place)),
            Origin::Nowhere | Origin::Shared(_) => unreachable!("it has a chunk of its own"),
        }
    }

    /// The memory of the chunk, if there is one.
    fn memory(&self) -> Option<&Arc<Backing>> {
        match &*self.0 {
            Origin::Nowhere => None,
            Origin::Pool(pool, _) | Origin::Datagram(pool, _) => Some(pool.memory()),
            Origin::Queue(queue, _) => Some(queue.memory()),
            Origin::Shared(whole) => whole.memory(),
        }
    }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        match &*self.0 {
            // The most frequent kind.
            Origin::Queue(queue, place) => {
                queue.give_back(*place);
                // SAFETY: the ticket goes, and nothing else drops what it had.
                drop(unsafe { std::ptr::read(queue) });
            }
            // SAFETY: as above.
            _ => unsafe { ManuallyDrop::take(&mut self.0) }.end(),
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Origin::Nowhere => f.write_str("Nowhere"),
            Origin::Pool(_, chunk) => write!(f, "Pool({chunk})"),
            Origin::Datagram(_, chunk) => write!(f, "Datagram({chunk})"),
            Origin::Queue(_, place) => write!(f, "Queue({place:#x})"),
            Origin::Shared(whole) => whole.fmt(f),
        }
    }
}

/// Received bytes, in a chunk of a [`Pool`](crate::Pool) or of an [`RxQueue`](crate::RxQueue).
/// Dropping all parts of it gives the chunk back. Holding too many makes receivers of the pool wait,
/// and peers of the rx queue send again.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::Receiver, socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(span) = receiver.next_span().await {
///     let mut payload = span?;
///     let header = payload.split_to(16); // both parts hold the chunk
///     println!("{:?}", &header[..]);
///     socket.send(payload)?.await?.sent?; // sent on from where it was received
/// }
/// # Ok(()) }
/// ```
pub struct Span {
    // Not a `Piece`, whose count of owners serves all threads: spans are many, and few are lent on.
    start: NonNull<u8>,
    len: usize,
    ticket: Ticket,
}

impl Span {
    /// No bytes.
    pub(crate) fn nothing() -> Self {
        Self { start: NonNull::dangling(), len: 0, ticket: Ticket::new(Origin::Nowhere) }
    }

    /// # Safety
    ///
    /// The bytes are initialised and in this chunk of the pool. The chunk was handed out once, and is not
    /// handed out again before it is given back.
    unsafe fn of_pool(pool: &Rc<PoolShared>, chunk: u16, start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, ticket: Ticket::new(Origin::Pool(Rc::clone(pool), chunk.into())) }
    }

    /// # Safety
    ///
    /// As for [`of_pool`](Self::of_pool); the chunk begins with a head, which is in no span.
    unsafe fn of_datagram(
        pool: &Rc<PoolShared>,
        chunk: u16,
        start: NonNull<u8>,
        len: usize,
    ) -> Self {
        Self { start, len, ticket: Ticket::new(Origin::Datagram(Rc::clone(pool), chunk.into())) }
    }

    /// # Safety
    ///
    /// The bytes are initialised and at this place of the queue's memory, and are handed out once before
    /// they are given back.
    #[inline]
    pub(crate) unsafe fn of_queue(
        queue: &Rc<RxShared>,
        place: u64,
        start: NonNull<u8>,
        len: usize,
    ) -> Self {
        Self { start, len, ticket: Ticket::new(Origin::Queue(Rc::clone(queue), place)) }
    }

    /// Where it begins in the memory of its chunk.
    pub(crate) fn offset(&self) -> usize {
        let begin = self.ticket.memory().map(|memory| memory.start().as_ptr().addr());
        begin.map_or(0, |begin| self.start.as_ptr().addr() - begin)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes of memory that this process may be unable to read, or that others may write.
    pub(crate) fn count(&self) -> usize {
        self.len
    }

    /// Whether the bytes are in the area of an [`RxQueue`](crate::RxQueue), not in a [`Pool`](crate::Pool).
    pub fn is_of_queue(&self) -> bool {
        self.ticket.is_of_queue()
    }

    /// Who sent the datagram that the bytes are of, and how long it was; `None` if it was not received by
    /// [`Pool::with_senders`](crate::Pool::with_senders).
    pub fn datagram(&self) -> Option<Datagram> {
        self.ticket.datagram()
    }

    /// Cuts off the first `at` bytes as a span of their own, which shares the chunk.
    ///
    /// # Panics
    ///
    /// When `at` is more than the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split at {at} is past the length of {}", self.len);
        let head = Self { start: self.start, len: at, ticket: self.ticket.share() };
        // SAFETY: `at` is within the span.
        self.start = unsafe { self.start.add(at) };
        self.len -= at;
        head
    }

    pub(super) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    pub(super) fn take_apart(self) -> (NonNull<u8>, usize, Ticket) {
        let Self { start, len, ticket } = self;
        (start, len, ticket)
    }

    /// What [`take_apart`](Self::take_apart) took apart.
    pub(super) fn put_together(start: NonNull<u8>, len: usize, ticket: Ticket) -> Self {
        Self { start, len, ticket }
    }

    pub(crate) fn into_parts(self) -> (Piece, Ticket) {
        let Self { start, len, ticket } = self;
        let piece = match ticket.memory() {
            // SAFETY: the span owned its bytes alone, and is no more.
            Some(memory) => unsafe { Piece::at(Arc::clone(memory), start, len) },
            None => Piece::nothing(),
        };
        (piece, ticket)
    }

    pub(crate) fn from_parts(piece: Piece, ticket: Ticket) -> Self {
        Self { start: piece.start(), len: piece.len(), ticket }
    }
}

impl PoolShared {
    /// A receive filled the first `len` bytes of a chunk.
    pub(crate) fn filled(self: &Rc<Self>, chunk: u16, len: usize) -> Span {
        self.hold(len);
        // SAFETY: in the backing, which is initialised. The chunk was supplied once and is not supplied
        // again before its ticket is gone.
        unsafe { Span::of_pool(self, chunk, self.start(chunk), len) }
    }

    /// A receive filled the first `len` bytes of a chunk, with a head and a datagram behind it.
    pub(crate) fn filled_datagram(self: &Rc<Self>, chunk: u16, len: usize) -> Span {
        self.hold(len);
        let payload = len.checked_sub(DATAGRAM_HEAD).expect("a datagram is behind its head");
        // SAFETY: as above; the head is in the chunk.
        let start = unsafe { self.start(chunk).add(DATAGRAM_HEAD) };
        // SAFETY: as above; nobody writes the head before the ticket is gone, as it is in no span.
        unsafe { Span::of_datagram(self, chunk, start, payload) }
    }
}

impl RxShared {
    /// The span that a completion has reported.
    ///
    /// # Safety
    ///
    /// The kernel has reported these bytes, which the queue [has](Self::has), and nothing else is made of the
    /// same completion.
    #[inline]
    pub(crate) unsafe fn span(this: &Rc<Self>, place: u64, len: usize) -> Span {
        // SAFETY: inside the memory, as the caller says, and initialised; the kernel tells of each byte that it
        // has put there once, and puts others there only after the span was given back.
        unsafe {
            let start = this.memory.address(place, len);
            Span::of_queue(this, place, start, len)
        }
    }
}

impl Deref for Span {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the span owns initialised bytes alone by the contracts of its makers, and the ticket
        // keeps their memory.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("len", &self.len).field("ticket", &self.ticket).finish()
    }
}
