//! An rx queue as one ring sees it: the spans that it holds, and how their chunks go back to the kernel.
//!
//! The kernel unbinds the queue when its last ring closes, and no earlier. Linux 6.15 to 6.18 then first give
//! the chunks that we hold back to the NIC, which could write under a span. So a driver that goes leaves its
//! ring open until its last span is dropped.
//!
//! A driver that goes leaves spans behind that the kernel still sends. Their chunks never go back: a NIC that serves
//! another ring, or this one as long as it is open, would write to pages that are yet to be sent.
//!
//! Rings that share a queue have their spans apart, and give back by one refill queue
//! ([`rx_memory`](super::rx_memory)).

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use handoff_sys::process::Process;
use handoff_sys::zcrx;

use super::area;
use super::pending::Pending;
use super::rx_memory::{RxMemory, RxShortage};
use crate::mechanism::ReceiveEngine;
use crate::memory::Backing;
use crate::ring::Key;
use crate::ring::refill::Batch;

/// How often at most the kernel is asked to report again that it found no chunk.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A queue as one ring sees it.
pub(crate) struct RxShared {
    /// Keeps the ring open for the spans that outlive the driver; before the memory, which goes later.
    pub(crate) ring: Cell<Option<Arc<OwnedFd>>>,
    pending: Weak<Pending>,
    /// Of the driver.
    number: u32,
    /// What requests name.
    pub(super) id: u32,
    pub(super) memory: Arc<RxMemory>,
    /// A child shares the refill queue with its parent, and gives nothing back.
    made_by: Process,
    /// Chunks given back since the driver last published. The batch exists only while the driver knows of it:
    /// otherwise the next chunk tells the driver.
    batch: Batch,
    /// Spans held, and how many of them the memory's count has.
    pub(super) held: Cell<usize>,
    counted: Cell<usize>,
    /// The driver knows that something was given back: it publishes that with its next submission, and
    /// nobody starves.
    attended: Cell<bool>,
    /// Places of spans that the kernel sends for longer than the driver is there.
    never_back: RefCell<Vec<u64>>,
    /// Receivers that found no chunk.
    starving: RefCell<Vec<Key>>,
    /// When the kernel last reported a shortage, if it was not asked again since.
    short: Cell<Option<Instant>>,
}

#[cfg(test)]
impl RxShared {
    /// A queue without a NIC; returns also what was given back since the last call.
    pub(crate) fn without_kernel(
        pending: &Rc<Pending>,
        chunks: usize,
        chunk: usize,
    ) -> (Rc<Self>, impl Fn() -> Vec<u64> + use<>) {
        let (memory, kernel) = RxMemory::without_kernel(chunks, chunks, chunk);
        let kernel = RefCell::new(kernel);
        let shared = Self::new(pending, 0, None, 0, Arc::new(memory));
        (shared, move || kernel.borrow_mut().take(u32::MAX))
    }

    /// The same queue as another driver has it.
    pub(crate) fn imported(&self, pending: &Rc<Pending>) -> Rc<Self> {
        self.memory.shared.store(true, Relaxed);
        Self::new(pending, 0, None, 0, Arc::clone(&self.memory))
    }
}

impl RxShared {
    pub(super) fn new(
        pending: &Rc<Pending>,
        number: u32,
        ring: Option<OwnedFd>,
        id: u32,
        memory: Arc<RxMemory>,
    ) -> Rc<Self> {
        Rc::new(Self {
            ring: Cell::new(ring.map(Arc::new)),
            pending: Rc::downgrade(pending),
            number,
            id,
            memory,
            made_by: Process::this(),
            batch: Batch::default(),
            held: Cell::new(0),
            counted: Cell::new(0),
            attended: Cell::new(false),
            never_back: RefCell::default(),
            starving: RefCell::default(),
            short: Cell::new(None),
        })
    }

    pub(crate) fn engine(&self) -> ReceiveEngine {
        self.memory.engine
    }

    /// What requests name.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Receives begun so far.
    pub(crate) fn begun(&self) -> u32 {
        self.memory.begun()
    }

    pub(crate) fn is_of(&self, pending: &Rc<Pending>) -> bool {
        std::ptr::eq(self.pending.as_ptr(), Rc::as_ptr(pending))
    }

    pub(super) fn pending(&self) -> Option<Rc<Pending>> {
        self.pending.upgrade()
    }

