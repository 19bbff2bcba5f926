//! The budget of the sends that nobody waits for, and each peer's share.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use socket2::SockRef;

use super::left::Left;
use crate::op::{Account, Lender, SocketShared};

/// The most, unless the builder says otherwise.
pub(crate) const MOST: usize = 4096;

/// So many shares make the budget.
const SHARES: usize = 4;

/// What became of sends that nobody waited for: their handles, or the group of their buffers, were dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = handoff::Driver::new()?;
/// let stats = driver.loan_stats();
/// println!("{} buffers are on loan, {} for long", stats.unclaimed, stats.overdue);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoanStats {
    /// How many of them are under way or on loan now.
    pub unclaimed: usize,
    /// How many were on loan for longer than [`DriverBuilder::linger`](crate::DriverBuilder::linger), on datagram sockets
    /// and on streams that somebody held: nothing ends them but the kernel, or [`Socket::abort`](crate::Socket::abort).
    pub overdue: u64,
    /// Streams that were reset because [`DriverBuilder::unclaimed_loans`](crate::DriverBuilder::unclaimed_loans) was used
    /// up, or because their peers took next to nothing.
    pub reset: u64,
}

/// The budget.
pub(crate) struct Budget {
    most: Cell<usize>,
    /// Those that count in it.
    pub(super) out: Cell<usize>,
    /// The same, with those of streams that were reset and come back soon.
    pub(super) records: Cell<usize>,
    accounts: RefCell<HashMap<IpAddr, Weak<Account>>>,
    /// Streams that nobody holds, which have sends under way or buffers on loan; first those that were left first.
    pub(super) left: RefCell<VecDeque<Left>>,
    /// More may be out than the budget or a share has.
    pub(super) is_over: Cell<bool>,
    /// A review is due at some time.
    pub(super) is_reviewed: Cell<bool>,
    pub(super) overdue: Cell<u64>,
    pub(super) reset: Cell<u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            most: Cell::new(MOST),
            out: Cell::new(0),
            records: Cell::new(0),
            accounts: RefCell::default(),
            left: RefCell::default(),
            is_over: Cell::new(false),
            is_reviewed: Cell::new(false),
            overdue: Cell::new(0),
            reset: Cell::new(0),
        }
    }
}

impl Budget {
    pub(crate) fn set_most(&self, most: usize) {
        self.most.set(most);
    }

    /// The share of a peer.
    pub(crate) fn share(&self) -> usize {
        (self.most.get() / SHARES).max(1)
    }

    pub(super) fn is_used_up(&self, lender: &Lender) -> bool {
        self.out.get() > self.most.get()
            || lender.account.get().is_some_and(|account| account.0.get() > self.share())
    }

    /// Whether a socket must not lend: its peer has its share, or the budget is used up.
    #[inline]
    pub(crate) fn lends_no_more(&self, lender: &Lender) -> bool {
        self.out.get() > 0 && self.has_no_room(lender)
    }

    #[cold]
    fn has_no_room(&self, lender: &Lender) -> bool {
        self.out.get() >= self.most.get()
            || lender.account.get().is_some_and(|account| account.0.get() >= self.share())
    }

    pub(crate) fn stats(&self) -> LoanStats {
        LoanStats {
            unclaimed: self.records.get(),
            overdue: self.overdue.get(),
            reset: self.reset.get(),
        }
    }

    /// The account of a socket's peer.
    pub(super) fn account_of(&self, socket: &SocketShared) -> Rc<Account> {
        let address = SockRef::from(&socket.endpoint.fd).peer_addr().ok();
        let peer = address.filter(|_| socket.stream).and_then(|address| address.as_socket());
        let Some(peer) = peer.map(|peer| peer.ip().to_canonical()) else {
            return Rc::default();
        };
        let mut accounts = self.accounts.borrow_mut();
        if let Some(account) = accounts.get(&peer).and_then(Weak::upgrade) {
            return account;
        }
        if accounts.len() == accounts.capacity() {
            accounts.retain(|_, account| account.strong_count() > 0);
            // Not again for as many.
            let len = accounts.len();
            accounts.reserve(len + 1);
        }
        let account = Rc::default();
        accounts.insert(peer, Rc::downgrade(&account));
        account
    }
}
