//! What all rings that receive from an rx queue share: its memory, its refill queue, its counts.
//!
//! Contracts:
//! - the memory is one piece of address space, of which the kernel has the beginning. Each added area lies
//!   behind the earlier ones and is as large as all of them. So a place says by itself where it is, and no
//!   ring has to look at another;
//! - the kernel's part stays mapped until the last ring is closed and the last span is gone.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use handoff_sys::zcrx;

use super::area;
use super::rx_stats::RxStats;
use crate::mechanism::ReceiveEngine;
use crate::memory::{Backing, page_size};
use crate::ring::memlock_or;
use crate::ring::refill::RefillQueue;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Word, fence};

/// A step in the growth of an rx queue's area: see [`RxQueue::growth`](crate::RxQueue::growth).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxGrowth {
    /// Time since the queue was bound.
    pub after: Duration,
    /// Chunks after this step.
    pub chunks: usize,
    /// What made it grow.
    pub cause: RxShortage,
}

/// Why the area of an rx queue grew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RxShortage {
    /// The kernel reported that it found no free chunk.
    NoChunk,
    /// So many spans were held that the NIC's ring would have run empty.
    Held,
}

impl std::fmt::Display for RxShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoChunk => "no free chunk",
            Self::Held => "too many chunks held",
        })
    }
}

/// The memory of a queue, and its counts.
pub(super) struct RxMemory {
    pub(super) engine: ReceiveEngine,
    pub(super) region: Arc<Backing>,
    pub(super) chunk: usize,
    /// Entries of the NIC's ring, if there is a NIC.
    ring: Option<usize>,
    pub(super) refill: RefillQueue,
    /// Where the kernel counts copies, in the refill queue's memory.
    statistics: Option<(Arc<Backing>, usize)>,
    /// Bytes of the first area.
    first: usize,
    /// Bytes that the kernel has.
    given: AtomicUsize,
    /// The kernel may get more memory.
    grows: AtomicBool,
    growth: Mutex<Growth>,
    since: Instant,
    /// Another ring may receive from the queue, too.
    pub(super) shared: AtomicBool,
    /// A shortfall was reported.
    warned: AtomicBool,
    /// Spans that all rings hold together, as of their last arrivals and submissions.
    pub(super) held: AtomicUsize,
    pub(super) spans: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) shortages: AtomicU64,
    pub(super) flushes: AtomicU64,
    /// Receivers that the kernel's count of copies covers: all that began; in the lower half, those that
    /// are left.
    receivers: AtomicU64,
}

#[derive(Default)]
struct Growth {
    steps: Vec<RxGrowth>,
    /// Why growth ended before the limit.
    stopped: Option<String>,
}

impl RxMemory {
    /// # Safety
    ///
    /// The queue was bound with the first `first` bytes of the region, of which nobody has a piece. The kernel
    /// adds further bytes if `first` is not all. It counts at `statistics`: spans, then bytes.
    pub(super) unsafe fn new(
        engine: ReceiveEngine,
        (region, first): (Arc<Backing>, usize),
        (chunk, ring): (usize, Option<usize>),
        refill: RefillQueue,
        statistics: Option<(Arc<Backing>, usize)>,
    ) -> Self {
        Self {
            engine,
            chunk,
            ring,
            refill,
            statistics,
            first,
            given: AtomicUsize::new(first),
            grows: AtomicBool::new(first < region.len()),
            growth: Mutex::default(),
            since: Instant::now(),
            shared: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            spans: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            shortages: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            receivers: AtomicU64::new(0),
            region,
        }
    }

    pub(super) fn chunks(&self) -> usize {
        self.given.load(Relaxed) / self.chunk
    }

    pub(super) fn most_chunks(&self) -> usize {
        self.region.len() / self.chunk
    }

    /// The place in the region of bytes that the kernel reported, if such an area can exist.
    #[inline]
    pub(super) fn find(&self, place: u64, len: usize) -> Option<usize> {
        // The first area's number is 0.
        let offset = usize::try_from(place).ok()?;
        match offset.checked_add(len) {
            Some(end) if end <= self.first => Some(offset),
            _ => self.find_further(place, len),
        }
    }

    #[cold]
    fn find_further(&self, place: u64, len: usize) -> Option<usize> {
        let number = (place >> zcrx::AREA_SHIFT) as u32;
        let (begin, end) = self.area(number)?;
        let offset = usize::try_from(place & ((1 << zcrx::AREA_SHIFT) - 1)).ok()?;
        (offset.checked_add(len)? <= end - begin).then_some(begin + offset)
    }

    /// Where the area of this number begins and ends.
    fn area(&self, number: u32) -> Option<(usize, usize)> {
        let (first, all) = (self.first, self.region.len());
        let (begin, end) = match number {
            0 => (0, first),
            _ => {
                let begin = first.checked_mul(1_usize.checked_shl(number - 1)?)?;
                (begin, begin.saturating_mul(2))
            }
        };
        (begin < all).then_some((begin, end.min(all)))
    }

