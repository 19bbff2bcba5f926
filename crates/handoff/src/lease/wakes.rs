//! What starts with the driver's next submission, and who is woken when the driver has told all news.
//!
//! A drop, anywhere, gives back what was lent to us; it only makes a note here then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::task::Waker;
use std::thread;

use handoff_sys::process::Process;

use super::getbuf_device::GetBufShared;
use crate::ring::Key;

/// Something to start with the next submission.
pub(crate) enum Mark {
    /// A receive.
    Receive(Key),
    /// Publishes what was given back to the driver's rx queue with this number.
    Refill(u32),
}

/// The result of a request of a block device.
#[derive(Clone, Copy)]
pub(crate) struct TagResult {
    /// The driver's queue with this number.
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
}

#[derive(Default)]
pub(crate) struct Due {
    /// Whose driver it is.
    made_by: Process,
    /// Something was noted to start since the driver last looked.
    to_start: Cell<bool>,
    marks: RefCell<Vec<Mark>>,
    spare_marks: RefCell<Vec<Mark>>,
    /// Slots with a buffer of the kernel that nobody needs any more, and the devices that clear them.
    pub(crate) to_clear: RefCell<Vec<(Rc<GetBufShared>, u16)>>,
    /// Results of block requests whose memory nobody uses any more.
    pub(crate) answers: RefCell<Vec<TagResult>>,
    /// The foreign runtime that turns the driver.
    attention: RefCell<Option<Waker>>,
    /// Operations are being told their results; nobody is woken before that is done.
    telling: Cell<bool>,
    /// Wakers are called.
    waking: Cell<bool>,
    /// Who is woken then.
    wakes: RefCell<VecDeque<Waker>>,
    /// The last [`Driver`](crate::Driver) is gone.
    gone: Cell<bool>,
    /// Operations under way end, and wakers are called after that.
    ending: Cell<bool>,
    /// No handle is left either, and the ring gives everything back.
    closed: Cell<bool>,
}

impl Due {
    /// Whether something waits to start.
    pub(crate) fn has_marks(&self) -> bool {
        !self.marks.borrow().is_empty()
            || !self.to_clear.borrow().is_empty()
            || !self.answers.borrow().is_empty()
    }

    /// Makes the driver look at its next turn for something to start.
    pub(crate) fn start_soon(&self) {
        self.look_again();
        self.attend();
    }

    /// The same for what the driver knows and could not start.
    pub(crate) fn look_again(&self) {
        self.to_start.set(true);
    }

    /// Whether there may be something to start that the driver has not looked at.
    #[inline]
    pub(crate) fn take_to_start(&self) -> bool {
        self.to_start.replace(false)
    }

    /// Whether the driver is of this process. A child has a copy of everything here, and starts none of it.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.made_by.is_this()
    }

    /// Whether anybody starts what is marked.
    fn takes_marks(&self) -> bool {
        !self.closed.get() && self.is_here()
    }

    fn mark(&self, mark: Mark) {
        if self.takes_marks() {
            self.marks.borrow_mut().push(mark);
            self.start_soon();
        }
    }

    /// Marks a receive to start with the next submission.
    pub(crate) fn mark_receive(&self, key: Key) {
        self.mark(Mark::Receive(key));
    }

    /// Marks the rx queue with this number: the next submission publishes what was given back to it.
    pub(crate) fn mark_refill(&self, queue: u32) {
        self.mark(Mark::Refill(queue));
    }

    /// Marks a slot: the next submission clears it, unless a lend takes the slot and clears it.
    pub(crate) fn mark_clear(&self, getbuf: &Rc<GetBufShared>, slot: u16) {
        if self.takes_marks() {
            self.to_clear.borrow_mut().push((Rc::clone(getbuf), slot));
            self.start_soon();
        }
    }

    /// Marks the result of a block request for the next submission.
    pub(crate) fn mark_answer(&self, answer: TagResult) {
        if self.takes_marks() {
            self.answers.borrow_mut().push(answer);
            self.start_soon();
        }
    }

    /// Takes what is marked, and starts each by `start`, which may mark more.
    pub(crate) fn start_marks(&self, mut start: impl FnMut(Mark)) {
        while !self.marks.borrow().is_empty() {
            // The two lists alternate, so that steady use allocates nothing.
            let mut marks = self.marks.replace(self.spare_marks.take());
            marks.drain(..).for_each(&mut start);
            self.spare_marks.replace(marks);
        }
    }

    /// Nobody turns the driver any more.
    pub(crate) fn leave(&self) {
        self.gone.set(true);
        self.ending.set(true);
    }

    /// Ends the ending: operations that were under way are over.
    pub(crate) fn finish(&self) {
        self.ending.set(false);
        self.wake_all();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Nothing is noted any more.
    pub(crate) fn close(&self) {
        self.leave();
        self.closed.set(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
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
        self.wakes.borrow_mut().extend(wakers);
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
        let before = self.wakes.borrow().len();
        let_go(&mut |waker| self.wakes.borrow_mut().push_back(waker));
        self.wakes.borrow_mut().extend(wakers);
        // Earlier wakers wait for a turn.
        if self.wakes.borrow().len() > before {
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
        Waking { due: self, before: self.waking.replace(true) }
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
        !self.wakes.borrow().is_empty()
    }

    /// Calls these with the others.
    pub(crate) fn wake_with_others(&self, wakers: impl Iterator<Item = Waker>) {
        self.wakes.borrow_mut().extend(wakers);
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
        self.wakes.borrow_mut().pop_front()
    }
}

/// Also ends when what runs meanwhile panics.
struct Waking<'a> {
    due: &'a Due,
    before: bool,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.due.waking.set(self.before);
    }
}

/// While it lives, wakers are deferred.
pub(crate) struct Telling<'a>(&'a Due);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.telling.set(false);
    }
}