    /// The driver goes, and another thread has the span that began at `place`.
    pub(super) fn leave_behind(&self, place: u64) -> LeftSpan {
        // The memory still counts it, and this ring does not.
        self.held.set(self.held.get() - 1);
        self.counted.set(self.counted.get().wrapping_sub(1));
        let ring = self.ring.take();
        let kept = ring.clone();
        self.ring.set(ring);
        LeftSpan { place, _ring: kept, memory: Arc::clone(&self.memory) }
    }

    /// The ring, as long as it is kept open.
    pub(super) fn ring(&self) -> Option<RawFd> {
        let ring = self.ring.take();
        let raw = ring.as_ref().map(|ring| ring.as_raw_fd());
        self.ring.set(ring);
        raw
    }

    /// Counts spans that the kernel has handed over; gives it more memory if they are too many.
    pub(crate) fn arrived(&self, spans: usize, bytes: u64, ring: RawFd) {
        self.memory.spans.fetch_add(spans as u64, Relaxed);
        self.memory.bytes.fetch_add(bytes, Relaxed);
        self.held.set(self.held.get() + spans);
        let held = self.count_held();
        if self.memory.runs_short(held) {
            self.memory.grow(ring, self.id, self.memory.chunks(), RxShortage::Held);
        }
    }

    /// Updates the memory's count with this ring's; returns what all rings hold.
    fn count_held(&self) -> usize {
        let held = self.held.get();
        // It may be less than before: the count wraps.
        let change = held.wrapping_sub(self.counted.replace(held));
        self.memory.held.fetch_add(change, Release).wrapping_add(change)
    }

    /// Whether a span can be there.
    #[inline]
    pub(crate) fn has(&self, place: u64, len: usize) -> bool {
        self.memory.find(place, len).is_some()
    }

    /// Gives back the span that began at `place`.
    #[inline]
    pub(crate) fn give_back(&self, place: u64) {
        self.held.set(self.held.get() - 1);
        if !self.batch.put(place) {
            self.begin_batch(place);
        }
    }

    /// As [`give_back`](Self::give_back), for the first span after the driver has published or a batch was
    /// full.
    #[cold]
    fn begin_batch(&self, place: u64) {
        if !self.made_by.is_this() {
            return;
        }
        let pending = self.pending.upgrade();
        let Some(pending) = pending.as_ref().filter(|pending| !pending.is_gone()) else {
            // Nobody would publish a batch, and other rings may receive with it.
            if !self.never_back.borrow().contains(&place) {
                self.memory.refill.put_now(place);
            }
            self.count_held();
            if pending.is_none_or(|pending| pending.is_closed()) {
                self.close_if_unused();
            }
            return;
        };
        self.batch.put_first(place, &self.memory.refill);
        if self.attended.replace(true) {
            return;
        }
        pending.mark_refill(self.number);
        for receiver in self.starving.borrow_mut().drain(..) {
            pending.mark_receive(receiver);
        }
    }

    /// Tells the kernel about all chunks given back, as far as there is room; returns whether any wait.
    fn publish_batch(&self) -> bool {
        self.attended.set(false);
        let any_wait = self.batch.publish(&self.memory.refill);
        // Whoever sees that this ring holds less finds the rest in the refill queue.
        self.count_held();
        any_wait
    }

    /// The kernel sends the span that began at `place` for longer than the driver is there.
    pub(super) fn keep_from_nic(&self, place: u64) {
        self.never_back.borrow_mut().push(place);
    }

    /// No handle of the driver is left. From now on each span that comes back checks whether it was the
    /// last.
    pub(crate) fn outlive_driver(&self) {
        self.publish_batch();
        self.close_if_unused();
    }

    /// Lets go of the ring when no span needs it open any more.
    fn close_if_unused(&self) {
        if !self.holds_any() {
            drop(self.ring.take());
        }
    }

    /// Shows the kernel what was given back; called with the next submission.
    pub(crate) fn publish(&self, ring: RawFd) {
        while self.publish_batch() && self.flush(ring) > 0 {}
        if self.short.get().is_some_and(|since| since.elapsed() >= ASK_AGAIN) {
            self.ask_again(ring);
        }
    }

