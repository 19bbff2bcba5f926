//! An rx queue of a NIC as a source: the NIC writes payload into our memory, and we hold it until we give
//! it back.
//!
//! Minimum kernel: 6.15 (`IORING_REGISTER_ZCRX_IFQ`); 7.2 for the kernel's count of what it copied
//! nevertheless; chunks beyond a page were tried there. Capability: CAP_NET_ADMIN, for binding. NIC: a
//! driver with queues that take a provider's memory, header/data split on, and a flow rule that steers the
//! connections, and nothing else, to the queue. Ring: one built for it
//! ([`DriverBuilder::zero_copy_receive`](crate::DriverBuilder::zero_copy_receive)). Return signal: we hold
//! the NIC's chunks; a dropped span is an entry in the refill queue.
//!
//! The kernel unbinds the queue when its last ring closes, and no earlier. Linux 6.15 to 6.18 then first give
//! the chunks that we hold back to the NIC, which could write under a span. So a driver that goes leaves its
//! ring open until its last span is dropped.
//!
//! Several rings may receive from a queue ([`RxQueue::export`]). Each belongs to one thread and has its own
//! spans, which go back by the refill queue that all share ([`rx_memory`](super::rx_memory)).

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use handoff_sys::zcrx;

use super::area;
use super::dma_buf::DmaBuf;
use super::due::Due;
use super::received::Span;
use super::rx_binding::{self, RxBinding};
use super::rx_memory::{RxGrowth, RxMemory, RxShortage};
use super::span_ref::SpanRef;
use crate::error::{Error, Result};
use crate::mechanism::ReceiveEngine;
use crate::memory::{Backed, Backing, Memory, Region};
use crate::outcome::Tally;
use crate::ring::refill::Batch;
use crate::ring::{Io, Key};

/// How often at most the kernel is asked to report again that it found no chunk.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What an rx queue has received so far, by all drivers that receive from it.
///
/// ```no_run
/// # async fn example(queue: handoff::RxQueue) -> Result<(), Box<dyn std::error::Error>> {
/// let stats = queue.stats();
/// println!("{} bytes, copied {:?}; no chunk {} times", stats.bytes, stats.copied, stats.shortages);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStats {
    /// Spans handed out.
    pub spans: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Of these, bytes of packets' payload that the kernel copied into chunks, by its own count: packets that came by
    /// another way than the queue. It does not count what it copies out of packets' headers (payload below the
    /// split's threshold). `None` where the kernel doesn't count (before Linux 7.2). A lower bound where the queue is
    /// [shared](Self::shared): the kernel may lose counts when several rings count at once.
    pub copied: Option<u64>,
    /// Other drivers may receive from the queue ([`RxQueue::export`]), or may have done so.
    pub shared: bool,
    /// How often the kernel reported that the NIC's ring found no free chunk; at most ten times a second.
    /// Always 0 before Linux 7.2.
    pub shortages: u64,
    /// How often the refill queue was flushed, because the kernel needed its entries at once.
    pub flushes: u64,
}

impl RxStats {
    /// Bytes by the kernel's count. The count belongs to the queue: unlike a receiver's tally, it is known also where
    /// several connections share the queue. Where several drivers share it, the tally is known if nothing was copied;
    /// otherwise bytes not counted as copied are unknown.
    pub fn tally(&self) -> Tally {
        match self.copied {
            Some(copied) => {
                let copied = copied.min(self.bytes);
                let rest = self.bytes - copied;
                let (zero_copy, unknown) = match self.shared && copied > 0 {
                    true => (0, rest),
                    false => (rest, 0),
                };
                Tally { zero_copy, copied, unknown }
            }
            None => Tally { unknown: self.bytes, ..Tally::default() },
        }
    }
}

