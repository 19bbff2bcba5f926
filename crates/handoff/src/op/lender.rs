//! What the loans of a socket need of it, also when the socket is gone: where they are counted, and a way to the
//! connection.
//!
//! Contracts:
//! - a request needs its socket, a loan only its lender. So the descriptor closes when no handle and no request has the
//!   socket, whatever the peer has taken by then;
//! - a stream with loans of the ring can be reset until the last of them is back: it stays open in the ring's table of
//!   files, or by a descriptor where there is no such table. It closes after that;
//! - `MSG_ZEROCOPY` reports on the socket itself, so its loans need the socket until they are back.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::chooser::Chooser;
use crate::outcome::Tally;
use crate::ring::{Endpoint, Parked};

/// Everything sent on a socket so far, and what happened to it.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let stats = socket.send_stats();
/// println!("{} messages, {} bytes copied", stats.messages, stats.returned.copied);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Messages that the kernel took whole.
    pub messages: u64,
    /// Bytes whose buffers are back, by what happened to them.
    pub returned: Tally,
    /// Return signals: notifications of the ring, and sends that the error queue reported.
    pub notifications: u64,
}

/// The part of a socket that its loans keep.
pub(crate) struct Lender {
    pub(crate) stream: bool,
    pub(crate) chooser: RefCell<Chooser>,
    pub(crate) stats: Cell<SendStats>,
    /// Bytes that the copy engine has sent.
    pub(crate) copied: Cell<u64>,
    /// Notifications of the ring still to come.
    pub(crate) lent_by_ring: Cell<u32>,
    /// Its sends that nobody waits for, as far as they count in the driver's budget.
    pub(crate) unclaimed: Cell<u32>,
    /// Where those of its peer are counted together.
    pub(crate) account: OnceCell<Rc<Account>>,
    /// It is a stream that nobody holds.
    pub(crate) is_left: Cell<bool>,
    /// It was reset for its peer, or for the budget.
    pub(crate) is_reset: Cell<bool>,
    /// It was reset because the budget was used up, so its loans count no more.
    pub(crate) given_up: Cell<bool>,
    /// A send ended midway, and the socket is gone.
    pub(crate) is_cut: Cell<bool>,
    kept: RefCell<Option<Kept>>,
}

/// The sends that nobody waits for, of one peer.
#[derive(Debug, Default)]
pub(crate) struct Account(pub(crate) Cell<usize>);

/// A stream whose socket is gone, until its loans are back.
pub(crate) enum Kept {
    /// The ring has it. Its peer will have acknowledged so many bytes when nothing is left.
    Parked(Parked, u64),
    Descriptor(OwnedFd),
}

impl Lender {
    pub(crate) fn new(chooser: Chooser, stream: bool) -> Self {
        Self {
            stream,
            chooser: RefCell::new(chooser),
            stats: Cell::default(),
            copied: Cell::new(0),
            lent_by_ring: Cell::new(0),
            unclaimed: Cell::new(0),
            account: OnceCell::new(),
            is_left: Cell::new(false),
            is_reset: Cell::new(false),
            given_up: Cell::new(false),
            is_cut: Cell::new(false),
            kept: RefCell::new(None),
        }
    }

    #[inline]
    pub(crate) fn count(&self, change: impl FnOnce(&mut SendStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// The socket goes: a stream stays open for its loans, unless the driver goes too.
    #[cold]
    pub(crate) fn keep(&self, endpoint: &Endpoint) {
        if endpoint.is_closing() {
            return;
        }
        let kept = match endpoint.park() {
            Some((parked, end)) => Some(Kept::Parked(parked, end)),
            // If there are no more descriptors either, the kernel's own limits apply.
            None => endpoint
                .fd
                .try_clone()
                .inspect_err(|error| tracing::warn!(%error, "a connection is left to the kernel"))
                .ok()
                .map(Kept::Descriptor),
        };
        self.kept.replace(kept);
    }

    /// Takes back a loan of the ring.
    #[inline(always)]
    pub(crate) fn return_one(&self) {
        self.set_lent(self.lent_by_ring.get() - 1);
    }

    /// Sets how many loans of the ring are out. With the last one a stream whose socket is gone closes.
    #[inline(always)]
    pub(crate) fn set_lent(&self, lent: u32) {
        self.lent_by_ring.set(lent);
        if lent == 0 && self.kept.borrow().is_some() {
            self.close();
        }
    }

    /// A stream whose socket is gone closes.
    #[cold]
    pub(crate) fn close(&self) {
        let kept = self.kept.take();
        drop(kept);
    }

    /// What there is of a stream whose socket is gone.
    pub(crate) fn kept<T>(&self, with: impl FnOnce(&Kept) -> T) -> Option<T> {
        self.kept.borrow().as_ref().map(with)
    }
}
