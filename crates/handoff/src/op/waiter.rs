//! A waiter for something of a record, by a handle; and waiters for the same thing.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::Waker;

pub(crate) enum Waiter {
    /// The handle is gone, or has its result.
    Gone,
    /// The handle polls by itself.
    Polls,
    /// It must be woken.
    Waits(Waker),
}

impl Waiter {
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Waits(_))
    }

    /// Returns the old waker, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        std::mem::replace(self, Self::Waits(waker)).waker()
    }

    /// The waker to call; the handle stays.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        if self.waits() { std::mem::replace(self, Self::Polls).waker() } else { None }
    }

    /// The handle goes. Returns its waker, to be dropped where it may use the driver.
    #[must_use]
    pub(crate) fn leave(&mut self) -> Option<Waker> {
        std::mem::replace(self, Self::Gone).waker()
    }

    fn waker(self) -> Option<Waker> {
        match self {
            Self::Waits(waker) => Some(waker),
            Self::Gone | Self::Polls => None,
        }
    }
}

/// Tasks that wait for the same, each while its [`Waiting`] is there.
#[derive(Default)]
pub(crate) struct Waiters(RefCell<Vec<Weak<RefCell<Option<Waker>>>>>);

/// A place among [`Waiters`], empty when it was woken.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Option<Rc<RefCell<Option<Waker>>>>);

impl Waiters {
    /// Has a task woken. Gives the waker of before, to be dropped where it may use the driver.
    #[must_use]
    pub(crate) fn wait(&self, waiting: &mut Waiting, waker: Waker) -> Option<Waker> {
        let place = waiting.0.get_or_insert_default();
        let before = place.replace(Some(waker));
        if before.is_none() {
            let mut all = self.0.borrow_mut();
            all.retain(|other| other.strong_count() > 0);
            all.push(Rc::downgrade(place));
        }
        before
    }

    /// All who wait, to be woken.
    pub(crate) fn take(&self) -> Vec<Waker> {
        let all = self.0.take();
        all.iter().filter_map(Weak::upgrade).filter_map(|place| place.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_no_more_keeps_no_place() {
        let waiters = Waiters::default();
        let mut waiting = Waiting::default();
        let waker = Waker::noop();
        for _ in 0..100 {
            let mut other = Waiting::default();
            assert!(waiters.wait(&mut other, waker.clone()).is_none());
        }
        assert!(waiters.wait(&mut waiting, waker.clone()).is_none());
        assert!(waiters.wait(&mut waiting, waker.clone()).is_some());
        assert_eq!(waiters.0.borrow().len(), 1);
        assert_eq!(waiters.take().len(), 1);
        // And again.
        assert!(waiters.wait(&mut waiting, waker.clone()).is_none());
        assert_eq!((waiters.take().len(), waiters.take().len()), (1, 0));
    }
}
