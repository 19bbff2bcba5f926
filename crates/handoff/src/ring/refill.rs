//! A refill queue: gives spans of an rx queue back to the kernel.
//!
//! Contracts:
//! - several rings share one refill queue, each on its own thread. A lock guards the tail, and spans given
//!   back wait in the thread's own [`Batch`] until that is full or published;
//! - the tail never passes an unwritten entry, and an entry is not rewritten before the kernel has taken it.
//!   Entries without room wait in the queue, in order, for the next caller;
//! - giving back within a batch looks at nothing else.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, PoisonError};

use handoff_sys::zcrx::{Offsets, Refill};

use crate::memory::Backing;
use crate::sync::{self, AtomicU32, Mutex, MutexGuard, Word};

/// So many spans are published at once; fewer with the next submission.
const BATCH: usize = 32;

pub(crate) struct RefillQueue {
    /// Shared with the kernel until the last ring closes.
    _memory: Arc<Backing>,
    /// The kernel's counter of entries taken.
    head: Word<AtomicU32>,
    tail: Mutex<Tail>,
}

/// The end where entries are put.
struct Tail {
    /// Our counter of entries put, as the kernel sees it.
    word: Word<AtomicU32>,
    rqes: NonNull<Refill>,
    /// One less than the entries, a power of two.
    mask: u32,
    /// The kernel was told of so many entries.
    put: u32,
    /// Entries that are certainly free.
    room: u32,
    /// Entries without room.
    waiting: VecDeque<u64>,
}

// SAFETY: the pointers lead into the memory, which the queue keeps. The head is an atomic; tail and entries
// are reached under the lock only.
unsafe impl Send for RefillQueue {}
// SAFETY: as above.
unsafe impl Sync for RefillQueue {}

impl RefillQueue {
    /// # Safety
    ///
    /// The offsets must be those of a queue of `entries`, a power of two, in this memory, which only the
    /// kernel uses otherwise.
    pub(crate) unsafe fn new(memory: Arc<Backing>, offsets: Offsets, entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        // SAFETY: the offsets lie in the memory.
        let at = |offset: u32| unsafe { memory.start().add(offset as usize) };
        // SAFETY: an aligned word of the memory, which the queue keeps; an atomic to both sides.
        let word = |offset: u32| unsafe { Word::at(at(offset)) };
        let tail = Tail {
            word: word(offsets.tail),
            rqes: at(offsets.rqes).cast(),
            mask: entries - 1,
            put: 0,
            room: 0,
            waiting: VecDeque::new(),
        };
        Self { head: word(offsets.head), tail: Mutex::new(tail), _memory: memory }
    }

    /// Gives one back at once.
    pub(crate) fn put_now(&self, off: u64) {
        self.put(&[entry(off)]);
    }

    /// Gives these back behind those that wait, as far as there is room; returns whether any wait now.
    fn put(&self, entries: &[Cell<Refill>]) -> bool {
        let mut tail = self.tail();
        let waiting = tail.waiting.len();
        let fit = tail.room_for(waiting + entries.len(), || self.taken());
        for _ in 0..fit.min(waiting) {
            let off = tail.waiting.pop_front().expect("so many wait");
            tail.write(&[entry(off)]);
        }
        let (now, later) = entries.split_at(fit.saturating_sub(waiting));
        tail.write(now);
        tail.waiting.extend(later.iter().map(|entry| entry.get().off));
        tail.tell();
        !tail.waiting.is_empty()
    }

    /// Whether the kernel has yet to take entries that it was told of.
    pub(crate) fn has_untaken(&self) -> bool {
        let put = self.tail().put;
        self.taken() != put
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        // Nothing panics within.
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries that the kernel has taken, as a counter that wraps.
    pub(crate) fn taken(&self) -> u32 {
        self.head.load(Acquire)
    }
}

impl Tail {
    /// How many of so many entries can be written.
    fn room_for(&mut self, entries: usize, taken: impl FnOnce() -> u32) -> usize {
        if (self.room as usize) < entries {
            self.room = self.mask + 1 - self.put.wrapping_sub(taken());
        }
        entries.min(self.room as usize)
    }

    /// Writes the next entries, for which there is room.
    fn write(&mut self, entries: &[Cell<Refill>]) {
        let index = (self.put & self.mask) as usize;
        let to_end = (self.mask as usize + 1 - index).min(entries.len());
        let (before_end, from_begin) = entries.split_at(to_end);
        for (at, part) in [(index, before_end), (0, from_begin)] {
            let from = part.as_ptr().cast::<Refill>();
            // SAFETY: a cell is laid out as what is in it, and nobody changes these meanwhile. The places are inside
            // the queue by the mask, and aligned as the kernel has laid it out; the kernel does not read them before
            // the tail has passed them, and has taken what was there before.
            unsafe {
                let to = self.rqes.as_ptr().add(at);
                sync::writes(to, part.len());
                to.copy_from_nonoverlapping(from, part.len());
            }
        }
        self.put = self.put.wrapping_add(entries.len() as u32);
        self.room -= entries.len() as u32;
    }

