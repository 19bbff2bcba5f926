//! Streams that nobody holds: their sockets while requests have them, or what their loans keep.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

use handoff_sys::tcp::bytes_acked;

use crate::op::{Kept, Lender, SocketShared};
use crate::ring::Parked;

/// How long a peer may take next to nothing, unless the builder says otherwise.
pub(crate) const LINGER: Duration = Duration::from_secs(60);

/// A stream that nobody holds.
#[derive(Clone)]
pub(crate) struct Left {
    /// While a request has it.
    socket: Weak<SocketShared>,
    pub(super) lender: Weak<Lender>,
}

/// A connection, and how much of it the peer had taken when it was looked at, that long ago.
pub(crate) struct Lingering {
    pub(super) left: Left,
    pub(super) acked: u64,
    pub(super) time: Duration,
}

impl Left {
    pub(super) fn of(socket: &Rc<SocketShared>) -> Self {
        Self { socket: Rc::downgrade(socket), lender: Rc::downgrade(&socket.lender) }
    }

    pub(super) fn is_left(&self) -> bool {
        self.socket.upgrade().is_none_or(|socket| socket.is_left())
    }

    /// Whether the kernel may have bytes that the peer has not taken, or gets more.
    pub(super) fn has_undelivered(&self) -> bool {
        match self.socket.upgrade() {
            Some(socket) => socket.has_undelivered(),
            None => self.lender.upgrade().is_some_and(|lender| lender.lent_by_ring.get() > 0),
        }
    }

    /// How many bytes its peer has taken, by the count of TCP, or the kernel has of a Unix socket's, which is bounded.
    /// `None` if the kernel does not tell, or it has no descriptor.
    pub(super) fn taken(&self) -> Option<io::Result<u64>> {
        if let Some(socket) = self.socket.upgrade().filter(|socket| socket.unix) {
            return Some(Ok(socket.lender.copied.get()));
        }
        self.with_descriptor(|fd| bytes_acked(fd.as_fd()))
    }

    pub(super) fn is_cut(&self) -> bool {
        match self.socket.upgrade() {
            Some(socket) => socket.is_cut(),
            None => self.lender.upgrade().is_some_and(|lender| lender.is_cut.get()),
        }
    }

    /// Calls with its descriptor, if it has one.
    pub(super) fn with_descriptor<T>(&self, with: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        if let Some(socket) = self.socket.upgrade() {
            return Some(with(&socket.endpoint.fd));
        }
        self.lender.upgrade()?.kept(|kept| match kept {
            Kept::Descriptor(fd) => Some(with(fd)),
            Kept::Parked(..) => None,
        })?
    }

    /// Calls with its place in the ring's table, if it has one instead; with the bytes that will be acknowledged at the
    /// end.
    pub(super) fn with_parked<T>(&self, with: impl FnOnce(&Parked, u64) -> T) -> Option<T> {
        self.lender.upgrade()?.kept(|kept| match kept {
            Kept::Parked(parked, end) => Some(with(parked, *end)),
            Kept::Descriptor(_) => None,
        })?
    }
}
