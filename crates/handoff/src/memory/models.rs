//! Models of pools, and of what rings know of a memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use loom::thread;
use rustix::mm::MapFlags;

use super::registrations::Registrations;
use super::*;
use crate::sync::{AtomicUsize, Mutex, Parker, model, writes};

const PAGE: usize = 4096;

fn pool_of(buffers: usize) -> BufferPool {
    let region = Region::anonymous(PAGE).unwrap();
    let pool = BufferPool::new(region, PAGE / buffers).unwrap();
    assert_eq!(pool.buffers(), buffers);
    pool
}

/// Writes all of a buffer, as far as the model is concerned: nobody else may do so meanwhile.
fn fill(buffer: &mut Buffer) {
    for at in 0..2 {
        writes(buffer[at..].as_mut_ptr(), 1);
    }
}

fn poll(wait: &mut GetBuffer, waker: &Waker) -> Poll<Buffer> {
    Pin::new(wait).poll(&mut Context::from_waker(waker))
}

/// A buffer whose pieces go on two threads is free once, and its next user comes behind all that these threads wrote.
#[test]
fn a_buffer_is_free_behind_the_last_of_its_pieces() {
    model(|| {
        let pool = pool_of(1);
        let mut rest = pool.try_get().unwrap();
        let head = rest.split_to(1);
        let threads = [head, rest].map(|mut piece| {
            thread::spawn(move || {
                writes(piece.as_mut_ptr(), 1);
                drop(piece);
            })
        });
        let mut next = Arc::<Parker>::default().block_on(pool.get());
        fill(&mut next);
        assert!(pool.try_get().is_none());
        drop(next);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(pool.free(), 1);
    });
}

/// A piece that is split on one thread while another thread drops its neighbour keeps the buffer.
#[test]
fn a_piece_that_is_split_keeps_the_buffer() {
    model(|| {
        let pool = pool_of(1);
        let mut rest = pool.try_get().unwrap();
        let head = rest.split_to(1);
        let splits = thread::spawn(move || {
            let mut tail = rest.split_to(1);
            writes(tail.as_mut_ptr(), 1);
            drop(rest);
            drop(tail);
        });
        let drops = thread::spawn(move || drop(head));
        if let Some(mut next) = pool.try_get() {
            fill(&mut next);
            assert!(pool.try_get().is_none());
        }
        splits.join().unwrap();
        drops.join().unwrap();
        assert_eq!(pool.free(), 1);
    });
}

/// A wait that is dropped while another thread gives a buffer back passes it on: to the next waiter, or to the pool.
#[test]
fn a_dropped_wait_loses_no_buffer() {
    model(|| {
        let pool = pool_of(1);
        let held = pool.try_get().unwrap();
        let of_first = pool.clone();
        let first = thread::spawn(move || {
            let mut wait = of_first.get();
            let _ = poll(&mut wait, Waker::noop());
        });
        let of_second = pool.clone();
        let second = thread::spawn(move || {
            fill(&mut Arc::<Parker>::default().block_on(of_second.get()));
        });
        drop(held);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(pool.free(), 1);
    });
}

/// Of two waiters and two buffers given back, each waiter gets one, and none sleeps on.
#[test]
fn each_waiter_gets_a_buffer() {
    model(|| {
        let pool = pool_of(2);
        let mut held = [(); 2].map(|()| pool.try_get().unwrap());
        held.iter_mut().for_each(fill);
        let waiters = [(); 2].map(|()| {
            let pool = pool.clone();
            thread::spawn(move || {
                let mut got = Arc::<Parker>::default().block_on(pool.get());
                fill(&mut got);
                got
            })
        });
        drop(held);
        let got = waiters.map(|waiter| waiter.join().unwrap());
        assert_ne!(got[0].as_ptr(), got[1].as_ptr());
        assert_eq!(pool.free(), 0);
    });
}

/// The first waiter gets the first buffer: neither a later waiter nor a look at the pool comes before it.
#[test]
fn nobody_overtakes_the_first_waiter() {
    model(|| {
        let pool = pool_of(2);
        let held = [(); 2].map(|()| pool.try_get().unwrap());
        let [mut first, mut second] = [(); 2].map(|()| pool.get());
        for wait in [&mut first, &mut second] {
            assert!(poll(wait, Waker::noop()).is_pending());
        }
        let threads = held.map(|held| thread::spawn(move || drop(held)));
        assert!(pool.try_get().is_none());
        let got = poll(&mut second, Waker::noop());
        if got.is_ready() {
            assert!(poll(&mut first, Waker::noop()).is_ready());
        }
        drop((got, first, second));
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(pool.free(), 2);
    });
}

