//! What can be lent, and what an operation holds meanwhile.
//!
//! Contracts:
//! - lending moves the buffer in. It comes back whole, as the same type, with the verdict on its bytes
//!   ([`Returned`]); if the lend is refused, it comes back at once with the error ([`Refused`]).

use std::fmt;
use std::task::Waker;

use crate::error::Error;
use crate::lease::kernel::{Bytes, Lease, LeaseMut};
use crate::lease::{MappedSpan, SendSpan, Span, Ticket};
use crate::memory::{AddressRange, Append, Buffer, Frozen, IoBuf, IoBufMut, Piece, SharedBuffer};
use crate::receipt::Receipt;

/// A lent buffer while an operation holds it. Each kind of buffer has its own variant, so that it comes
/// back as the same kind: memory that others may write never becomes a slice.
#[derive(Debug)]
pub(crate) enum Loan {
    /// One piece of memory that only this process has.
    One(Piece),
    /// Several, used one after another.
    Many(Vec<Piece>),
    /// One shared piece that nobody writes.
    Frozen(Piece),
    /// Several such, used one after another.
    ManyFrozen(Vec<Piece>),
    /// The room of a vector, and how many of its bytes are filled.
    Append(Piece, usize),
    /// The bytes of an owner of any kind.
    Owned(Piece),
    /// One piece of memory that other processes may write.
    Shared(Piece),
    /// Several such, used one after another.
    ManyShared(Vec<Piece>),
    /// A span of a receive pool, with the ticket that returns its chunk.
    Span(Piece, Ticket),
    /// Several such spans, used one after another, with their tickets in the same order.
    ManyReceived(Vec<Piece>, Vec<Ticket>),
    /// Bytes of the kernel, in a slot of a ring; nobody here can read them.
    Kernel(Bytes),
    /// The same, to fill.
    KernelToFill(Bytes),
}

