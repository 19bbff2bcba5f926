//! Taking turns: several pieces are worked on at once, and the parts that need an order keep it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Hands out numbers, and lets one number after the other through.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    drawn: Cell<u64>,
    open_to: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl Turnstile {
    /// Draws the next number.
    pub(crate) fn draw(&self) -> u64 {
        self.drawn.replace(self.drawn.get() + 1)
    }

    /// Waits for the turn of `number`, which lasts until [`pass`](Self::pass).
    pub(crate) async fn turn(&self, number: u64) {
        poll_fn(|context| {
            if self.open_to.get() == number {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().insert(number, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends the current turn, and begins the next.
    pub(crate) fn pass(&self) {
        let next = self.open_to.get() + 1;
        self.open_to.set(next);
        if let Some(waker) = self.waiting.borrow_mut().remove(&next) {
            waker.wake();
        }
    }
}
