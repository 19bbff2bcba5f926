//! Models of an rx queue that rings share, and of the way home from other threads.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use handoff_sys::zcrx;
use loom::thread;
use rustix::mm::MapFlags;

use super::pending::Pending;
use super::returns::Returns;
use super::rx_memory::{RxMemory, RxShortage};
use super::rx_shared::RxShared;
use crate::memory::map;
use crate::op::Flow;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Parker, Word, model, reads, writes};

const PAGE: usize = 4096;

/// A ring that receives from the queue.
fn ring(memory: &Arc<RxMemory>) -> (Rc<Pending>, Rc<RxShared>) {
    let pending = Rc::<Pending>::default();
    let queue = RxShared::new(&pending, 0, None, 0, Arc::clone(memory));
    (pending, queue)
}

/// A ring that sees that no other ring holds a span finds all chunks of the others in the refill queue.
fn chunks_that_nobody_holds_are_given_back(give_back: fn(&Pending, &RxShared)) {
    model(move || {
        let (memory, mut kernel) = RxMemory::without_kernel(2, 2, PAGE);
        let memory = Arc::new(memory);
        let holds = Arc::new(AtomicBool::new(false));
        let (of_other, begins) = (Arc::clone(&memory), Arc::clone(&holds));
        let other = thread::spawn(move || {
            let (pending, queue) = ring(&of_other);
            queue.arrived(1, 9, -1);
            begins.store(true, Release);
            give_back(&pending, &queue);
        });
        let (_pending, queue) = ring(&memory);
        if holds.load(Acquire) && !queue.others_hold_any() {
            assert_eq!(kernel.take(1), [PAGE as u64], "nobody holds the chunk");
        }
        other.join().unwrap();
        assert!(!queue.others_hold_any());
    });
}

#[test]
fn chunks_that_a_driver_published_are_given_back() {
    chunks_that_nobody_holds_are_given_back(|_, queue| {
        queue.give_back(PAGE as u64);
        queue.publish(-1);
    });
}

#[test]
fn chunks_of_a_driver_that_went_are_given_back() {
    chunks_that_nobody_holds_are_given_back(|pending, queue| {
        pending.close();
        queue.give_back(PAGE as u64);
    });
}

/// The spans that two rings hold add up, in whatever order they come and go.
#[test]
fn spans_of_all_rings_add_up() {
    model(|| {
        let (memory, _kernel) = RxMemory::without_kernel(4, 4, PAGE);
        let memory = Arc::new(memory);
        let holds_one = |memory: Arc<RxMemory>, first: usize| {
            let (_pending, queue) = ring(&memory);
            queue.arrived(2, 18, -1);
            queue.give_back((first * PAGE) as u64);
            queue.publish(-1);
        };
        let of_other = Arc::clone(&memory);
        let other = thread::spawn(move || holds_one(of_other, 0));
        holds_one(Arc::clone(&memory), 2);
        other.join().unwrap();
        let stats = memory.stats();
        assert_eq!((memory.held.load(Relaxed), stats.spans, stats.bytes), (2, 4, 36));
    });
}

/// Rings that run short at once give the kernel each area once, and each of them learns that there are more chunks.
#[test]
fn an_area_is_added_once() {
    model(|| {
        let (memory, _kernel) = RxMemory::without_kernel(2, 1, PAGE);
        let memory = Arc::new(memory);
        let added = Arc::new(Mutex::new(Vec::new()));
        let grow = |memory: &RxMemory, added: &Mutex<Vec<u64>>| {
            let grown = memory.grow_by(1, RxShortage::Held, |area| {
                let mut added = added.lock().unwrap();
                added.push(area.len);
                area.rq_area_token = (added.len() as u64) << zcrx::AREA_SHIFT;
                Ok(())
            });
            assert!(grown, "the area has more chunks than one");
        };
        let (of_other, by_other) = (Arc::clone(&memory), Arc::clone(&added));
        let other = thread::spawn(move || grow(&of_other, &by_other));
        grow(&memory, &added);
        other.join().unwrap();
        assert_eq!(*added.lock().unwrap(), [PAGE as u64]);
        assert_eq!((memory.chunks(), memory.steps().len()), (2, 1));
        assert_eq!(memory.stopped(), None);
    });
}

/// A receive that is told of its own copies was alone: the copies of another receive are never among them.
#[test]
fn a_receive_is_not_told_of_copies_for_others() {
    model(|| {
        let statistics = map(PAGE, MapFlags::PRIVATE, None).unwrap();
        let (mut memory, _kernel) = RxMemory::without_kernel(2, 2, PAGE);
        memory.counts_at(Arc::clone(&statistics));
        memory.shared.store(true, Relaxed);
        let memory = Arc::new(memory);
        let receive = |memory: Arc<RxMemory>, copied: Word<AtomicU64>, bytes: u64| {
            let (_pending, queue) = ring(&memory);
            let mut flow = Flow::open(queue, None);
            // The kernel copies all of them.
            copied.fetch_add(bytes, Relaxed);
            flow.bytes = 100;
            let tally = flow.tally();
            assert!(tally.unknown == 100 || tally.copied == bytes, "{tally:?}");
        };
        // SAFETY: the models touch no memory.
        let [one, other] = [(); 2].map(|()| unsafe { Word::at(statistics.start().add(8)) });
        let of_other = Arc::clone(&memory);
        let other = thread::spawn(move || receive(of_other, other, 1));
        receive(memory, one, 2);
        other.join().unwrap();
    });
}

/// The driver sleeps until places were left, and uses their memory behind all that the threads did with it.
#[test]
fn what_other_threads_leave_wakes_the_driver_and_comes_before_it() {
    model(|| {
        let driver = Arc::<Parker>::default();
        let wakes = Arc::clone(&driver);
        let returns = Arc::new(Returns::new(Box::new(move || wakes.end_wait())));
        let memory = Arc::new([0_u8; 2]);
        let threads = [0, 1].map(|place| {
            let (returns, memory) = (Arc::clone(&returns), Arc::clone(&memory));
            thread::spawn(move || {
                reads(&raw const memory[place]);
                returns.leave(place as u32);
            })
        });
        let (mut left, mut all) = (Vec::new(), 0);
        while all < 2 {
            if !returns.any() {
                driver.wait();
                continue;
            }
            returns.take(&mut left);
            for place in left.drain(..) {
                writes((&raw const memory[place as usize]).cast_mut(), 1);
                all += 1;
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!returns.any());
    });
}

/// Counts its end.
struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A place that is left while the driver goes gives up what it keeps once, and another place keeps it.
#[test]
fn what_a_place_keeps_goes_once_when_the_driver_goes() {
    model(|| {
        let returns = Arc::new(Returns::new(Box::new(|| {})));
        let ends = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let leaves = Arc::clone(&returns);
        let other = thread::spawn(move || leaves.leave(0));
        returns
            .close(ends.iter().map(|ends| Some(Box::new(Kept(Arc::clone(ends))) as _)).collect());
        other.join().unwrap();
        assert_eq!(ends.each_ref().map(|ends| ends.load(Relaxed)), [1, 0]);
        returns.leave(1);
        assert_eq!(ends[1].load(Relaxed), 1);
    });
}
