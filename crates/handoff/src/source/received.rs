//! A received span: bytes in a chunk of a receive pool or of an rx queue's area, lent to whoever holds
//! the span.
//!
//! Neither kernel nor NIC touch the bytes between handing them out and getting them back, so they are
//! ordinary memory. They go back where they came from when the last part of the span is dropped.

use std::ops::Deref;
use std::rc::Rc;

use super::pool::PoolShared;
use super::rx_queue::RxShared;
use crate::lease::{Extent, Lend, Lendable, Loan, LoanedPiece, Piece, Sealed};

/// Gives a chunk back to where it came from when the last share of it is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Ticket(Share);

/// Most spans are never split, and need no count of their own.
enum Share {
    Sole(Origin),
    Part(Rc<Origin>),
}

enum Origin {
    /// An empty datagram, for which the kernel takes no chunk.
    Nowhere,
    Pool(Rc<PoolShared>, u16),
    /// The rx queue, and where in its area the span began.
    Queue(Rc<RxShared>, usize),
}

impl Ticket {
    /// For a span that holds no chunk.
    pub(crate) fn of_nothing() -> Self {
        Self(Share::Sole(Origin::Nowhere))
    }

    pub(crate) fn of_pool(pool: Rc<PoolShared>, chunk: u16) -> Self {
        Self(Share::Sole(Origin::Pool(pool, chunk)))
    }

    pub(crate) fn of_queue(queue: Rc<RxShared>, offset: usize) -> Self {
        Self(Share::Sole(Origin::Queue(queue, offset)))
    }

    /// A second ticket for the same chunk.
    fn share(&mut self) -> Self {
        let origin = match std::mem::replace(&mut self.0, Share::Sole(Origin::Nowhere)) {
            Share::Sole(origin) => Rc::new(origin),
            Share::Part(origin) => origin,
        };
        self.0 = Share::Part(Rc::clone(&origin));
        Self(Share::Part(origin))
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        match self {
            Self::Nowhere => {}
            Self::Pool(pool, chunk) => PoolShared::give_back(pool, *chunk),
            Self::Queue(queue, offset) => RxShared::give_back(queue, *offset),
        }
    }
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let origin = match self {
            Self::Sole(origin) => origin,
            Self::Part(origin) => &**origin,
        };
        match origin {
            Origin::Nowhere => f.write_str("Nowhere"),
            Origin::Pool(_, chunk) => write!(f, "Pool({chunk})"),
            Origin::Queue(_, offset) => write!(f, "Queue({offset})"),
        }
    }
}

/// Received bytes, in a chunk of a [`Pool`](crate::Pool) or of an [`RxQueue`](crate::RxQueue).
/// Dropping all parts of it gives the chunk back. Holding too many makes receivers of the pool wait,
/// and peers of the rx queue send again.
#[derive(Debug)]
pub struct Received {
    piece: Piece,
    ticket: Ticket,
}

impl Received {
    pub(crate) fn new(piece: Piece, ticket: Ticket) -> Self {
        Self { piece, ticket }
    }

    /// Cuts the first `at` bytes off into a span of their own, which shares the chunk.
    ///
    /// # Panics
    ///
    /// When `at` is past the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        Self { piece: self.piece.split_to(at), ticket: self.ticket.share() }
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.piece.bytes()
    }
}

impl Sealed for Received {}
impl Lend for Received {}
impl Lendable for Received {
    fn extent(&self) -> Extent {
        Extent::one(&self.piece)
    }

    fn into_loan(self) -> Loan {
        Loan::Received(LoanedPiece(self.piece), self.ticket)
    }

    fn from_loan(loan: Loan) -> Self {
        match loan {
            Loan::Received(piece, ticket) => Self { piece: piece.0, ticket },
            other => unreachable!("a received span was lent and {other:?} came back"),
        }
    }
}