    /// The place in memory of bytes that [`find`](Self::find) finds.
    ///
    /// # Safety
    ///
    /// `find` must find them.
    #[inline]
    pub(super) unsafe fn address(&self, place: u64, len: usize) -> NonNull<u8> {
        debug_assert!(self.find(place, len).is_some());
        let offset = if place < self.first as u64 {
            place as usize
        } else {
            self.find_further(place, len).unwrap_or_default()
        };
        // SAFETY: inside the region, as the caller says.
        unsafe { self.region.start().add(offset) }
    }

    /// Takes the number of spans held; returns whether the NIC's ring is about to run empty and more memory
    /// would help.
    #[inline]
    pub(super) fn runs_short(&self, held: usize) -> bool {
        self.grows.load(Relaxed) && self.chunks_of(held) + area::reserve(self.ring) > self.chunks()
    }

    /// Chunks that so many spans take. A chunk of a page has one packet or frame, a larger chunk many; this
    /// assumes the fewest, by the bytes per span so far.
    fn chunks_of(&self, spans: usize) -> usize {
        if self.chunk <= page_size() {
            return spans;
        }
        let bytes = self.bytes.load(Relaxed).checked_div(self.spans.load(Relaxed)).unwrap_or(0);
        spans.saturating_mul(bytes as usize).div_ceil(self.chunk)
    }

    /// Gives the kernel more of the memory, unless another ring has done so since the caller saw `seen`
    /// chunks; returns whether there are more than those.
    pub(super) fn grow(&self, ring: RawFd, id: u32, seen: usize, cause: RxShortage) -> bool {
        // SAFETY: the area is a part of the region that was not given before, and is kept as the rest is.
        self.grow_by(seen, cause, |area| unsafe { zcrx::add_area(ring, id, area) })
    }

    /// As [`grow`](Self::grow); `add` gives the kernel an area.
    pub(super) fn grow_by(
        &self,
        seen: usize,
        cause: RxShortage,
        add: impl FnOnce(&mut zcrx::Area) -> io::Result<()>,
    ) -> bool {
        // Whoever sees that it grows no more sees what it has grown to.
        if !self.grows.load(Acquire) {
            return self.chunks() > seen;
        }
        let mut growth = self.growth();
        if self.chunks() > seen || !self.grows.load(Relaxed) {
            return self.chunks() > seen;
        }
        let number = growth.steps.len() as u32 + 1;
        let (begin, end) = self.area(number).expect("what grows has a next area");
        let mut registered = zcrx::Area {
            addr: (self.region.start().as_ptr().addr() + begin) as u64,
            len: (end - begin) as u64,
            ..zcrx::Area::default()
        };
        let added = match add(&mut registered) {
            Ok(()) if registered.rq_area_token == u64::from(number) << zcrx::AREA_SHIFT => Ok(()),
            Ok(()) => Err("the kernel has numbered the area in another way".to_owned()),
            Err(error) => {
                Err(memlock_or("adding an area", (end - begin) as u64, error).to_string())
            }
        };
        match added {
            Ok(()) => {
                self.given.store(end, Relaxed);
                self.grows.store(end < self.region.len(), Release);
                let (after, chunks) = (self.since.elapsed(), self.chunks());
                tracing::info!(chunks, %cause, "the area of an rx queue has grown");
                growth.steps.push(RxGrowth { after, chunks, cause });
                true
            }
            Err(reason) => {
                let chunks = self.chunks();
                tracing::warn!(chunks, reason, "the area of an rx queue grows no further");
                self.grows.store(false, Relaxed);
                growth.stopped = Some(reason);
                false
            }
        }
    }

    pub(super) fn steps(&self) -> Vec<RxGrowth> {
        self.growth().steps.clone()
    }