impl Loan {
    /// Its pieces of user memory.
    pub(crate) fn pieces(&self) -> &[Piece] {
        match self {
            Self::One(piece)
            | Self::Frozen(piece)
            | Self::Append(piece, _)
            | Self::Owned(piece)
            | Self::Shared(piece)
            | Self::Span(piece, _) => std::slice::from_ref(piece),
            Self::Many(pieces)
            | Self::ManyFrozen(pieces)
            | Self::ManyShared(pieces)
            | Self::ManyReceived(pieces, _) => pieces,
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

    /// The rest behind the first `skip` bytes, if it is one range.
    #[inline(always)]
    pub(crate) fn sole(&self, skip: usize, ring: u32) -> Option<AddressRange> {
        match self {
            Self::Kernel(bytes) | Self::KernelToFill(bytes) => Some(bytes.behind(skip)),
            _ => match self.pieces() {
                [piece] => Some(piece.behind(skip, Some(ring))),
                _ => None,
            },
        }
    }

    /// The first range behind the first `skip` bytes, with its slot in `ring`.
    pub(crate) fn first(&self, mut skip: usize, ring: Option<u32>) -> Option<AddressRange> {
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

    /// The slot in `ring` of its beginning.
    pub(crate) fn slot(&self, ring: u32) -> Option<u16> {
        match self.of_kernel() {
            Some(bytes) => bytes.behind(0).slot,
            None => self.pieces().first().and_then(|piece| piece.slot(ring)),
        }
    }

    /// The slot in `ring` that contains all its pieces.
    pub(crate) fn common_slot(&self, ring: u32) -> Option<u16> {
        let mut slots = self.pieces().iter().map(|piece| piece.slot(ring));
        let first = slots.next()??;
        slots.all(|slot| slot == Some(first)).then_some(first)
    }

    /// Whether only requests of the ring can use it.
    pub(crate) fn is_of_kernel(&self) -> bool {
        self.of_kernel().is_some()
    }

    /// Notes that the kernel has written this many bytes at its beginning.
    pub(crate) fn set_filled(&mut self, bytes: usize) {
        if let Self::Append(_, filled) = self {
            *filled = bytes;
        }
    }

    /// Drops a buffer that nobody wants. If that runs foreign code, `later` gets what calls it.
    pub(crate) fn let_go(self, mut later: impl FnMut(Waker)) {
        match self {
            Self::One(piece)
            | Self::Frozen(piece)
            | Self::Append(piece, _)
            | Self::Owned(piece) => piece.let_go(&mut later),
            Self::Many(pieces) | Self::ManyFrozen(pieces) => {
                pieces.into_iter().for_each(|piece| piece.let_go(&mut later));
            }
            // These go back to the driver, which calls nobody then.
            rest => drop(rest),
        }
    }

    /// Whether you may drop the buffer while the kernel still reads its pages, once it is
    /// [kept from the NIC](Self::keep_from_nic).
    pub(crate) fn outlives_its_mapping(&self) -> bool {
        self.pieces().iter().all(Piece::pinned_by_page)
    }

    /// The driver goes, and the kernel may read the pages for longer: chunks of rx queues do not go back.
    pub(crate) fn keep_from_nic(&self) {
        match self {
            Self::Span(_, ticket) => ticket.keep_from_nic(),
            Self::ManyReceived(_, tickets) => tickets.iter().for_each(Ticket::keep_from_nic),
            _ => {}
        }
    }
}

/// Length of a loan, and which rings can use it.
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

    /// Whether operations of a ring can use it; user memory needs no ring.
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

/// How a buffer becomes a loan and a buffer again. A caller could make a buffer of one kind from the loan
/// of another. So this is private, and the compiler keeps it so even behind bounds; [`Lendable`] rests on
/// that.
pub(crate) trait AsLoan: Sized + 'static {
    fn extent(&self) -> Extent;
    fn into_loan(self) -> Loan;
    fn from_loan(loan: Loan) -> Self;
}

/// A buffer that you can move into an operation, and get back with its return signal.
///
/// ```no_run
/// /// What an operation gave back, whatever buffer it was.
/// fn bytes_moved<B: handoff::Lendable>(done: handoff::Transferred<B>) -> handoff::Result<usize> {
///     done.result
/// }
/// ```
#[allow(private_bounds, reason = "what a loan is made with is for this crate only")]
pub trait Lendable: AsLoan {}

/// A buffer that an operation may read: send, or write to a file.
///
/// Implemented for [`Buffer`](crate::Buffer), [`SharedBuffer`](crate::SharedBuffer), [`Span`](crate::Span),
/// [`Frozen`](crate::Frozen), and vectors of these, whose pieces are used in order; for
/// [`MappedSpan`](crate::MappedSpan) and [`Lease`](crate::Lease); and for all that is [`IoBuf`](crate::IoBuf), by which
/// you lend memory of your own kind.
///
/// ```no_run
/// async fn send<B: handoff::Payload>(socket: &handoff::Socket, buffer: B) -> handoff::Result<usize> {
///     socket.send(buffer).map_err(|refused| refused.error)?.await?.sent
/// }
/// ```
pub trait Payload: Lendable {}

/// A buffer that an operation may write into.
///
/// Implemented for [`Buffer`](crate::Buffer), vectors of it, whose pieces are filled in order,
/// [`Append`](crate::Append), [`SharedBuffer`](crate::SharedBuffer), and [`LeaseMut`](crate::LeaseMut); and for all that
/// is [`IoBufMut`](crate::IoBufMut).
///
/// ```no_run
/// async fn fill<B: handoff::PayloadMut>(socket: &handoff::Socket, buffer: B) -> handoff::Result<B> {
///     let received = socket.receive_exact(buffer).map_err(|refused| refused.error)?.await?;
///     received.result.map(|_| received.buffer)
/// }
/// ```
pub trait PayloadMut: Lendable {}

/// A buffer back from a loan.
///
/// ```no_run
/// # async fn example(on_loan: handoff::OnLoan<handoff::Buffer>) -> Result<(), Box<dyn std::error::Error>> {
/// let returned = on_loan.await?;
/// println!("{} bytes, {}", returned.buffer.len(), returned.receipt.outcome());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Returned<B> {
    /// The buffer, whole.
    pub buffer: B,
    /// What happened to its bytes.
    pub receipt: Receipt,
}

/// An operation that was not started: the buffer, with the reason.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let buffer = match socket.send(buffer) {
///     Ok(sending) => sending.await?.buffer,
///     Err(refused) => {
///         println!("not sent: {}", refused.error);
///         refused.buffer
///     }
/// };
/// println!("{} bytes are yours again", buffer.len());
/// # Ok(()) }
/// ```
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// The buffer, untouched.
    pub buffer: B,
    /// Why the operation was not started.
    #[source]
    pub error: Error,
}

