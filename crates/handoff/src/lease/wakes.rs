//! Who is woken when the driver has told all news.
//!
//! Contracts:
//! - while operations are told their results, while wakers are called, and while a driver ends, a waker is only noted;
//! - a waker that panics keeps no other waiter from being woken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::task::Waker;
use std::thread;

/// The queue of wakers to call.
#[derive(Default)]
pub(crate) struct Wakes {
    /// The foreign runtime that turns the driver.
    attention: RefCell<Option<Waker>>,
    /// Operations are being told their results; nobody is woken before that is done.
    telling: Cell<bool>,
    /// Wakers are called.
    waking: Cell<bool>,
    /// Who is woken then.
    queue: RefCell<VecDeque<Waker>>,
    /// Operations under way end, and wakers are called after that.
    ending: Cell<bool>,
}

impl Wakes {
    /// Operations under way end: from now on wakers wait for [`finish`](Self::finish).
    pub(super) fn begin_end(&self) {
        self.ending.set(true);
    }

    /// Ends the ending: operations that were under way are over.
    pub(crate) fn finish(&self) {
        self.ending.set(false);
        self.wake_all();
    }

    /// Tells a foreign runtime that there is something to submit.
    #[inline]
    pub(crate) fn attend(&self) {
        if self.attention.borrow().is_some() {
            self.call_attention();
        }
    }

    #[cold]
    fn call_attention(&self) {
        let waker = self.attention.take();
        self.wake(waker);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn set_attention(&self, waker: &Waker) {
        let before = self.attention.borrow_mut().replace(waker.clone());
        drop(before);
    }

    /// Wakes a waiter: at once, or when all news is told and earlier waiters are woken.
    #[inline]
    pub(crate) fn wake(&self, waker: Option<Waker>) {
        self.wake_each([waker]);
    }

    /// The same for several; if one panics, the others are woken all the same.
    #[inline(always)]
    pub(crate) fn wake_each<const N: usize>(&self, wakers: [Option<Waker>; N]) {
        if wakers.iter().all(Option::is_none) {
            return;
        }
        self.wake_many(wakers.into_iter().flatten());
    }

    /// The same for any number.
    #[inline]
    pub(crate) fn wake_many(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.queue.borrow_mut().extend(wakers);
        if !self.telling.get() && !self.waking.get() && !self.ending.get() {
            self.wake_all();
        }
    }

    /// Drops a buffer that nobody wants, and wakes those who waited for it. Foreign code that this runs, such
    /// as an owner's drop or the waker of a pool, is called with the wakers.
    pub(crate) fn let_go_and_wake(
        &self,
        let_go: impl FnOnce(&mut dyn FnMut(Waker)),
        wakers: impl IntoIterator<Item = Waker>,
    ) {
        let before = self.queue.borrow().len();
        let_go(&mut |waker| self.queue.borrow_mut().push_back(waker));
        self.queue.borrow_mut().extend(wakers);
        // Earlier wakers wait for a turn.
        if self.queue.borrow().len() > before {
            self.wake_many([]);
        }
    }

    /// Wakers of this call wait for the next turn: the caller holds something that a panic must not take
    /// away.
    pub(crate) fn wake_later<T>(&self, act: impl FnOnce() -> T) -> T {
        let waking = self.waking();
        let done = act();
        drop(waking);
        if self.has_wakes() {
            self.attend();
        }
        done
    }

    /// Wakers of this call are called at its end: a panic of theirs must not leave it half done.
    pub(crate) fn wake_behind(&self, act: impl FnOnce()) {
        let waking = self.waking();
        act();
        drop(waking);
        self.wake_many([]);
    }

    /// While it lives, others only note whom to wake.
    fn waking(&self) -> Waking<'_> {
        Waking { wakes: self, before: self.waking.replace(true) }
    }

    /// Defers wakers while the returned guard lives.
    pub(crate) fn telling(&self) -> Telling<'_> {
        self.telling.set(true);
        Telling(self)
    }

    pub(crate) fn is_telling(&self) -> bool {
        self.telling.get()
    }

    /// Whether a waker is being called.
    pub(crate) fn is_waking(&self) -> bool {
        self.waking.get()
    }

    pub(crate) fn has_wakes(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Calls these with the others.
    pub(crate) fn wake_with_others(&self, wakers: impl Iterator<Item = Waker>) {
        self.queue.borrow_mut().extend(wakers);
    }

    /// Calls all deferred wakers. If one panics, the others are woken all the same.
    #[inline]
    pub(crate) fn wake_all(&self) {
        if self.has_wakes() {
            self.wake_kept();
        }
    }

    #[inline(never)]
    fn wake_kept(&self) {
        let waking = self.waking();
        let mut panicked = None;
        loop {
            let all = AssertUnwindSafe(|| {
                while let Some(waker) = self.next_to_wake() {
                    waker.wake();
                }
            });
            match panic::catch_unwind(all) {
                Ok(()) => break,
                // The first of several panics is passed on.
                Err(panic) => panicked = panicked.or(Some(panic)),
            }
        }
        drop(waking);
        // Another panic would end the process.
        if let (Some(panic), false) = (panicked, thread::panicking()) {
            panic::resume_unwind(panic);
        }
    }

    fn next_to_wake(&self) -> Option<Waker> {
        self.queue.borrow_mut().pop_front()
    }
}

/// Also ends when what runs meanwhile panics.
struct Waking<'a> {
    wakes: &'a Wakes,
    before: bool,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.wakes.waking.set(self.before);
    }
}

/// While it lives, wakers are deferred.
pub(crate) struct Telling<'a>(&'a Wakes);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.telling.set(false);
    }
}