    /// Asks the kernel to report the next shortage.
    fn ask_again(&self, ring: RawFd) {
        self.short.set(None);
        if let Err(error) = zcrx::arm_event(ring, self.id, zcrx::EVENT_ALLOC_FAIL) {
            tracing::debug!(%error, "shortages of this rx queue are not told again");
        }
    }

    /// For a receiver that found no chunk to copy to when there were `seen`: makes the kernel take at once what was
    /// given back, or gives it more memory. Returns whether it has any.
    pub(crate) fn replenish(&self, ring: RawFd, seen: usize) -> bool {
        self.hand_over(ring) > 0 || self.memory.grow(ring, self.id, seen, RxShortage::NoChunk)
    }

    /// Makes the kernel take at once all that was given back; returns the number of entries.
    fn hand_over(&self, ring: RawFd) -> u32 {
        let mut taken = 0;
        loop {
            let any_wait = self.publish_batch();
            let more = if self.memory.refill.has_untaken() { self.flush(ring) } else { 0 };
            taken += more;
            if more == 0 || !any_wait {
                return taken;
            }
        }
    }

    /// Makes the kernel take what is in the refill queue; returns the number of entries.
    fn flush(&self, ring: RawFd) -> u32 {
        let refill = &self.memory.refill;
        let before = refill.taken();
        if let Err(error) = zcrx::flush_refill(ring, self.id) {
            tracing::debug!(%error, "the refill queue can't be flushed");
            return 0;
        }
        self.memory.flushes.fetch_add(1, Relaxed);
        refill.taken().wrapping_sub(before)
    }

    /// The kernel reports that the NIC's ring found no free chunk: gives it what came back, and more memory if that
    /// is little.
    pub(crate) fn fell_short(&self, ring: RawFd) {
        self.memory.shortages.fetch_add(1, Relaxed);
        // The NIC takes this many at once; if it gets them, it needs no more memory now.
        let enough = self.hand_over(ring) as usize >= area::AT_ONCE;
        if !enough && self.memory.grow(ring, self.id, self.memory.chunks(), RxShortage::NoChunk) {
            self.ask_again(ring);
        } else {
            self.short.set(Some(Instant::now()));
        }
    }

    pub(crate) fn starve(&self, receiver: Key) {
        self.starving.borrow_mut().push(receiver);
        self.publish_batch();
    }

    pub(crate) fn forget(&self, receiver: Key) {
        self.starving.borrow_mut().retain(|starving| *starving != receiver);
    }

    /// Whether dropping a span of this driver would give a chunk back.
    pub(crate) fn holds_any(&self) -> bool {
        self.held.get() > 0
    }

    /// Whether another ring may receive from the queue, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.memory.shared.load(Relaxed)
    }

    /// Whether other drivers may give chunks back without this one hearing of it.
    pub(crate) fn others_hold_any(&self) -> bool {
        self.memory.held.load(Acquire) != self.counted.get()
    }

    /// The memory.
    pub(crate) fn memory(&self) -> &Arc<Backing> {
        &self.memory.region
    }

    pub(crate) fn chunks(&self) -> usize {
        self.memory.chunks()
    }

    /// A receive begins: returns how many have by now, and whether it is the only one.
    pub(crate) fn begin(&self) -> (u32, bool) {
        self.memory.begin()
    }

    pub(crate) fn end(&self) {
        self.memory.end();
    }

    /// Bytes that the kernel has copied, by its own count.
    pub(crate) fn copied(&self) -> Option<u64> {
        self.memory.copied()
    }
}

/// A span that another thread has while its driver is gone. Dropping it gives the chunk back, for the other rings.
pub(super) struct LeftSpan {
    place: u64,
    /// Before the memory, which goes later.
    _ring: Option<Arc<OwnedFd>>,
    memory: Arc<RxMemory>,
}

