//! What is to happen at a time: one list for all of a driver that goes by the clock.
//!
//! A driver that waits for the kernel waits no longer than to the earliest deadline. A loop of somebody
//! else's waits for the driver's descriptor instead, which an alarm makes readable then.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Core;
use crate::op::SocketShared;
use crate::ring::{Alarm, Token};

/// What is to happen then.
pub(crate) enum Then {
    /// The token is told.
    Tell(Token),
    /// The socket is waited for, for no event but errors.
    Await(Rc<SocketShared>, Token),
    Wake(Waker),
}

/// One of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    due: Instant,
    /// Tells it from others of the same time.
    number: u64,
}

#[derive(Default)]
pub(crate) struct Deadlines {
    list: RefCell<BTreeMap<Deadline, Then>>,
    made: Cell<u64>,
    /// For loops of others, once there is one.
    alarm: RefCell<Option<Alarm>>,
}

impl Deadlines {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// How long it is to the earliest.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let list = self.list.borrow();
        let (earliest, _) = list.first_key_value()?;
        Some(earliest.due.saturating_duration_since(Instant::now()))
    }

    /// Takes one that is due by now.
    pub(crate) fn take_due(&self, now: Instant) -> Option<Then> {
        let mut list = self.list.borrow_mut();
        let earliest = list.first_entry()?;
        (earliest.key().due <= now).then(|| earliest.remove())
    }

    /// Nobody waits for it any more. Gives what was to happen, to be dropped where it may use the driver.
    #[must_use]
    pub(crate) fn forget(&self, deadline: Deadline) -> Option<Then> {
        self.list.borrow_mut().remove(&deadline)
    }

    /// Another is to be woken then; gives the one of before. `None` where it is over.
    pub(crate) fn wake_instead(&self, deadline: Deadline, waker: &Waker) -> Option<Then> {
        let mut list = self.list.borrow_mut();
        Some(std::mem::replace(list.get_mut(&deadline)?, Then::Wake(waker.clone())))
    }

    /// Of all who wait.
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

    /// All that there are.
    pub(crate) fn take_all(&self) -> Vec<Then> {
        self.list.take().into_values().collect()
    }

    /// Has the alarm go off at the earliest, where somebody may wait for it.
    pub(crate) fn set_alarm(&self) {
        if let Some(alarm) = &*self.alarm.borrow()
            && let Some((earliest, _)) = self.list.borrow().first_key_value()
        {
            alarm.set(earliest.due);
        }
    }

    /// It has gone off.
    pub(crate) fn alarm_is_over(&self) {
        if let Some(alarm) = &*self.alarm.borrow() {
            alarm.is_over();
        }
    }
}

impl Core {
    /// Has something happen at a time.
    pub(crate) fn at(&self, due: Instant, then: Then) -> Deadline {
        let number = self.deadlines.made.replace(self.deadlines.made.get() + 1);
        let deadline = Deadline { due, number };
        self.deadlines.list.borrow_mut().insert(deadline, then);
        self.deadlines.set_alarm();
        self.due.start_soon();
        deadline
    }

    /// A loop of somebody else's is about to wait for the driver's descriptor.
    pub(crate) fn watch_deadlines(&self) {
        if self.deadlines.alarm.borrow().is_some() {
            return;
        }
        let alarm = Alarm::new().and_then(|alarm| {
            self.watch_alarm(alarm.fd())?;
            Ok(alarm)
        });
        match alarm {
            Ok(alarm) => {
                self.deadlines.alarm.replace(Some(alarm));
                self.deadlines.set_alarm();
            }
            Err(error) => {
                tracing::error!(%error, "foreign loops are not told of this driver's deadlines")
            }
        }
    }

    /// The ring watches it no longer by itself.
    pub(crate) fn watch_alarm_again(&self) {
        if let Some(alarm) = &*self.deadlines.alarm.borrow()
            && let Err(error) = self.watch_alarm(alarm.fd())
        {
            tracing::error!(%error, "foreign loops are not told of this driver's deadlines");
        }
    }
}