impl Span {
    /// Takes the bytes to other threads, without a copy. Their chunk is missed here until a thread drops them, and goes back
    /// with the driver's next turn; that also starts receivers that wait for a chunk.
    ///
    /// # Errors
    ///
    /// [`Error::SpansAway`] if other threads have as many spans as the driver was built for
    /// ([`DriverBuilder::send_spans`](crate::DriverBuilder::send_spans)); [`Error::Invalid`] while another part of the
    /// span is there, since parts share the chunk: split the `Bytes` instead; [`Error::DriverGone`]. The span comes back.
    pub fn into_send(self) -> Result<SendSpan, Refused<Self>> {
        SendSpan::of(self).map_err(|(buffer, error)| Refused { buffer, error })
    }
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

/// How a type is lent: its extent, the loan that it becomes, and how that becomes the type again.
macro_rules! lent {
    ($type:ty, |$lent:ident| $extent:expr, |$given:ident| $loan:expr, |$back:pat_param| $again:expr) => {
        impl AsLoan for $type {
            fn extent(&self) -> Extent {
                let $lent = self;
                $extent
            }

            fn into_loan(self) -> Loan {
                let $given = self;
                $loan
            }

            fn from_loan(loan: Loan) -> Self {
                match loan {
                    $back => $again,
                    other => unreachable!("{} was lent and {other:?} came back", stringify!($type)),
                }
            }
        }
    };
}

impl Lendable for Buffer {}
impl Payload for Buffer {}
impl PayloadMut for Buffer {}
lent! {
    Buffer,
    |buffer| Extent::one(&buffer.0),
    |buffer| Loan::One(buffer.0),
    |Loan::One(piece)| Buffer(piece)
}

impl Lendable for Vec<Buffer> {}
impl Payload for Vec<Buffer> {}
impl PayloadMut for Vec<Buffer> {}
lent! {
    Vec<Buffer>,
    |buffers| Extent::many(buffers.iter().map(|buffer| &buffer.0)),
    |buffers| Loan::Many(buffers.into_iter().map(|buffer| buffer.0).collect()),
    |Loan::Many(pieces)| pieces.into_iter().map(Buffer).collect()
}

impl Lendable for Append {}
impl PayloadMut for Append {}
impl AsLoan for Append {
    fn extent(&self) -> Extent {
        Extent { pieces: 1, bytes: self.room(), home: None }
    }

    fn into_loan(self) -> Loan {
        let (vector, room) = self.into_parts();
        Loan::Append(Piece::of_room(vector, room), 0)
    }

    fn from_loan(loan: Loan) -> Self {
        match loan {
            Loan::Append(piece, filled) => {
                let room = piece.len();
                // SAFETY: the operation has reported that the kernel wrote this many bytes at the beginning
                // of the room.
                unsafe { Self::filled(piece.into_vector(), room, filled) }
            }
            other => unreachable!("the room of a vector was lent and {other:?} came back"),
        }
    }
}

impl Lendable for Frozen {}
impl Payload for Frozen {}
lent! {
    Frozen,
    |frozen| Extent::one(&frozen.0),
    |frozen| Loan::Frozen(frozen.0),
    |Loan::Frozen(piece)| Frozen(piece)
}

impl Lendable for Vec<Frozen> {}
impl Payload for Vec<Frozen> {}
lent! {
    Vec<Frozen>,
    |frozen| Extent::many(frozen.iter().map(|frozen| &frozen.0)),
    |frozen| Loan::ManyFrozen(frozen.into_iter().map(|frozen| frozen.0).collect()),
    |Loan::ManyFrozen(pieces)| pieces.into_iter().map(Frozen).collect()
}

impl<B: IoBuf> Lendable for B {}
impl<B: IoBuf> Payload for B {}
impl<B: IoBufMut> PayloadMut for B {}
impl<B: IoBuf> AsLoan for B {
    fn extent(&self) -> Extent {
        Extent { pieces: 1, bytes: self.stable_len(), home: None }
    }