    pub(super) fn stopped(&self) -> Option<String> {
        self.growth().stopped.clone()
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> RxStats {
        RxStats {
            spans: self.spans.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            copied: self.copied(),
            shared: self.shared.load(Relaxed),
            shortages: self.shortages.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }

    /// Bytes that the kernel has copied, by its own count.
    pub(super) fn copied(&self) -> Option<u64> {
        let (memory, offset) = self.statistics.as_ref()?;
        // SAFETY: the kernel was told to count here, spans and then bytes, in aligned words of memory
        // that is kept.
        let bytes: Word<AtomicU64> =
            unsafe { Word::at(memory.start().add(offset + size_of::<u64>())) };
        Some(bytes.load(Acquire))
    }

    /// A receiver begins: returns how many have by now, and whether no other is left.
    pub(super) fn begin(&self) -> (u32, bool) {
        // Who begins after others have ended sees their copies, and does not take them for its own.
        let before = self.receivers.fetch_add(1 << 32 | 1, Acquire);
        // Who sees copies for this receiver sees that it has begun.
        fence(Release);
        if !self.warned.load(Relaxed)
            && let Some(shortfall) = self.shortfall()
            && !self.warned.swap(true, Relaxed)
        {
            tracing::warn!("{shortfall}");
        }
        (((before >> 32) as u32).wrapping_add(1), before as u32 == 0)
    }

    pub(super) fn end(&self) {
        self.receivers.fetch_sub(1, Release);
    }

    /// Receivers begun so far.
    pub(super) fn begun(&self) -> u32 {
        (self.receivers.load(Relaxed) >> 32) as u32
    }

    pub(super) fn shortfall(&self) -> Option<String> {
        let connections = self.receivers.load(Relaxed) as u32 as usize;
        let chunks = if self.grows.load(Relaxed) { self.most_chunks() } else { self.chunks() };
        let need = area::chunks(self.ring, connections, self.chunk);
        (chunks < need).then(|| {
            format!(
                "the area of {chunks} chunks may run dry with {connections} connections: {need} are \
                 safe; take more memory, or lower net.ipv4.tcp_rmem"
            )
        })
    }
}

#[cfg(test)]
impl RxMemory {
    /// Makes the kernel count copies there.
    pub(super) fn counts_at(&mut self, statistics: Arc<Backing>) {
        self.statistics = Some((statistics, 0));
    }

    /// A queue without a kernel, with the first chunks given, and the kernel's end of its refill queue.
    pub(super) fn without_kernel(
        chunks: usize,
        given: usize,
        chunk: usize,
    ) -> (Self, crate::ring::refill::Kernel) {
        let private = rustix::mm::MapFlags::PRIVATE;
        let region = crate::memory::map(chunks * chunk, private, None).unwrap();
        let entries = chunks.next_power_of_two() as u32;
        let (kernel, refill) = crate::ring::refill::Kernel::and_queue(entries);
        let engine = ReceiveEngine::Zcrx;
        // SAFETY: there is no kernel.
        let memory =
            unsafe { Self::new(engine, (region, given * chunk), (chunk, None), refill, None) };
        (memory, kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn places_of_all_areas_are_found_and_no_others() {
        let (memory, _) = RxMemory::without_kernel(50, 8, PAGE);
        let place = |area: u64, offset: usize| area << zcrx::AREA_SHIFT | offset as u64;
        // 8 chunks, 8, 16, and the remaining 18.
        let areas = [(0, 8), (8, 16), (16, 32), (32, 50)];
        for (number, (begin, end)) in areas.into_iter().enumerate() {
            let (begin, len) = (begin * PAGE, (end - begin) * PAGE);
            let at = |offset, len| memory.find(place(number as u64, offset), len);
            assert_eq!(at(0, 1), Some(begin), "area {number}");
            assert_eq!(at(0, len), Some(begin));
            assert_eq!(at(len - 1, 1), Some(begin + len - 1));
            assert_eq!(at(len, 0), Some(begin + len));
            for (offset, bytes) in [(len - 1, 2), (len, 1), (0, len + 1), (1, usize::MAX)] {
                assert_eq!(at(offset, bytes), None, "area {number}, {bytes} at {offset}");
            }
        }
        for number in [4, 5, 62, 63, 64, 65, 1 << 10, u64::from(u16::MAX)] {
            assert_eq!(memory.find(place(number, 0), 0), None, "area {number}");
        }
    }

    #[test]
    fn a_region_that_is_given_whole_has_one_area() {
        let (memory, _) = RxMemory::without_kernel(8, 8, PAGE);
        assert_eq!(memory.find(1 << zcrx::AREA_SHIFT, 1), None);
        assert!(!memory.runs_short(8));
        assert!(!memory.grow(-1, 0, 8, RxShortage::Held));
        assert_eq!((memory.stopped(), memory.steps()), (None, Vec::new()));
    }

    #[test]
    fn what_cannot_grow_says_so_once_and_stays_what_it_is() {
        let (mut memory, _) = RxMemory::without_kernel(1_024, 512, PAGE);
        memory.ring = Some(0);
        assert!(!memory.runs_short(100));
        assert!(memory.runs_short(400));
        // There is no ring.
        assert!(!memory.grow(-1, 0, 512, RxShortage::Held));
        assert!(memory.stopped().is_some_and(|reason| reason.contains("adding an area")));
        assert!(!memory.runs_short(400));
        assert_eq!((memory.chunks(), memory.most_chunks()), (512, 1_024));
        // Another ring saw fewer.
        assert!(memory.grow(-1, 0, 256, RxShortage::NoChunk));
    }

    /// 45 packets in each.
    #[test]
    fn spans_of_large_chunks_count_by_their_bytes() {
        let (mut memory, _) = RxMemory::without_kernel(1_024, 512, 16 * PAGE);
        memory.ring = Some(0);
        memory.spans = AtomicU64::new(45 * 400);
        memory.bytes = AtomicU64::new(45 * 400 * 1_448);
        assert!(!memory.runs_short(45 * 300));
        assert!(memory.runs_short(45 * 340));
    }

    #[test]
    fn where_there_is_no_nic_no_ring_runs_dry() {
        let (memory, _) = RxMemory::without_kernel(512, 64, PAGE);
        assert!(!memory.runs_short(64));
    }
}
