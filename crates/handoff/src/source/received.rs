//! A received span: bytes in a chunk of a receive pool, lent to whoever holds the span.
//!
//! The kernel does not touch a chunk between handing it out and getting it back, so the bytes are
//! ordinary memory. The chunk goes back to its pool when the last part of the span is dropped.

use std::ops::Deref;
use std::rc::Rc;

use super::pool::PoolShared;
use crate::lease::{Extent, Lend, Loan, LoanedPiece, Piece, Sealed};

/// Gives a chunk back to its pool when the last copy is dropped.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Ticket(#[allow(dead_code, reason = "held for its drop")] Rc<Held>);

struct Held {
    pool: Rc<PoolShared>,
    /// `None` for an empty datagram, for which the kernel takes no chunk.
    chunk: Option<u16>,
}

impl Ticket {
    pub(crate) fn new(pool: Rc<PoolShared>, chunk: Option<u16>) -> Self {
        Self(Rc::new(Held { pool, chunk }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk {
            PoolShared::give_back(&self.pool, chunk);
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("chunk", &self.chunk).finish_non_exhaustive()
    }
}

/// Bytes received into a pool's chunk. Dropping all parts of it gives the chunk back; holding too
/// many makes receivers of the pool wait.
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
        Self { piece: self.piece.split_to(at), ticket: self.ticket.clone() }
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.piece.bytes()
    }
}

impl Sealed for Received {}
impl Lend for Received {
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