/// An rx queue bound to a driver, until the driver and all spans are gone.
///
/// ```no_run
/// use handoff::{Driver, Region, RxBinding};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let connection = std::net::TcpStream::connect("192.0.2.1:9000")?;
/// let driver = Driver::builder().zero_copy_receive(true).build()?;
/// let binding = RxBinding::new("eth0", 3)?;
/// let queue = driver.rx_queue(Region::anonymous(binding.area(1))?, &binding)?;
/// let mut receiver = driver.socket(connection)?.receive(&queue)?;
/// driver.block_on(async {
///     while let Some(span) = receiver.next_span().await {
///         println!("{} bytes where the NIC has put them", span?.len());
///     }
///     Ok::<_, handoff::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RxQueue {
    pub(crate) shared: Rc<RxShared>,
}

/// An rx queue for the drivers of other threads: see [`RxQueue::export`].
///
/// ```no_run
/// use handoff::{Driver, Region, RxBinding};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let connection = std::net::TcpStream::connect("192.0.2.1:9000")?;
/// let driver = Driver::builder().zero_copy_receive(true).build()?;
/// let binding = RxBinding::new("eth0", 3)?;
/// let queue = driver.rx_queue(Region::anonymous(binding.area(2))?, &binding)?;
/// let exported = queue.export()?;
/// std::thread::spawn(move || {
///     let driver = Driver::builder().zero_copy_receive(true).build()?;
///     let queue = driver.import_rx_queue(&exported)?;
///     let receiver = driver.socket(connection)?.receive(&queue)?;
///     // ...
///     Ok::<_, handoff::Error>(())
/// });
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ExportedRxQueue(Arc<Exported>);

struct Exported {
    /// By which the kernel knows the queue; before the memory, which goes later.
    descriptor: OwnedFd,
    memory: Arc<RxMemory>,
}

/// A queue as one ring sees it.
pub(crate) struct RxShared {
    /// Keeps the ring open for the spans that outlive the driver; before the memory, which goes later.
    pub(crate) ring: Cell<Option<OwnedFd>>,
    due: Weak<Due>,
    /// So that spans, which are many, give back by a plain reference.
    itself: Weak<Self>,
    /// What requests name.
    id: u32,
    memory: Arc<RxMemory>,
    /// Chunks given back since the driver last published. The batch exists only while the driver knows of it:
    /// otherwise the next chunk tells the driver.
    batch: Batch,
    /// Spans held, and how many of them the memory's count has.
    held: Cell<usize>,
    counted: Cell<usize>,
    /// The driver knows that something was given back: it publishes that with its next submission, and
    /// nobody starves.
    attended: Cell<bool>,
    /// Receivers that found no chunk.
    starving: RefCell<Vec<Key>>,
    /// When the kernel last reported a shortage, if it was not asked again since.
    short: Cell<Option<Instant>>,
}

impl RxQueue {
    /// Binds the queue; from now on it has this number at the driver, which keeps it.
    pub(crate) fn bind(
        io: &Io,
        due: &Rc<Due>,
        number: u32,
        region: &Region,
        dma_buf: Option<&DmaBuf>,
        binding: &RxBinding,
    ) -> Result<Self> {
        let ring = io.ring_descriptor().map_err(keeping_open)?;
        let (memory, id) = rx_binding::bind(io, number, region, dma_buf, binding)?;
        Ok(Self { shared: RxShared::new(due, ring, id, Arc::new(memory)) })
    }

    /// Makes this driver receive from the queue as well, and keep it.
    pub(crate) fn import(io: &Io, due: &Rc<Due>, exported: &ExportedRxQueue) -> Result<Self> {
        let Exported { descriptor, memory } = &*exported.0;
        rx_binding::ring_for(io, memory.engine)?;
        let ring = io.ring_descriptor().map_err(keeping_open)?;
        let id = zcrx::import(io.ring_raw(), descriptor.as_raw_fd()).map_err(|error| {
            let reason = match error.raw_os_error() {
                Some(libc::EPERM) => {
                    "receiving from an rx queue of another driver needs CAP_NET_ADMIN: run as root"
                }
                Some(libc::EINVAL) => CANNOT_SHARE,
                _ => return Error::io("receiving from an rx queue of another driver", error),
            };
            unavailable(memory.engine, format!("{reason} ({error})"))
        })?;
        Ok(Self { shared: RxShared::new(due, ring, id, Arc::clone(memory)) })
    }

