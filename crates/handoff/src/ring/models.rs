//! Models of the keeper, and of refill queues that rings share.

use std::io;
use std::sync::Arc;

use loom::thread;
use rustix::mm::MapFlags;

use super::keeper::{Keeper, Table, take_if_unused};
use super::refill::{Batch, Kernel};
use crate::memory::{Backing, Departed, Registration, map};
use crate::sync::{Mutex, model};

/// A table without a kernel: the addresses of what is pinned in its slots.
struct Pinned(Mutex<Vec<Option<usize>>>);

/// A ring without a kernel: its one entry.
#[derive(Default)]
struct Entry {
    names: Mutex<Option<usize>>,
    /// It takes no memory, as a ring whose table has another user.
    refuses: bool,
}

fn address(backing: &Backing) -> usize {
    backing.start().addr().get()
}

impl Table for Arc<Pinned> {
    type Other = Entry;

    fn lend(&self, first: usize, other: &Entry, _: usize, _: usize) -> io::Result<()> {
        let kept = self.0.lock().unwrap()[first];
        if other.refuses && kept.is_some() {
            return Err(io::Error::other("refuses"));
        }
        *other.names.lock().unwrap() = kept;
        Ok(())
    }

    fn pin(&self, backing: &Backing, first: usize, _: usize) -> io::Result<()> {
        let before = self.0.lock().unwrap()[first].replace(address(backing));
        assert_eq!(before, None, "a slot that was taken is empty");
        Ok(())
    }

    fn clear(&self, first: usize, _: usize) {
        self.0.lock().unwrap()[first] = None;
    }
}

/// A keeper, and its table.
struct Shared {
    keeper: Keeper<Arc<Pinned>>,
    table: Arc<Pinned>,
}

fn keeper_of(slots: usize) -> Arc<Shared> {
    let table = Arc::new(Pinned(Mutex::new(vec![None; slots])));
    Arc::new(Shared { keeper: Keeper::new(Arc::clone(&table), slots as u32), table })
}

fn memory() -> Arc<Backing> {
    map(4096, MapFlags::PRIVATE, None).unwrap()
}

/// A ring takes memory from the keeper, as `Ring::register` does; returns whether it has it.
fn take(shared: &Shared, backing: &Backing, ring: u32, entry: &Entry) -> bool {
    let mut keeping = backing.registrations().keeping();
    let shares = shared.keeper.share(entry, backing, &mut keeping, 0, 1).is_ok();
    if shares {
        let departed = Departed::new(|_, _| {}, Box::new(|| {}));
        keeping.places.push(Registration { ring, slots: 0..1, shares, departed });
    }
    shares
}

/// As `Ring::leave` does.
fn leave(shared: &Shared, backing: &Backing, ring: u32) {
    let mut keeping = backing.registrations().keeping();
    keeping.places.retain(|place| place.ring != ring);
    if let Some(first) = take_if_unused(&mut keeping) {
        shared.keeper.let_go(first, 1);
    }
}

/// Memory that two rings share stays pinned as long as one of them has it, and no longer.
#[test]
fn the_keeper_has_what_a_ring_has_from_it() {
    model(|| {
        let (shared, backing) = (keeper_of(2), memory());
        let rings = [1, 2].map(|ring| {
            let (shared, backing) = (Arc::clone(&shared), Arc::clone(&backing));
            move || {
                let entry = Entry::default();
                assert!(take(&shared, &backing, ring, &entry));
                assert_eq!(*entry.names.lock().unwrap(), Some(address(&backing)));
                // A further ring could have it, too.
                let kept_in = backing.registrations().keeping().kept_in;
                let kept_in = kept_in.expect("a ring has it from there");
                shared.table.lend(kept_in.into(), &entry, 0, 1).unwrap();
                assert_eq!(*entry.names.lock().unwrap(), Some(address(&backing)));
                leave(&shared, &backing, ring);
            }
        });
        let [first, second] = rings;
        let second = thread::spawn(second);
        first();
        second.join().unwrap();
        assert_eq!(*shared.table.0.lock().unwrap(), [None, None]);
    });
}

/// Slots that one memory leaves while another takes them are empty then, and keep what the other put there.
#[test]
fn slots_are_empty_when_others_take_them() {
    model(|| {
        let shared = keeper_of(1);
        let rings = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            move || {
                let (entry, backing) = (Entry::default(), memory());
                // There is room for one.
                if take(&shared, &backing, 1, &entry) {
                    assert_eq!(*shared.table.0.lock().unwrap(), [Some(address(&backing))]);
                    leave(&shared, &backing, 1);
                }
            }
        });
        let [first, second] = rings;
        let second = thread::spawn(second);
        first();
        second.join().unwrap();
        assert_eq!(*shared.table.0.lock().unwrap(), [None]);
    });
}

/// Memory that a ring refuses once it is pinned leaves no slot behind, pinned or taken.
#[test]
fn what_a_ring_refuses_is_not_kept() {
    model(|| {
        let shared = keeper_of(1);
        let of_other = Arc::clone(&shared);
        let other = thread::spawn(move || {
            let entry = Entry { refuses: true, ..Entry::default() };
            assert!(!take(&of_other, &memory(), 1, &entry));
        });
        let (entry, backing) = (Entry::default(), memory());
        if take(&shared, &backing, 2, &entry) {
            leave(&shared, &backing, 2);
        }
        other.join().unwrap();
        assert!(take(&shared, &backing, 2, &entry));
    });
}

/// What two rings give back while the kernel takes entries arrives once and in the order of each; the kernel reads no
/// entry before it is written, and none is written before the kernel has taken what was there.
#[test]
fn what_two_rings_give_back_arrives_once() {
    model(|| {
        let (mut kernel, queue) = Kernel::and_queue(2);
        let queue = Arc::new(queue);
        let rings = [10, 20].map(|ring| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let batch = Batch::default();
                batch.put_first(ring, &queue);
                batch.put(ring + 1);
                batch.publish(&queue);
            })
        });
        let mut arrived = kernel.take(2);
        arrived.extend(kernel.take(2));
        for thread in rings {
            thread.join().unwrap();
        }
        while arrived.len() < 4 {
            Batch::default().publish(&queue);
            arrived.extend(kernel.take(2));
        }
        assert!(!queue.has_untaken());
        for ring in [10, 20] {
            let of_ring = arrived.iter().filter(|off| **off / ring == 1);
            assert!(of_ring.eq(&[ring, ring + 1]), "{arrived:?}");
        }
    });
}

/// A driver that has gone gives back at once, among the batches of others.
#[test]
fn what_a_gone_driver_gives_back_arrives_once() {
    model(|| {
        let (mut kernel, queue) = Kernel::and_queue(1);
        let queue = Arc::new(queue);
        let of_gone = Arc::clone(&queue);
        let gone = thread::spawn(move || {
            of_gone.put_now(1);
            of_gone.put_now(2);
        });
        let of_batch = Arc::clone(&queue);
        let batch = thread::spawn(move || {
            let batch = Batch::default();
            batch.put_first(3, &of_batch);
            batch.publish(&of_batch)
        });
        let mut arrived = kernel.take(1);
        gone.join().unwrap();
        batch.join().unwrap();
        while arrived.len() < 3 {
            Batch::default().publish(&queue);
            arrived.extend(kernel.take(1));
        }
        assert!(!queue.has_untaken());
        assert!(arrived.iter().filter(|off| **off < 3).eq(&[1, 2]), "{arrived:?}");
    });
}