/// Who waits with another waker than before is woken by it, whenever the buffer comes.
#[test]
fn the_latest_waker_is_woken() {
    model(|| {
        let pool = pool_of(1);
        let held = pool.try_get().unwrap();
        let mut wait = pool.get();
        assert!(poll(&mut wait, Waker::noop()).is_pending());
        let gives_back = thread::spawn(move || drop(held));
        drop(Arc::<Parker>::default().block_on(wait));
        gives_back.join().unwrap();
        assert_eq!(pool.free(), 1);
    });
}

/// A ring finds its own place in a memory, without a lock and among others that come and go, and no other's.
#[test]
fn a_ring_finds_its_own_place() {
    model(|| {
        let registrations = Arc::new(Registrations::default());
        // The first ring has a place of its own.
        registrations.enter(1, 11);
        let comes_and_goes = |ring: u32| {
            let all = Arc::clone(&registrations);
            move || {
                all.enter(ring, ring as u16 + 10);
                assert_eq!(all.of(ring), Some(ring as u16 + 10));
                assert_eq!(all.leave(ring), Some(ring as u16 + 10));
                assert_eq!(all.of(ring), None);
            }
        };
        let other = thread::spawn(comes_and_goes(2));
        comes_and_goes(3)();
        other.join().unwrap();
        assert_eq!(registrations.of(1), Some(11));
    });
}

loom::lazy_static! {
    /// How often the keeper was made to let go.
    static ref LET_GO: AtomicUsize = AtomicUsize::new(0);
}

fn let_go(first: u16, run: usize) {
    assert_eq!((first, run), (7, 1));
    LET_GO.fetch_add(1, Relaxed);
}

/// When memory goes on any thread, each ring that had it hears of its slots once, and the keeper once; no ring sleeps
/// on, also if it takes earlier slots just then.
#[test]
fn each_ring_hears_of_memory_that_is_gone() {
    model(|| {
        let [one, other] = [(); 2].map(|()| {
            let parker = Arc::<Parker>::default();
            let told = Arc::clone(&parker);
            (parker, Departed::new(let_go, Box::new(move || told.end_wait())))
        });
        let registered = |rings: &[(u32, &Arc<Departed>, usize)]| {
            let memory = Arc::new(Registrations::default());
            for &(ring, departed, slot) in rings {
                let mut keeping = memory.keeping();
                let (slots, departed) = (slot..slot + 1, Arc::clone(departed));
                keeping.places.push(Registration { ring, slots, shares: true, departed });
                memory.enter(ring, slot as u16);
            }
            memory
        };
        let both = registered(&[(1, &one.1, 3), (2, &other.1, 4)]);
        both.keeping().kept_in = Some(7);
        let alone = registered(&[(1, &one.1, 5)]);
        let threads = [(Some(alone), both.clone()), (None, both)]
            .map(|memories| thread::spawn(move || drop(memories)));
        let mut heard = Vec::new();
        while heard.len() < 2 {
            one.0.wait();
            if one.1.any() {
                heard.extend(one.1.take());
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        heard.sort_by_key(|slots| slots.start);
        assert_eq!(heard, [3..4, 5..6]);
        assert!(other.1.any() && !one.1.any());
        assert_eq!(other.1.take(), [4..5]);
        assert_eq!(LET_GO.load(Relaxed), 1);
    });
}

/// The pages of a memory: the kernel may merge them, unless a ring has them pinned.
#[derive(Default)]
struct Merged {
    rings: usize,
    huge: bool,
}

/// What a ring knows of the pages of its memory is true as long as it has the memory, whatever other rings do.
#[test]
fn what_a_ring_knows_of_its_pages_is_true() {
    model(|| {
        let backing = super::map(PAGE, MapFlags::PRIVATE, None).unwrap();
        let pages = Arc::new(Mutex::new(Merged::default()));
        let rings = [(); 2].map(|()| {
            let (backing, pages) = (Arc::clone(&backing), Arc::clone(&pages));
            move || {
                // As `Ring::register` does.
                let keeping = backing.registrations().keeping();
                pages.lock().unwrap().rings += 1;
                backing.look_again_for_huge_pages();
                drop(keeping);
                let known = backing.is_huge(|_| pages.lock().unwrap().huge);
                assert_eq!(known, pages.lock().unwrap().huge);
                let keeping = backing.registrations().keeping();
                backing.look_again_for_huge_pages();
                let mut pages = pages.lock().unwrap();
                pages.rings -= 1;
                pages.huge |= pages.rings == 0;
                drop(keeping);
            }
        });
        let [first, second] = rings;
        let second = thread::spawn(second);
        first();
        first();
        second.join().unwrap();
    });
}
