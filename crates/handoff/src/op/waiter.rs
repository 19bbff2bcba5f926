//! Who waits for something of a record, by a handle.

use std::task::Waker;

pub(crate) enum Waiter {
    /// The handle is gone, or has what it waited for.
    Gone,
    /// The handle looks by itself whether it is there.
    Polls,
    /// It is to be woken.
    Waits(Waker),
}

impl Waiter {
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Waits(_))
    }

    /// Gives the waker of before, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        std::mem::replace(self, Self::Waits(waker)).waker()
    }

    /// To be woken; the handle is still there.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        if self.waits() { std::mem::replace(self, Self::Polls).waker() } else { None }
    }

    /// The handle goes. Gives its waker, to be dropped where it may use the driver.
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