    fn into_loan(self) -> Loan {
        Loan::Owned(Piece::of_owner(self))
    }

    fn from_loan(loan: Loan) -> Self {
        match loan {
            Loan::Owned(piece) => piece.into_owner(),
            other => unreachable!("an owner's bytes were lent and {other:?} came back"),
        }
    }
}

impl Lendable for SharedBuffer {}
impl Payload for SharedBuffer {}
impl PayloadMut for SharedBuffer {}
lent! {
    SharedBuffer,
    |buffer| Extent::one(&buffer.0),
    |buffer| Loan::Shared(buffer.0),
    |Loan::Shared(piece)| SharedBuffer::new(piece)
}

impl Lendable for Vec<SharedBuffer> {}
impl Payload for Vec<SharedBuffer> {}
lent! {
    Vec<SharedBuffer>,
    |buffers| Extent::many(buffers.iter().map(|buffer| &buffer.0)),
    |buffers| Loan::ManyShared(buffers.into_iter().map(|buffer| buffer.0).collect()),
    |Loan::ManyShared(pieces)| pieces.into_iter().map(SharedBuffer::new).collect()
}

impl Lendable for Span {}
impl Payload for Span {}
lent! {
    Span,
    |span| Extent { pieces: 1, bytes: span.len(), home: None },
    |span| {
        let (piece, ticket) = span.into_parts();
        Loan::Span(piece, ticket)
    },
    |Loan::Span(piece, ticket)| Span::from_parts(piece, ticket)
}

impl Lendable for MappedSpan {}
impl Payload for MappedSpan {}
lent! {
    MappedSpan,
    |span| Extent { pieces: 1, bytes: span.len(), home: None },
    |span| {
        let (piece, ticket) = span.into_lent().into_parts();
        Loan::Span(piece, ticket)
    },
    |Loan::Span(piece, ticket)| MappedSpan::new(Span::from_parts(piece, ticket))
}

impl Lendable for Vec<Span> {}
impl Payload for Vec<Span> {}
lent! {
    Vec<Span>,
    |spans| {
        let bytes = spans.iter().map(|span| span.len()).sum();
        Extent { pieces: spans.len(), bytes, home: None }
    },
    |spans| {
        let (pieces, tickets) = spans.into_iter().map(Span::into_parts).unzip();
        Loan::ManyReceived(pieces, tickets)
    },
    |Loan::ManyReceived(pieces, tickets)| {
        let parts = pieces.into_iter().zip(tickets);
        parts.map(|(piece, ticket)| Span::from_parts(piece, ticket)).collect()
    }
}

impl Lendable for Lease {}
impl Payload for Lease {}
lent! {
    Lease,
    |lease| of_kernel(&lease.0),
    |lease| Loan::Kernel(lease.0),
    |Loan::Kernel(bytes)| Lease(bytes)
}

impl Lendable for LeaseMut {}
impl PayloadMut for LeaseMut {}
lent! {
    LeaseMut,
    |lease| of_kernel(&lease.0),
    |lease| Loan::KernelToFill(lease.0),
    |Loan::KernelToFill(bytes)| LeaseMut(bytes)
}

fn of_kernel(bytes: &Bytes) -> Extent {
    Extent { pieces: 1, bytes: bytes.len(), home: Some(bytes.ring()) }
}