    /// Lets drivers of other threads receive from the queue, too ([`Driver::import_rx_queue`]): each its own
    /// connections, into the same memory. The queue stays bound until all of these drivers, their spans and the
    /// returned handle are gone, in any order. The kernel reports missing chunks only to the driver that bound the
    /// queue; when that driver has gone, the area grows by the number of spans held ([`RxBinding::grows_from`]).
    ///
    /// [`Driver::import_rx_queue`]: crate::Driver::import_rx_queue
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`] if the kernel cannot do it (tried on Linux 7.2); when no descriptors
    /// are left; when the driver is gone.
    pub fn export(&self) -> Result<ExportedRxQueue> {
        let RxShared { id, memory, .. } = &*self.shared;
        let ring = self.shared.ring().ok_or(Error::DriverGone)?;
        let descriptor = zcrx::export(ring, *id).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EOPNOTSUPP) => {
                unavailable(memory.engine, format!("{CANNOT_SHARE} ({error})"))
            }
            _ => Error::io("exporting an rx queue", error),
        })?;
        memory.shared.store(true, Relaxed);
        Ok(ExportedRxQueue(Arc::new(Exported { descriptor, memory: Arc::clone(memory) })))
    }

    /// Bytes of a chunk: the unit in which the NIC takes memory.
    pub fn chunk(&self) -> usize {
        self.shared.memory.chunk
    }

    /// Chunks that the NIC has now.
    pub fn chunks(&self) -> usize {
        self.shared.memory.chunks()
    }

    /// Chunks that the NIC has at most: those of the region.
    pub fn chunks_limit(&self) -> usize {
        self.shared.memory.most_chunks()
    }

    /// Spans that the kernel has handed to this driver and nobody has dropped; each keeps a chunk.
    pub fn held(&self) -> usize {
        self.shared.held.get()
    }

    /// When, how far and why the area grew: see [`RxBinding::grows_from`].
    pub fn growth(&self) -> Vec<RxGrowth> {
        self.shared.memory.steps()
    }

    /// Why the area grows no further, if it has not reached its limit.
    pub fn growth_stopped(&self) -> Option<String> {
        self.shared.memory.stopped()
    }

    /// Why the area may run out with the receives that are under way, and then stay empty; `None` when it
    /// cannot. See [`RxBinding::area`].
    pub fn shortfall(&self) -> Option<String> {
        self.shared.memory.shortfall()
    }

    /// What was received so far.
    pub fn stats(&self) -> RxStats {
        self.shared.memory.stats()
    }
}

const CANNOT_SHARE: &str = "the kernel can't share an rx queue between rings (Linux 7.2 can)";

fn keeping_open(error: std::io::Error) -> Error {
    Error::io("keeping the ring of an rx queue open", error)
}

fn unavailable(engine: ReceiveEngine, reason: String) -> Error {
    Error::EngineUnavailable { engine: engine.name(), reason }
}

impl Memory for RxQueue {}
impl Backed for RxQueue {
    fn backing(&self) -> &Arc<Backing> {
        &self.shared.memory.region
    }
}

impl std::fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxQueue")
            .field("chunk", &self.chunk())
            .field("chunks", &self.chunks())
            .field("held", &self.held())
            .field("stats", &self.stats())
            .finish()
    }
}

impl std::fmt::Debug for ExportedRxQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = &self.0.memory;
        f.debug_struct("ExportedRxQueue")
            .field("chunk", &memory.chunk)
            .field("chunks", &memory.chunks())
            .field("stats", &memory.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl RxShared {
    /// A queue without a NIC; returns also what was given back since the last call.
    pub(crate) fn without_kernel(
        due: &Rc<Due>,
        chunks: usize,
        chunk: usize,
    ) -> (Rc<Self>, impl Fn() -> Vec<u64> + use<>) {
        let (memory, kernel) = RxMemory::without_kernel(chunks, chunks, chunk);
        let kernel = RefCell::new(kernel);
        let shared = Self::new(due, None, 0, Arc::new(memory));
        (shared, move || kernel.borrow_mut().take(u32::MAX))
    }

    /// The same queue as another driver has it.
    pub(crate) fn imported(&self, due: &Rc<Due>) -> Rc<Self> {
        self.memory.shared.store(true, Relaxed);
        Self::new(due, None, 0, Arc::clone(&self.memory))
    }
}

impl RxShared {
    fn new(due: &Rc<Due>, ring: Option<OwnedFd>, id: u32, memory: Arc<RxMemory>) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            itself: Weak::clone(itself),
            ring: Cell::new(ring),
            due: Rc::downgrade(due),
            id,
            memory,
            batch: Batch::default(),
            held: Cell::new(0),
            counted: Cell::new(0),
            attended: Cell::new(false),
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

    pub(crate) fn is_of(&self, due: &Rc<Due>) -> bool {
        std::ptr::eq(self.due.as_ptr(), Rc::as_ptr(due))
    }

    /// The ring, as long as it is kept open.
    fn ring(&self) -> Option<RawFd> {
        let ring = self.ring.take();
        let raw = ring.as_ref().map(AsRawFd::as_raw_fd);
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

    /// The span that a completion has reported.
    ///
    /// # Safety
    ///
    /// The kernel has reported these bytes, which the queue [has](Self::has), and nothing else is made of the
    /// same completion.
    #[inline]
    pub(crate) unsafe fn span(this: &Rc<Self>, place: u64, len: usize) -> Span {
        // SAFETY: inside the memory, as the caller says, and initialised; the kernel tells of each byte that it
        // has put there once, and puts others there only after the span was given back.
        unsafe {
            let start = this.memory.address(place, len);
            Span::of_queue(this, place, start, len)
        }
    }

    /// The same, lent.
    ///
    /// # Safety
    ///
    /// As for [`span`](Self::span).
    #[inline]
    pub(crate) unsafe fn span_ref(this: &Rc<Self>, place: u64, len: usize) -> SpanRef<'_> {
        // SAFETY: as in `span`.
        unsafe {
            let start = this.memory.address(place, len);
            SpanRef::of_queue(this, place, start, len)
        }
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
        let due = self.due.upgrade();
        let Some(due) = due.as_ref().filter(|due| !due.is_gone()) else {
            // Nobody would publish a batch, and other rings may receive with it.
            self.memory.refill.put_now(place);
            self.count_held();
            if due.is_none_or(|due| due.is_closed()) {
                self.close_if_unused();
            }
            return;
        };
        self.batch.put_first(place, &self.memory.refill);
        if self.attended.replace(true) {
            return;
        }
        due.mark_refill(self.itself.upgrade().expect("who gives back keeps the queue"));
        for receiver in self.starving.borrow_mut().drain(..) {
            due.mark_receive(receiver);
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::lease::Arrivals;
    use crate::ring::Place;

    const PAGE: usize = 4096;

    /// Takes in completions as from the kernel: a span of each of these chunks.
    fn told(queue: &Rc<RxShared>, chunks: std::ops::Range<usize>) -> Vec<Span> {
        let mut arrivals = Arrivals::new(Some(Rc::clone(queue)));
        let told: Vec<_> = chunks.map(|it| Place { begin: (it * PAGE) as u64, len: 9 }).collect();
        let (spans, bytes) = arrivals.push_told(&told);
        queue.arrived(spans, bytes, -1);
        arrivals.collect()
    }

    #[test]
    fn a_span_that_outlives_its_driver_goes_back_for_the_others_at_once() {
        let (first, second) = (Rc::<Due>::default(), Rc::<Due>::default());
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
                    let due = Rc::<Due>::default();
                    let queue = RxShared::new(&due, None, 0, memory);
                    for round in 0..ROUNDS {
                        let mut spans = told(&queue, thread * EACH..(thread + 1) * EACH);
                        // In parts, some of which go with the next batch.
                        drop(spans.split_off(round % EACH));
                        if round % 3 == 0 {
                            queue.publish(-1);
                        }
                        drop(spans);
                    }
                    due.close();
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
                let due = Rc::<Due>::default();
                let queue = RxShared::new(&due, None, 0, of_other);
                let spans = told(&queue, 0..1);
                drop(spans);
                step_of_other.wait();
                step_of_other.wait();
                queue.publish(-1);
            });
            let due = Rc::<Due>::default();
            let queue = RxShared::new(&due, None, 0, Arc::clone(&memory));
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
        let (first, second) = (Rc::<Due>::default(), Rc::<Due>::default());
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
        let due = Rc::<Due>::default();
        let queue = RxShared::new(&due, None, 0, memory);
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
        assert_eq!(flow.is_copied(), None);
        assert_eq!(flow.tally(), Tally { unknown: 1 << 20, ..Tally::default() });
        // It has not come farther than before, but may have been set back.
        count(1 << 20);
        let other = queue.imported(&due);
        let second = crate::op::Flow::open(other, None);
        flow.bytes = 9;
        assert_eq!(flow.tally(), Tally { unknown: 9, ..Tally::default() });
        drop(second);
    }

    #[test]
    fn what_drivers_that_share_a_queue_had_copied_is_at_least_what_was_counted() {
        let stats = |shared, copied| RxStats { bytes: 100, copied, shared, ..RxStats::default() };
        let told = |zero_copy, copied, unknown| Tally { zero_copy, copied, unknown };
        for shared in [false, true] {
            assert_eq!(stats(shared, Some(0)).tally(), told(100, 0, 0));
            assert_eq!(stats(shared, Some(200)).tally(), told(0, 100, 0));
            assert_eq!(stats(shared, None).tally(), told(0, 0, 100));
        }
        assert_eq!(stats(false, Some(30)).tally(), told(70, 30, 0));
        assert_eq!(stats(true, Some(30)).tally(), told(0, 30, 70));
    }

    #[test]
    fn receives_that_begin_at_once_are_not_alone() {
        const ROUNDS: usize = 200_000;
        let (memory, _statistics) = counting();
        let round = std::sync::Barrier::new(2);
        let alone: usize = thread::scope(|scope| {
            let begin = || {
                let due = Rc::<Due>::default();
                let queue = RxShared::new(&due, None, 0, Arc::clone(&memory));
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
        let due = Rc::<Due>::default();
        let (memory, _kernel) = RxMemory::without_kernel(1_024, 512, CHUNK);
        let queue = RxShared::new(&due, None, 0, Arc::new(memory));
        let packets = (0..10 * 45).map(|packet| {
            let begin = packet / 45 * CHUNK + packet % 45 * 1_448;
            Place { begin: begin as u64, len: 1_448 }
        });
        let mut arrivals = Arrivals::new(Some(Rc::clone(&queue)));
        let (spans, bytes) = arrivals.push_told(&packets.collect::<Vec<_>>());
        queue.arrived(spans, bytes, -1);
        // It has tried, and there is no ring.
        assert_eq!(queue.memory.stopped(), None, "10 of 512 chunks are held");
    }

    #[test]
    fn a_nic_that_found_no_chunk_gets_what_was_given_back_before_more_memory() {
        let due = Rc::<Due>::default();
        let (queue, given_back) = RxShared::without_kernel(&due, 8, PAGE);
        let mut spans = told(&queue, 0..4);
        drop(spans.split_off(1));
        assert_eq!(given_back(), []);
        queue.fell_short(-1);
        assert_eq!(given_back().len(), 3);
    }
}
