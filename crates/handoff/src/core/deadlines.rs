//! A driver's deadlines: what happens at a given time, in one list.
//!
//! A driver that waits for the kernel waits no longer than until the earliest deadline. A foreign loop
//! waits for the driver's descriptor instead; an alarm makes it readable at that time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::left::Lingering;
use crate::op::SocketShared;
use crate::ring::{Alarm, Token};

/// The kernel's clock has an end, and the kernel adds a wait to the present without an overflow check. A wait
/// that ends before its deadline begins again.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// What happens at a deadline.
pub(crate) enum Then {
    /// The token is told.
    Tell(Token),
    /// The driver waits for the socket, for no event but errors.
    Await(Rc<SocketShared>, Token),
    /// What made this cancellation, which the ring had no room for, makes it anew if it still is to end.
    Cancel(Token),
    /// A connection that nobody has is looked at.
    Look(Lingering),
    /// Loans that nobody waits for are looked at.
    Review,
    Wake(Waker),
}

/// A deadline in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    pub(super) due: Instant,
    /// Tells deadlines of the same time apart.
    pub(super) number: u64,
}

#[derive(Default)]
pub(crate) struct Deadlines {
    pub(super) list: RefCell<BTreeMap<Deadline, Then>>,
    pub(super) made: Cell<u64>,
    /// For foreign loops, once there is one.
    pub(super) alarm: RefCell<Option<Alarm>>,
}

impl Deadlines {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.borrow().len()
    }

    /// Time until the earliest deadline.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let list = self.list.borrow();
        let (earliest, _) = list.first_key_value()?;
        Some(earliest.due.saturating_duration_since(Instant::now()).min(LONGEST_WAIT))
    }

    /// Takes a deadline that has passed.
    pub(crate) fn take_expired(&self, now: Instant) -> Option<Then> {
        let mut list = self.list.borrow_mut();
        let earliest = list.first_entry()?;
        (earliest.key().due <= now).then(|| earliest.remove())
    }

    /// Removes a deadline nobody waits for. Returns its action, to be dropped where it may use the driver.
    #[must_use]
    pub(crate) fn forget(&self, deadline: Deadline) -> Option<Then> {
        self.list.borrow_mut().remove(&deadline)
    }

    /// Replaces the waker of a deadline; returns the old one. `None` if the deadline has passed.
    pub(crate) fn wake_instead(&self, deadline: Deadline, waker: Waker) -> Option<Then> {
        let mut list = self.list.borrow_mut();
        Some(std::mem::replace(list.get_mut(&deadline)?, Then::Wake(waker)))
    }

    /// Wakers of all deadlines.
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut list = self.list.borrow_mut();
        for (deadline, then) in std::mem::take(&mut *list) {
            match then {
                Then::Wake(waker) => wakers.push(waker),
                other => drop(list.insert(deadline, other)),
            }
        }
        wakers
    }

    /// All deadlines.
    pub(crate) fn take_all(&self) -> Vec<Then> {
        self.list.take().into_values().collect()
    }

    /// Sets the alarm to the earliest deadline, if somebody may wait for the alarm.
    pub(crate) fn set_alarm(&self) {
        if let Some(alarm) = &*self.alarm.borrow()
            && let Some((earliest, _)) = self.list.borrow().first_key_value()
        {
            alarm.set(earliest.due);
        }
    }

    /// Clears the alarm, which has gone off.
    pub(crate) fn clear_alarm(&self) {
        if let Some(alarm) = &*self.alarm.borrow() {
            alarm.clear();
        }
    }
}
