//! A refill queue: where spans of an rx queue are given back to the kernel.
//!
//! Contracts:
//! - an entry is not written again before the kernel has taken it: what finds no room waits here, in
//!   order;
//! - the kernel sees entries when they are published, many at a time, since it looks at the same word
//!   from another processor.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use handoff_sys::zcrx::{Offsets, Refill};

use crate::lease::Backing;

/// So many given back are published at once; fewer with the next submission.
const PUBLISH: u32 = 32;

pub(crate) struct RefillQueue {
    /// Shared with the kernel until the ring is closed.
    memory: Arc<Backing>,
    offsets: Offsets,
    entries: u32,
    /// Entries written.
    tail: u32,
    /// Of these, the kernel was told of so many.
    published: u32,
    waiting: VecDeque<Refill>,
}

impl RefillQueue {
    /// # Safety
    ///
    /// The offsets are those of a queue of `entries`, a power of two, in this memory, which nobody
    /// but the kernel uses otherwise.
    pub(crate) unsafe fn new(memory: Arc<Backing>, offsets: Offsets, entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        Self { memory, offsets, entries, tail: 0, published: 0, waiting: VecDeque::new() }
    }

    /// Gives one span back; the kernel is told now or with [`publish`](Self::publish).
    pub(crate) fn put(&mut self, refill: Refill) {
        if !self.waiting.is_empty() || self.free() == 0 {
            self.waiting.push_back(refill);
            return;
        }
        self.write(refill);
        if self.tail.wrapping_sub(self.published) >= PUBLISH {
            self.tell();
        }
    }

    /// Tells the kernel of everything that there is room for.
    pub(crate) fn publish(&mut self) {
        let mut free = self.free();
        while free > 0
            && let Some(refill) = self.waiting.pop_front()
        {
            self.write(refill);
            free -= 1;
        }
        if self.tail != self.published {
            self.tell();
        }
    }

    /// Spans that found no room.
    pub(crate) fn is_crowded(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the kernel has yet to take what it was told of.
    pub(crate) fn has_untaken(&self) -> bool {
        self.head() != self.published
    }

    fn free(&self) -> u32 {
        self.entries - self.tail.wrapping_sub(self.head())
    }

    fn write(&mut self, refill: Refill) {
        let index = (self.tail & (self.entries - 1)) as usize;
        // SAFETY: the entry is inside the queue by the contract of `new`, aligned as the kernel has
        // laid it out, and the kernel does not read it before the tail has passed it.
        unsafe { self.at(self.offsets.rqes).cast::<Refill>().add(index).write(refill) };
        self.tail = self.tail.wrapping_add(1);
    }

    fn tell(&mut self) {
        self.word(self.offsets.tail).store(self.tail, Release);
        self.published = self.tail;
    }

    fn head(&self) -> u32 {
        self.word(self.offsets.head).load(Acquire)
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: an aligned word of the memory by the contract of `new`, used as an atomic by both
        // sides, and the memory lives as long as the queue.
        unsafe { AtomicU32::from_ptr(self.at(offset).as_ptr().cast()) }
    }

    fn at(&self, offset: u32) -> NonNull<u8> {
        // SAFETY: the offset lies in the memory by the contract of `new`.
        unsafe { self.memory.start().add(offset as usize) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::mm::MapFlags;

    use super::*;
    use crate::source::memory::map;

    const ENTRIES: u32 = 8;

    /// The other side.
    struct Kernel {
        memory: Arc<Backing>,
        head: u32,
    }

    impl Kernel {
        fn take(&mut self, most: u32) -> Vec<u64> {
            let start = self.memory.start().as_ptr();
            // SAFETY: words and entries of the mapping, as the offsets below say, on one thread.
            unsafe {
                let tail = AtomicU32::from_ptr(start.add(4).cast()).load(Acquire);
                let mut taken = Vec::new();
                while self.head != tail && (taken.len() as u32) < most {
                    let index = (self.head % ENTRIES) as usize;
                    taken.push(start.add(64).cast::<Refill>().add(index).read().off);
                    self.head = self.head.wrapping_add(1);
                }
                AtomicU32::from_ptr(start.cast()).store(self.head, Release);
                taken
            }
        }
    }

    proptest! {
        #[test]
        fn everything_arrives_once_and_in_order(
            steps in prop::collection::vec((0u32..20, any::<bool>(), 0u32..10), 1..60),
        ) {
            let memory = map(4096, MapFlags::PRIVATE, None).unwrap();
            let offsets = Offsets { head: 0, tail: 4, rqes: 64, ..Offsets::default() };
            // SAFETY: the queue fits the mapping, and only the other side below uses it too.
            let mut queue = unsafe { RefillQueue::new(memory.clone(), offsets, ENTRIES) };
            let mut kernel = Kernel { memory, head: 0 };
            let mut next = 0u64;
            let mut arrived = Vec::new();
            for (puts, publish, takes) in steps {
                for _ in 0..puts {
                    queue.put(Refill { off: next, ..Refill::default() });
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
