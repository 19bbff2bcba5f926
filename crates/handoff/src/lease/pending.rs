//! What waits for the driver's next submission: receives to start, and what was lent to us and goes back.
//!
//! A drop, anywhere, gives back what was lent to us; it only makes a note here then.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use handoff_sys::process::Process;

use super::getbuf_device::GetBufShared;
use super::returns::Returns;
use super::wakes::Wakes;
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

/// The most spans that other threads have at once, unless the program says otherwise.
pub(crate) const SEND_SPANS: usize = 1024;

pub(crate) struct Pending {
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
    pub(crate) wakes: Wakes,
    /// Where other threads leave the spans that they have.
    pub(crate) returns: Arc<Returns>,
    /// What such spans have left here ([`send_span`](super::send_span)).
    pub(super) away: RefCell<Option<Box<dyn Any>>>,
    /// The most of them.
    pub(crate) most_away: Cell<usize>,
    /// The last [`Driver`](crate::Driver) is gone.
    gone: Cell<bool>,
    /// No handle is left either, and the ring gives everything back.
    closed: Cell<bool>,
}

impl Default for Pending {
    /// Nobody waits.
    fn default() -> Self {
        Self::new(Box::new(|| {}))
    }
}

impl Pending {
    /// Nothing is pending. `end_wait` ends a wait of the driver's thread, on any thread.
    pub(crate) fn new(end_wait: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            made_by: Process::default(),
            to_start: Cell::new(false),
            marks: RefCell::default(),
            spare_marks: RefCell::default(),
            to_clear: RefCell::default(),
            answers: RefCell::default(),
            wakes: Wakes::default(),
            returns: Arc::new(Returns::new(end_wait)),
            away: RefCell::default(),
            most_away: Cell::new(SEND_SPANS),
            gone: Cell::new(false),
            closed: Cell::new(false),
        }
    }

    /// Whether something waits to start.
    pub(crate) fn has_marks(&self) -> bool {
        !self.marks.borrow().is_empty()
            || !self.to_clear.borrow().is_empty()
            || !self.answers.borrow().is_empty()
    }

    /// Makes the driver look at its next turn for something to start.
    pub(crate) fn start_soon(&self) {
        self.look_again();
        self.wakes.attend();
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
        self.wakes.begin_end();
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
}