impl Drop for LeftSpan {
    fn drop(&mut self) {
        self.memory.refill.put_now(self.place);
        self.memory.held.fetch_sub(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::lease::{Arrivals, Span};
    use crate::outcome::Tally;
    use crate::ring::RawSpan;

    const PAGE: usize = 4096;

    /// Takes in completions as from the kernel: a span of each of these chunks.
    fn told(queue: &Rc<RxShared>, chunks: std::ops::Range<usize>) -> Vec<Span> {
        let mut arrivals = Arrivals::new(Some(Rc::clone(queue)));
        let told: Vec<_> = chunks.map(|it| RawSpan { begin: (it * PAGE) as u64, len: 9 }).collect();
        let (spans, bytes) = arrivals.push_told(&told);
        queue.arrived(spans, bytes, -1);
        arrivals.collect()
    }

    #[test]
    fn a_span_that_outlives_its_driver_goes_back_for_the_others_at_once() {
        let (first, second) = (Rc::<Pending>::default(), Rc::<Pending>::default());
        let (queue, given_back) = RxShared::without_kernel(&first, 8, PAGE);
        let imported = queue.imported(&second);
        let (mut ours, theirs) = (told(&queue, 0..4), told(&imported, 4..8));
        assert_eq!((queue.held.get(), imported.held.get()), (4, 4));
        assert!(queue.others_hold_any() && imported.others_hold_any());
        drop(ours.pop());
        // Within a batch, which ends with the driver.
        assert_eq!(given_back(), []);
        first.close();
        queue.outlive_driver();
        assert_eq!(given_back(), [3 * PAGE as u64]);
        drop(ours.pop());
        assert_eq!(given_back(), [2 * PAGE as u64]);
        assert!(imported.others_hold_any());
        drop((ours, queue));
        assert_eq!(given_back(), [0, PAGE as u64]);
        assert!(!imported.others_hold_any());
        drop(theirs);
        imported.publish(-1);
        assert_eq!(given_back(), (4..8).map(|chunk| chunk * PAGE as u64).collect::<Vec<_>>());
        assert_eq!(imported.memory.stats().spans, 8);
        assert_eq!(imported.memory.stats().bytes, 8 * 9);
    }

    #[test]
    fn drivers_of_several_threads_give_back_each_chunk_once() {
        const THREADS: usize = 3;
        const EACH: usize = 64;
        const ROUNDS: usize = 500;
        let (memory, mut kernel) = RxMemory::without_kernel(THREADS * EACH, THREADS * EACH, PAGE);
        let memory = Arc::new(memory);
        let mut given_back = vec![0; THREADS * EACH];
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let memory = Arc::clone(&memory);
                scope.spawn(move || {
                    let pending = Rc::<Pending>::default();
                    let queue = RxShared::new(&pending, 0, None, 0, memory);
                    for round in 0..ROUNDS {
                        let mut spans = told(&queue, thread * EACH..(thread + 1) * EACH);
                        // In parts, some of which go with the next batch.
                        drop(spans.split_off(round % EACH));
                        if round % 3 == 0 {
                            queue.publish(-1);
                        }
                        drop(spans);
                    }
                    pending.close();
                    queue.outlive_driver();
                    assert!(!queue.holds_any());
                });
            }
            let mut left = THREADS * EACH * ROUNDS;
            while left > 0 {
                for off in kernel.take(u32::MAX) {
                    assert_eq!(off as usize % PAGE, 0);
                    given_back[off as usize / PAGE] += 1;
                    left -= 1;
                }
                // Entries that found no room wait for the next caller.
                Batch::default().publish(&memory.refill);
            }
        });
        assert!(given_back.iter().all(|times| *times == ROUNDS), "{given_back:?}");
        assert_eq!(memory.held.load(Relaxed), 0);
        assert!(!memory.refill.has_untaken());
    }

    #[test]
    fn what_no_ring_holds_any_more_is_in_the_refill_queue() {
        let (memory, _kernel) = RxMemory::without_kernel(8, 8, PAGE);
        let memory = Arc::new(memory);
        let step = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            let (of_other, step_of_other) = (Arc::clone(&memory), &step);
            scope.spawn(move || {
                let pending = Rc::<Pending>::default();
                let queue = RxShared::new(&pending, 0, None, 0, of_other);
                let spans = told(&queue, 0..1);
                drop(spans);
                step_of_other.wait();
                step_of_other.wait();
                queue.publish(-1);
            });
            let pending = Rc::<Pending>::default();
            let queue = RxShared::new(&pending, 0, None, 0, Arc::clone(&memory));
            step.wait();
            let held = memory.refill.locked(|| {
                step.wait();
                // The other is about to put it there.
                thread::sleep(Duration::from_millis(500));
                queue.others_hold_any()
            });
            assert!(held, "nobody holds the chunk, and the kernel can't have it");
        });
    }

    #[test]
    fn what_is_given_back_after_the_driver_went_is_there_for_others_also_while_a_handle_is_left() {
        let (first, second) = (Rc::<Pending>::default(), Rc::<Pending>::default());
        let (queue, given_back) = RxShared::without_kernel(&first, 8, PAGE);
        let imported = queue.imported(&second);
        let ours = told(&queue, 0..4);
        first.leave();
        drop(ours);
        assert_eq!(given_back().len(), 4, "chunks that the others get");
        assert!(!imported.others_hold_any());
    }

    fn counting() -> (Arc<RxMemory>, Arc<Backing>) {
        let statistics = crate::memory::map(PAGE, rustix::mm::MapFlags::PRIVATE, None).unwrap();
        let (mut memory, _) = RxMemory::without_kernel(8, 8, PAGE);
        memory.counts_at(Arc::clone(&statistics));
        (Arc::new(memory), statistics)
    }

    /// The kernel counts for rings of several threads without a lock (`zcrx_stat_add`): a thread interrupted
    /// between load and store sets the count back.
    #[test]
    fn a_count_of_copies_that_goes_back_is_survived() {
        let (memory, statistics) = counting();
        let pending = Rc::<Pending>::default();
        let queue = RxShared::new(&pending, 0, None, 0, memory);
        let count = |bytes| {
            // SAFETY: an aligned word of the mapping.
            unsafe {
                std::sync::atomic::AtomicU64::from_ptr(statistics.start().add(8).as_ptr().cast())
            }
            .store(bytes, Relaxed);
        };
        count(1 << 20);
        let mut flow = crate::op::Flow::open(Rc::clone(&queue), None);
        flow.bytes = 1 << 20;
        count(4_096);
        assert_eq!(flow.weigh(), None);
        assert_eq!(flow.tally(), Tally { unknown: 1 << 20, ..Tally::default() });
        // It has not come farther than before, but may have been set back.
        count(1 << 20);
        let other = queue.imported(&pending);
        let second = crate::op::Flow::open(other, None);
        flow.bytes = 9;
        assert_eq!(flow.tally(), Tally { unknown: 9, ..Tally::default() });
        drop(second);
    }

    #[test]
    fn receives_that_begin_at_once_are_not_alone() {
        const ROUNDS: usize = 200_000;
        let (memory, _statistics) = counting();
        let round = std::sync::Barrier::new(2);
        let alone: usize = thread::scope(|scope| {
            let begin = || {
                let pending = Rc::<Pending>::default();
                let queue = RxShared::new(&pending, 0, None, 0, Arc::clone(&memory));
                let mut alone = 0;
                for _ in 0..ROUNDS {
                    round.wait();
                    let flow = crate::op::Flow::open(Rc::clone(&queue), None);
                    round.wait();
                    alone += usize::from(flow.alone && queue.begun() == flow.begun);
                    round.wait();
                }
                alone
            };
            let other = scope.spawn(begin);
            begin() + other.join().unwrap()
        });
        assert_eq!(alone, 0, "of {ROUNDS}");
    }

    #[test]
    fn spans_of_one_chunk_are_not_taken_for_as_many_chunks() {
        const CHUNK: usize = 16 * PAGE;
        let pending = Rc::<Pending>::default();
        let (memory, _kernel) = RxMemory::without_kernel(1_024, 512, CHUNK);
        let queue = RxShared::new(&pending, 0, None, 0, Arc::new(memory));
        let packets = (0..10 * 45).map(|packet| {
            let begin = packet / 45 * CHUNK + packet % 45 * 1_448;
            RawSpan { begin: begin as u64, len: 1_448 }
        });
        let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
        let (spans, bytes) = arrivals.push_told(&packets.collect::<Vec<_>>());
        queue.arrived(spans, bytes, -1);
        // It has tried, and there is no ring.
        assert_eq!(queue.memory.stopped(), None, "10 of 512 chunks are held");
    }

    #[test]
    fn a_nic_that_found_no_chunk_gets_what_was_given_back_before_more_memory() {
        let pending = Rc::<Pending>::default();
        let (queue, given_back) = RxShared::without_kernel(&pending, 8, PAGE);
        let mut spans = told(&queue, 0..4);
        drop(spans.split_off(1));
        assert_eq!(given_back(), []);
        queue.fell_short(-1);
        assert_eq!(given_back().len(), 3);
    }
}
