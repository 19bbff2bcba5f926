//! The rings that have registered a memory, and in which slots.
//!
//! Contracts:
//! - a look-up takes no lock, and costs one load for the first ring;
//! - a ring adds and removes its entry on its own thread, and looks up only that entry;
//! - a registration ends with the memory: its rings are told, and clear their slots with their next turn.

use std::mem;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, OnceLock};

/// How a driver has pinned the pages of a region that it [registered](crate::Driver::register).
///
/// ```
/// use handoff::{Driver, Pinning, Region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (one, other) = (Driver::new()?, Driver::new()?);
/// # if one.ring_unavailable().is_some() { return Ok(()) }
/// let mut region = Region::anonymous(4096)?;
/// assert_eq!(one.register(&region)?, Pinning::Own);
/// let frozen = region.take(4096).unwrap().freeze();
/// match other.register(&frozen)? {
///     Pinning::Shared => println!("both drivers have the same pinned pages"),
///     Pinning::Again(reason) => println!("pinned twice: {reason}"),
///     Pinning::Own => unreachable!("the first driver has them"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// The pages were pinned for this driver, the first one with the region.
    Own,
    /// Other drivers have them pinned, and this one shares that: the pages count once against the limit on
    /// locked memory.
    Shared,
    /// Other drivers have them pinned, and this driver pinned them once more; the reason why they are not
    /// shared.
    Again(String),
}

/// Entries made at once for the rings after the first.
const BLOCK: usize = 8;

/// Where rings have a memory: consecutive slots, each for [`SLOT_SPAN`](super::SLOT_SPAN) bytes.
#[derive(Default)]
pub(crate) struct Registrations {
    /// A ring's number, from 1, and its first slot; 0 for none.
    first: AtomicU64,
    /// The same for other rings.
    others: OnceLock<Box<Block>>,
    keeping: Mutex<Keeping>,
}

#[derive(Default)]
struct Block {
    entries: [AtomicU64; BLOCK],
    next: OnceLock<Box<Block>>,
}

/// How the pages are kept pinned for several rings.
#[derive(Default)]
pub(crate) struct Keeping {
    /// The first slot in the table of the ring that keeps memory for all others, while that ring has it.
    pub(crate) kept_in: Option<u16>,
    /// The rings that have it.
    pub(crate) places: Vec<Registration>,
}

/// Where a ring has a memory.
pub(crate) struct Registration {
    pub(crate) ring: u32,
    pub(crate) slots: Range<usize>,
    /// The ring cloned its entries from the one that keeps memory; otherwise it pinned the pages itself.
    pub(crate) shares: bool,
    /// Where the ring hears of the memory's end.
    pub(crate) departed: Arc<Departed>,
}

/// What a driver hears of memory that has gone while its ring had it.
pub(crate) struct Departed {
    slots: Mutex<Vec<Range<usize>>>,
    any: AtomicBool,
    /// Makes the ring that keeps memory let go of so many slots from the first on.
    let_go: fn(u16, usize),
    /// Ends a wait of the driver's thread.
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Departed {
    pub(crate) fn new(let_go: fn(u16, usize), tell: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { slots: Mutex::default(), any: AtomicBool::new(false), let_go, tell })
    }

    fn add(&self, slots: Range<usize>) {
        let mut all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(slots);
        self.any.store(true, Relaxed);
        drop(all);
        (self.tell)();
    }

    /// Whether there may be slots to clear.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// The slots to clear.
    pub(crate) fn take(&self) -> Vec<Range<usize>> {
        let mut all = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Relaxed);
        mem::take(&mut all)
    }
}

fn pack(ring: u32, first_slot: u16) -> u64 {
    (u64::from(ring) << 32) | u64::from(first_slot)
}

fn is_of(packed: u64, ring: u32) -> bool {
    packed != 0 && (packed >> 32) as u32 == ring
}

impl Registrations {
    /// The first slot of the memory in the table of `ring`.
    #[inline]
    pub(crate) fn of(&self, ring: u32) -> Option<u16> {
        let first = self.first.load(Relaxed);
        if is_of(first, ring) { Some(first as u16) } else { self.among_others(ring) }
    }

    #[inline]
    fn among_others(&self, ring: u32) -> Option<u16> {
        self.others.get().and_then(|block| block.find(ring))
    }

    /// Held while a ring adds or removes the memory.
    pub(crate) fn keeping(&self) -> MutexGuard<'_, Keeping> {
        self.keeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring has the memory from here on.
    pub(crate) fn enter(&self, ring: u32, first_slot: u16) {
        let packed = pack(ring, first_slot);
        if replaces(&self.first, 0, packed) {
            return;
        }
        let mut block = &self.others;
        loop {
            let here = block.get_or_init(Box::default);
            if here.entries.iter().any(|entry| replaces(entry, 0, packed)) {
                return;
            }
            block = &here.next;
        }
    }

    /// A ring no longer has the memory; returns where it was.
    pub(crate) fn leave(&self, ring: u32) -> Option<u16> {
        let first_slot = self.of(ring)?;
        let packed = pack(ring, first_slot);
        let mut left = replaces(&self.first, packed, 0);
        let mut block = &self.others;
        while let (false, Some(here)) = (left, block.get()) {
            left = here.entries.iter().any(|entry| replaces(entry, packed, 0));
            block = &here.next;
        }
        Some(first_slot)
    }
}

impl Drop for Registrations {
    /// The memory goes. The kernel has its pages until the slots are cleared, and nobody names these any more.
    fn drop(&mut self) {
        let keeping = self.keeping.get_mut().unwrap_or_else(PoisonError::into_inner);
        let places = mem::take(&mut keeping.places);
        if let (Some(place), Some(first)) = (places.first(), keeping.kept_in.take()) {
            (place.departed.let_go)(first, place.slots.len());
        }
        for place in places {
            place.departed.add(place.slots);
        }
    }
}

/// The store tells other threads only of the entry itself.
fn replaces(entry: &AtomicU64, before: u64, after: u64) -> bool {
    entry.compare_exchange(before, after, Relaxed, Relaxed).is_ok()
}

impl Block {
    #[cold]
    fn find(&self, ring: u32) -> Option<u16> {
        let here = self.entries.iter().map(|entry| entry.load(Relaxed));
        let found = here.filter(|&packed| is_of(packed, ring)).map(|packed| packed as u16).next();
        found.or_else(|| self.next.get()?.find(ring))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rings_come_and_go(steps in prop::collection::vec((1u32..40, any::<u16>()), 1..300)) {
            let registrations = Registrations::default();
            let mut model = HashMap::new();
            for (ring, slot) in steps {
                match model.remove(&ring) {
                    Some(slot) => prop_assert_eq!(registrations.leave(ring), Some(slot)),
                    None => {
                        prop_assert_eq!(registrations.leave(ring), None);
                        registrations.enter(ring, slot);
                        model.insert(ring, slot);
                    }
                }
                for ring in 1..40 {
                    prop_assert_eq!(registrations.of(ring), model.get(&ring).copied());
                }
            }
        }
    }
}
