//! Waiting for a change, without missing one meanwhile.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A count of changes. Call [`Changes::seen`] before you look at what may change.
#[derive(Default)]
pub(super) struct Changes {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Changes {
    pub(super) fn seen(&self) -> u64 {
        self.count.get()
    }

    pub(super) fn tell(&self) {
        self.count.set(self.count.get() + 1);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits until there is a change beyond those `seen`.
    pub(super) async fn after(&self, seen: u64) {
        poll_fn(|context| {
            if self.count.get() != seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
