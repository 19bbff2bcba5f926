//! Who takes the bytes that come on a socket.
//!
//! Contracts:
//! - one receiver at a time takes bytes, so that each gets what follows the one before;
//! - bytes of a stream that a dropped receive into a buffer took are not skipped silently: nobody receives
//!   after it. Bytes of a dropped [`Receiver`](crate::Receiver) are lost, as its documentation says.

use std::cell::Cell;
use std::task::{Context, Poll, ready};

use super::waiter::{Waiters, Waiting};
use crate::error::{Error, Result};
use crate::ring::Key;

#[derive(Clone, Copy, Default)]
enum Receiver {
    #[default]
    Nobody,
    Somebody,
    /// A dropped receiver whose request the kernel has not finished. The next receive begins then.
    Leaving {
        next: Option<Key>,
    },
}

#[derive(Default)]
pub(crate) struct Reception {
    receiver: Cell<Receiver>,
    /// Bytes of the stream that are lost.
    lost: Cell<usize>,
    /// The task to wake when a dropped receiver is over.
    pub(crate) behind: Waiters,
}

impl Reception {
    /// Whether something can be received.
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.lost.get() {
            0 => Ok(()),
            bytes => Err(Error::ReceivedLost { bytes }),
        }
    }

    /// Whether somebody receives, or is about to.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.receiver.get(), Receiver::Somebody | Receiver::Leaving { next: Some(_) })
    }

    /// Whether the kernel has the request of a dropped receiver.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.receiver.get(), Receiver::Leaving { .. })
    }

    /// Whether another receive may be begun; it may have to wait for a dropped one.
    pub(crate) fn check_free(&self) -> Result<()> {
        match self.receiver.get() {
            Receiver::Nobody | Receiver::Leaving { next: None } => Ok(()),
            Receiver::Somebody | Receiver::Leaving { next: Some(_) } => Err(Error::Invalid(
                "the socket has a receiver, and two would each get parts of what comes: drop that first",
            )),
        }
    }

    /// Ready when a call may take the next bytes: not while the kernel has a dropped request, which may
    /// have taken bytes before them.
    pub(crate) fn poll_free(
        &self,
        waiting: &mut Waiting,
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        self.check_free()?;
        if let Receiver::Leaving { .. } = self.receiver.get() {
            drop(self.behind.wait(waiting, context.waker().clone()));
            return Poll::Pending;
        }
        Poll::Ready(self.check_whole())
    }

    /// As [`take`](Self::take), once the kernel is through with a dropped request.
    pub(crate) fn poll_take(
        &self,
        waiting: &mut Waiting,
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        ready!(self.poll_free(waiting, context))?;
        Poll::Ready(self.take())
    }

    /// Begins to receive, until [`end`](Self::end).
    pub(crate) fn take(&self) -> Result<()> {
        self.check_free()?;
        self.check_whole()?;
        if let Receiver::Leaving { .. } = self.receiver.get() {
            return Err(Error::Invalid(
                "a receive of the socket was dropped a moment ago, and the kernel has its buffer: turn the \
                 driver first",
            ));
        }
        self.receiver.set(Receiver::Somebody);
        Ok(())
    }

    /// A receive begins, which [`check_free`](Self::check_free) has allowed; returns whether at once.
    pub(crate) fn enter(&self, key: Key) -> bool {
        let at_once = matches!(self.receiver.get(), Receiver::Nobody);
        self.receiver.set(match at_once {
            true => Receiver::Somebody,
            false => Receiver::Leaving { next: Some(key) },
        });
        at_once
    }

    /// Notes that the receiver was dropped while the kernel has its request.
    pub(crate) fn start_leaving(&self) {
        if let Receiver::Somebody = self.receiver.get() {
            self.receiver.set(Receiver::Leaving { next: None });
        }
    }

    /// A receive is over; returns the one that waited for it.
    pub(crate) fn leave(&self, key: Key) -> Option<Key> {
        let (receiver, next) = match self.receiver.get() {
            Receiver::Leaving { next: Some(next) } if next == key => {
                (Receiver::Leaving { next: None }, None)
            }
            Receiver::Leaving { next: Some(next) } => (Receiver::Somebody, Some(next)),
            _ => (Receiver::Nobody, None),
        };
        self.receiver.set(receiver);
        next
    }

    /// The receiver that [`take`](Self::take) let in goes.
    pub(crate) fn end(&self) {
        self.receiver.set(Receiver::Nobody);
    }

    /// So many bytes of the stream were received and are lost.
    pub(crate) fn lose(&self, bytes: usize) {
        self.lost.update(|lost| lost + bytes);
    }
}