    /// Tells the kernel about all written entries.
    fn tell(&self) {
        self.word.store(self.put, Release);
    }
}

/// The entry for a span that began there.
fn entry(off: u64) -> Cell<Refill> {
    Cell::new(Refill { off, ..Refill::default() })
}

/// Collects the spans that one thread gives back by a refill queue.
pub(crate) struct Batch {
    entries: [Cell<Refill>; BATCH],
    /// The next entry; behind the last one while there is no batch.
    next: Cell<usize>,
    /// There is a batch.
    open: Cell<bool>,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            entries: std::array::from_fn(|_| entry(0)),
            next: Cell::new(BATCH),
            open: Cell::new(false),
        }
    }
}

impl Batch {
    /// Gives back the span that began at `off`, if there is a batch with room; `false` if there is none.
    #[inline]
    pub(crate) fn put(&self, off: u64) -> bool {
        let next = self.next.get();
        let Some(place) = self.entries.get(next) else { return false };
        place.set(Refill { off, ..Refill::default() });
        self.next.set(next + 1);
        true
    }

    /// The same without a batch, and begins one.
    pub(crate) fn put_first(&self, off: u64, queue: &RefillQueue) {
        self.publish(queue);
        self.next.set(0);
        self.open.set(true);
        self.put(off);
    }

    /// Tells the kernel about everything that there is room for, and ends the batch; returns whether any
    /// wait.
    pub(crate) fn publish(&self, queue: &RefillQueue) -> bool {
        let written = self.next.replace(BATCH);
        let written = if self.open.replace(false) { written } else { 0 };
        queue.put(&self.entries[..written])
    }
}

#[cfg(test)]
impl RefillQueue {
    /// Nobody puts anything meanwhile.
    pub(crate) fn locked<T>(&self, act: impl FnOnce() -> T) -> T {
        let _tail = self.tail();
        act()
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

    /// Takes at most so many entries; returns where their spans began.
    pub(crate) fn take(&mut self, most: u32) -> Vec<u64> {
        let start = self.memory.start();
        let mut taken = Vec::new();
        // SAFETY: words and entries of the mapping, where the offsets say; entries before the tail are not
        // written before the head has passed them.
        unsafe {
            let (head, tail): (Word<AtomicU32>, Word<AtomicU32>) =
                (Word::at(start), Word::at(start.add(4)));
            let tail = tail.load(Acquire);
            while self.head != tail && (taken.len() as u32) < most {
                let index = (self.head % self.entries) as usize;
                let entry = start.add(64).cast::<Refill>().add(index);
                sync::reads(entry.as_ptr());
                taken.push(entry.read().off);
                self.head = self.head.wrapping_add(1);
            }
            head.store(self.head, Release);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const ENTRIES: u32 = 8;

    proptest! {
        #[test]
        fn everything_arrives_once_and_in_order(
            steps in prop::collection::vec((0u32..70, any::<bool>(), 0u32..10), 1..60),
        ) {
            let (mut kernel, queue) = Kernel::and_queue(ENTRIES);
            let batch = Batch::default();
            let mut next = 0u64;
            let mut arrived = Vec::new();
            for (puts, publish, takes) in steps {
                for _ in 0..puts {
                    if !batch.put(next) {
                        batch.put_first(next, &queue);
                    }
                    next += 1;
                }
                if publish {
                    batch.publish(&queue);
                }
                arrived.extend(kernel.take(takes));
            }
            while batch.publish(&queue) || queue.has_untaken() {
                arrived.extend(kernel.take(ENTRIES));
            }
            prop_assert_eq!(arrived, (0..next).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_several_threads_give_back_arrives_once_and_in_the_order_of_each() {
        const THREADS: u64 = 3;
        const EACH: u64 = 20_000;
        let (mut kernel, queue) = Kernel::and_queue(64);
        let mut arrived = Vec::new();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let queue = &queue;
                scope.spawn(move || {
                    let batch = Batch::default();
                    for number in 0..EACH {
                        let off = thread << 32 | number;
                        match number % 7 {
                            0 => queue.put_now_behind(&batch, off),
                            _ if batch.put(off) => {}
                            _ => batch.put_first(off, queue),
                        }
                    }
                    batch.publish(queue);
                });
            }
            // What waits when all threads are done comes out with the next publication.
            let last = Batch::default();
            while arrived.len() < (THREADS * EACH) as usize {
                arrived.extend(kernel.take(u32::MAX));
                last.publish(&queue);
            }
        });
        assert!(!queue.has_untaken());
        for thread in 0..THREADS {
            let of_thread = arrived.iter().filter(|off| **off >> 32 == thread);
            assert!(of_thread.map(|off| off & 0xffff_ffff).eq(0..EACH), "of thread {thread}");
        }
    }

    impl RefillQueue {
        /// As a driver that has gone gives back.
        fn put_now_behind(&self, batch: &Batch, off: u64) {
            batch.publish(self);
            self.put_now(off);
        }
    }
}
