//! What is due when the driver next submits, and who is to be woken when it has told all that there is.
//!
//! What was lent to us goes back in a drop, anywhere; it is only put down here then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::task::Waker;
use std::thread;

use super::kernel::GetBufShared;
use super::request::QueueShared;
use super::rx_queue::RxShared;
use crate::ring::Key;

/// Something to start with the next submission.
pub(crate) enum Mark {
    /// A receive.
    Receive(Key),
    /// What was given back to an rx queue is to be published.
    Refill(Rc<RxShared>),
}

#[derive(Default)]
pub(crate) struct Due {
    /// Something was put down to start since the driver last looked.
    to_start: Cell<bool>,
    marks: RefCell<Vec<Mark>>,
    spare_marks: RefCell<Vec<Mark>>,
    /// Slots with a buffer of the kernel that nobody needs any more, and the devices to clear them.
    pub(crate) to_clear: RefCell<Vec<(Rc<GetBufShared>, u16)>>,
    /// Results of block requests whose memory nobody uses any more, by their tags.
    pub(crate) answers: RefCell<Vec<(Rc<QueueShared>, u16, i32)>>,
    /// Whoever turns the driver from a foreign runtime.
    attention: RefCell<Option<Waker>>,
    /// Operations are told what became of them, and nobody is woken before that is done.
    telling: Cell<bool>,
    /// Wakers are called.
    waking: Cell<bool>,
    /// Who is to be woken then.
    wakes: RefCell<VecDeque<Waker>>,
    /// The last [`Driver`](crate::Driver) is gone: wakers are called when all that was under way has ended.
    gone: Cell<bool>,
    /// No handle is left either, and the ring gives all back.
    closed: Cell<bool>,
}

impl Due {
    /// Whether something waits to be started.
    pub(crate) fn has_marks(&self) -> bool {
        !self.marks.borrow().is_empty()
            || !self.to_clear.borrow().is_empty()
            || !self.answers.borrow().is_empty()
    }

    /// Has the driver look at its next turn for what is to be started.
    pub(crate) fn start_soon(&self) {
        self.look_again();
        self.attend();
    }

    /// The same for what the driver knows of and could not start.
    pub(crate) fn look_again(&self) {
        self.to_start.set(true);
    }

    /// Whether there may be anything to start that the driver has not looked at.
    #[inline]
    pub(crate) fn take_to_start(&self) -> bool {
        self.to_start.replace(false)
    }

    fn mark(&self, mark: Mark) {
        if !self.closed.get() {
            self.marks.borrow_mut().push(mark);
            self.start_soon();
        }
    }

    /// Has a receive started with the next submission.
    pub(crate) fn mark_receive(&self, key: Key) {
        self.mark(Mark::Receive(key));
    }

    /// Has what was given back to an rx queue published with the next submission.
    pub(crate) fn mark_refill(&self, queue: Rc<RxShared>) {
        self.mark(Mark::Refill(queue));
    }

    /// Has a slot cleared with the next submission, unless a lend clears it to have it itself.
    pub(crate) fn mark_clear(&self, getbuf: &Rc<GetBufShared>, slot: u16) {
        if !self.closed.get() {
            self.to_clear.borrow_mut().push((Rc::clone(getbuf), slot));
            self.start_soon();
        }
    }

    /// Has the result of a block request given with the next submission.
    pub(crate) fn mark_answer(&self, queue: &Rc<QueueShared>, tag: u16, result: i32) {
        if !self.closed.get() {
            self.answers.borrow_mut().push((Rc::clone(queue), tag, result));
            self.start_soon();
        }
    }

    /// Takes what is marked, and starts each by `start`, which may mark more.
    pub(crate) fn start_marks(&self, mut start: impl FnMut(Mark)) {
        while !self.marks.borrow().is_empty() {
            // The two lists take turns, so that steady use allocates nothing.
            let mut marks = self.marks.replace(self.spare_marks.take());
            marks.drain(..).for_each(&mut start);
            self.spare_marks.replace(marks);
        }
    }

    /// Nobody turns the driver any more.
    pub(crate) fn leave(&self) {
        self.gone.set(true);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Nothing is put down any more.
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

    /// Wakes whoever waits: at once, or when all that there is has been told and those before it are woken.
    #[inline]
    pub(crate) fn wake(&self, waker: Option<Waker>) {
        self.wake_each([waker]);
    }

    /// The same for several, of which one that panics keeps none of the others.
    #[inline(always)]
    pub(crate) fn wake_each<const N: usize>(&self, wakers: [Option<Waker>; N]) {
        if wakers.iter().all(Option::is_none) {
            return;
        }
        self.wake_many(wakers.into_iter().flatten());
    }

    /// The same for as many as there are.
    #[inline]
    pub(crate) fn wake_many(&self, wakers: impl IntoIterator<Item = Waker>) {
        self.wakes.borrow_mut().extend(wakers);
        if !self.telling.get() && !self.waking.get() && !self.gone.get() {
            self.wake_all();
        }
    }

    /// Lets go of a buffer that nobody wants, and wakes those who waited for that. What foreign code this comes
    /// to, as the end of an owner or the waker of a pool, is called with the wakers.
    pub(crate) fn let_go_and_wake(
        &self,
        let_go: impl FnOnce(&mut dyn FnMut(Waker)),
        wakers: impl IntoIterator<Item = Waker>,
    ) {
        let before = self.wakes.borrow().len();
        let_go(&mut |waker| self.wakes.borrow_mut().push_back(waker));
        self.wakes.borrow_mut().extend(wakers);
        // Those of before wait for a turn.
        if self.wakes.borrow().len() > before {
            self.wake_many([]);
        }
    }

    /// Whoever is to be woken because of this waits for the next turn: the caller has something in hand
    /// that a panic must not take away.
    pub(crate) fn wake_later<T>(&self, act: impl FnOnce() -> T) -> T {
        let before = self.waking.replace(true);
        let done = act();
        self.waking.set(before);
        if self.has_wakes() {
            self.attend();
        }
        done
    }

    /// Keeps wakers for later while what this gives is there.
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

    /// Has these called with the others.
    pub(crate) fn wake_with_others(&self, wakers: impl Iterator<Item = Waker>) {
        self.wakes.borrow_mut().extend(wakers);
    }

    /// Calls all wakers that were kept. One that panics keeps nobody else from being woken.
    #[inline]
    pub(crate) fn wake_all(&self) {
        if self.has_wakes() {
            self.wake_kept();
        }
    }

    #[inline(never)]
    fn wake_kept(&self) {
        let before = self.waking.replace(true);
        let mut panicked = None;
        loop {
            let all = AssertUnwindSafe(|| {
                while let Some(waker) = self.next_to_wake() {
                    waker.wake();
                }
            });
            match panic::catch_unwind(all) {
                Ok(()) => break,
                // Of several the first is told.
                Err(panic) => panicked = panicked.or(Some(panic)),
            }
        }
        self.waking.set(before);
        // Another panic would end the process.
        if let (Some(panic), false) = (panicked, thread::panicking()) {
            panic::resume_unwind(panic);
        }
    }

    fn next_to_wake(&self) -> Option<Waker> {
        self.wakes.borrow_mut().pop_front()
    }
}

/// While it is there, wakers are kept for later.
pub(crate) struct Telling<'a>(&'a Due);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.telling.set(false);
    }
}
