//! A refill queue: where spans of an rx queue are given back to the kernel.
//!
//! Contracts:
//! - an entry is not written again before the kernel has taken it: what finds no room waits here, in
//!   order;
//! - the kernel sees entries when they are published, many at a time, since it looks at the same word
//!   from another processor;
//! - what is given back within a batch needs no look at anything else.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use handoff_sys::zcrx::{Offsets, Refill};

use crate::memory::Backing;

/// So many given back are published at once; fewer with the next submission.
const BATCH: u32 = 32;

pub(crate) struct RefillQueue {
    /// Shared with the kernel until the ring is closed.
    _memory: Arc<Backing>,
    /// The kernel's counter of entries taken, and ours of entries put.
    head: NonNull<u32>,
    tail: NonNull<u32>,
    rqes: NonNull<Refill>,
    /// One less than the entries, a power of two.
    mask: u32,
    /// Entries written, and what is left of the batch.
    claimed: Cell<u32>,
    /// What is left of the batch; nothing while any wait.
    batch: Cell<u32>,
    /// The first entry of that.
    next: Cell<NonNull<Refill>>,
    /// The kernel was told of so many entries.
    published: Cell<u32>,
    /// Entries that are free for certain, beside those of the batch.
    room: Cell<u32>,
    waiting: RefCell<VecDeque<u64>>,
}

impl RefillQueue {
    /// # Safety
    ///
    /// The offsets are those of a queue of `entries`, a power of two, in this memory, which nobody
    /// but the kernel uses otherwise.
    pub(crate) unsafe fn new(memory: Arc<Backing>, offsets: Offsets, entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        // SAFETY: the offsets lie in the memory.
        let at = |offset: u32| unsafe { memory.start().add(offset as usize) };
        Self {
            head: at(offsets.head).cast(),
            tail: at(offsets.tail).cast(),
            rqes: at(offsets.rqes).cast(),
            mask: entries - 1,
            claimed: Cell::new(0),
            batch: Cell::new(0),
            next: Cell::new(at(offsets.rqes).cast()),
            published: Cell::new(0),
            room: Cell::new(0),
            waiting: RefCell::default(),
            _memory: memory,
        }
    }

    /// Gives back the span that began at `off`, if there is a batch, which is published with its end or
    /// by [`publish`](Self::publish); `false` if there is none.
    #[inline]
    pub(crate) fn put(&self, off: u64) -> bool {
        let left = self.batch.get();
        if left == 0 {
            return false;
        }
        let entry = self.next.get();
        // SAFETY: the entry is of the batch, so inside the queue, aligned as the kernel has laid it out,
        // and the kernel does not read it before the tail has passed it. The next one is inside too, or
        // the end of the queue.
        unsafe {
            entry.write(Refill { off, ..Refill::default() });
            self.next.set(entry.add(1));
        }
        self.batch.set(left - 1);
        true
    }

    /// The same where there is no batch, and begins one.
    pub(crate) fn put_first(&self, off: u64) {
        self.waiting.borrow_mut().push_back(off);
        self.begin_batch();
    }

    /// Tells the kernel of everything that there is room for, and ends the batch.
    pub(crate) fn publish(&self) {
        if self.is_crowded() {
            self.begin_batch();
        }
        let left = self.batch.take();
        self.claimed.set(self.claimed.get().wrapping_sub(left));
        self.room.set(self.room.get() + left);
        if self.claimed != self.published {
            self.tell();
        }
    }

    /// Whether spans found no room.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Whether the kernel has yet to take what it was told of.
    pub(crate) fn has_untaken(&self) -> bool {
        self.taken() != self.published.get()
    }

    /// Writes what waits, as far as there is room; there is a batch then if nothing waits any more.
    fn begin_batch(&self) {
        let mut waiting = self.waiting.borrow_mut();
        loop {
            self.tell();
            let put = self.published.get();
            if self.room.get() == 0 {
                self.room.set(self.mask + 1 - put.wrapping_sub(self.taken()));
            }
            // Its entries lie one behind the other.
            let index = put & self.mask;
            let batch = self.room.get().min(BATCH).min(self.mask + 1 - index);
            self.room.update(|room| room - batch);
            self.claimed.set(put.wrapping_add(batch));
            self.batch.set(batch);
            // SAFETY: inside the queue, by the contract of `new`.
            self.next.set(unsafe { self.rqes.add(index as usize) });
            while self.batch.get() > 0
                && let Some(off) = waiting.pop_front()
            {
                self.put(off);
            }
            if batch == 0 || waiting.is_empty() {
                return;
            }
        }
    }

    /// Tells the kernel of all that was written.
    fn tell(&self) {
        let put = self.claimed.get().wrapping_sub(self.batch.get());
        // SAFETY: an aligned word of the memory by the contract of `new`, an atomic to both sides,
        // and the memory lives as long as the queue.
        unsafe { AtomicU32::from_ptr(self.tail.as_ptr()) }.store(put, Release);
        self.published.set(put);
    }

    fn taken(&self) -> u32 {
        // SAFETY: as in `tell`.
        unsafe { AtomicU32::from_ptr(self.head.as_ptr()) }.load(Acquire)
    }
}

/// The kernel's side, for tests.
#[cfg(test)]
pub(crate) struct Kernel {
    memory: Arc<Backing>,
    entries: u32,
    head: u32,
}

#[cfg(test)]
impl Kernel {
    const OFFSETS: Offsets = Offsets { head: 0, tail: 4, rqes: 64, reserved: [0; 5] };

    /// A queue of so many entries, and its other end.
    pub(crate) fn and_queue(entries: u32) -> (Self, RefillQueue) {
        let len = (64 + entries as usize * size_of::<Refill>()).next_multiple_of(4096);
        let memory = crate::memory::map(len, rustix::mm::MapFlags::PRIVATE, None).unwrap();
        // SAFETY: the queue fits the mapping, and only the other end uses it too.
        let queue = unsafe { RefillQueue::new(memory.clone(), Self::OFFSETS, entries) };
        (Self { memory, entries, head: 0 }, queue)
    }

    /// Takes at most so many entries: where their spans began.
    pub(crate) fn take(&mut self, most: u32) -> Vec<u64> {
        let start = self.memory.start().as_ptr();
        let mut taken = Vec::new();
        // SAFETY: words and entries of the mapping, where the offsets say, on one thread.
        unsafe {
            let tail = AtomicU32::from_ptr(start.add(4).cast()).load(Acquire);
            while self.head != tail && (taken.len() as u32) < most {
                let index = (self.head % self.entries) as usize;
                taken.push(start.add(64).cast::<Refill>().add(index).read().off);
                self.head = self.head.wrapping_add(1);
            }
            AtomicU32::from_ptr(start.cast()).store(self.head, Release);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRIES: u32 = 8;

    proptest! {
        #[test]
        fn everything_arrives_once_and_in_order(
            steps in prop::collection::vec((0u32..20, any::<bool>(), 0u32..10), 1..60),
        ) {
            let (mut kernel, queue) = Kernel::and_queue(ENTRIES);
            let mut next = 0u64;
            let mut arrived = Vec::new();
            for (puts, publish, takes) in steps {
                for _ in 0..puts {
                    if !queue.put(next) {
                        queue.put_first(next);
                    }
                    next += 1;
                }
                if publish {
                    queue.publish();
                }
                arrived.extend(kernel.take(takes));
            }
            while queue.is_crowded() || queue.has_untaken() || arrived.len() < next as usize {
                queue.publish();
                arrived.extend(kernel.take(ENTRIES));
            }
            prop_assert_eq!(arrived, (0..next).collect::<Vec<_>>());
        }
    }
}
