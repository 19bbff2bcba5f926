//! An rx queue of a NIC as a source: the NIC writes payload into memory of ours, and we hold it until
//! we give it back.
//!
//! Minimum kernel: 6.15 (`IORING_REGISTER_ZCRX_IFQ`); 7.2 for the kernel's count of what it copied all
//! the same, and chunks beyond a page were tried there. Capability: CAP_NET_ADMIN, for binding. NIC: a
//! driver with queues that take a provider's memory, header/data split on, and a flow rule that brings
//! the connections to the queue, and nothing else. Ring: one built for it
//! ([`DriverBuilder::zero_copy_receive`](crate::DriverBuilder::zero_copy_receive)). Return signal: we
//! hold what is theirs; a dropped span is an entry in the refill queue.
//!
//! The kernel unbinds the queue when the ring is closed, and no earlier. Linux 6.15 to 6.18 then first give
//! the chunks that we hold back to the NIC, which could write under a span. So a driver that goes leaves the
//! ring open until the last span is dropped.

use std::cell::{Cell, RefCell};
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use handoff_sys::zcrx;

use super::area;
use super::dma_buf::DmaBuf;
use super::due::Due;
use super::received::Span;
use super::rx_binding::{Bound, RxBinding};
use super::span_ref::SpanRef;
use crate::error::{Error, Result};
use crate::mechanism::ReceiveEngine;
use crate::memory::{Backed, Backing, Memory, Region};
use crate::ring::refill::RefillQueue;
use crate::ring::{Io, Key};

/// How often at most the kernel is asked to tell again that it found no chunk.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What an rx queue has received so far.
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
    /// Of these, bytes of packets' payload that the kernel copied into chunks, by its own count:
    /// packets that came another way than the queue. What it copies out of packets' headers (payload
    /// below the split's threshold) it doesn't count. `None` where the kernel doesn't count (before
    /// Linux 7.2).
    pub copied: Option<u64>,
    /// How often the kernel told that the NIC's ring found no free chunk, ten times a second at
    /// most. Always 0 before Linux 7.2.
    pub shortages: u64,
    /// How often the refill queue was flushed, since the kernel needed what was in it at once.
    pub flushes: u64,
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

pub(crate) struct RxShared {
    /// Keeps the ring open for the spans that outlive the driver; before the area, which goes later.
    pub(crate) ring: Cell<Option<OwnedFd>>,
    due: Weak<Due>,
    /// So that spans, of which there are many, give back by a plain reference.
    itself: Weak<Self>,
    bound: Bound,
    refill: RefillQueue,
    spans: Cell<u64>,
    bytes: Cell<u64>,
    shortages: Cell<u64>,
    flushes: Cell<u64>,
    /// Spans handed out and not given back.
    held: Cell<usize>,
    /// The driver knows that something was given back: it publishes that with its next submission,
    /// and nobody starves. While it does not, the refill queue has no batch, so that what is given back
    /// next tells it.
    attended: Cell<bool>,
    /// Receivers that found no chunk.
    starving: RefCell<Vec<Key>>,
    /// When the kernel last told of a shortage, if it was not asked again since.
    short: Cell<Option<Instant>>,
    /// Receivers begun, and those that are left: whose copies the kernel's count is about.
    begun: Cell<u64>,
    receivers: Cell<u32>,
    /// A shortfall was told.
    warned: Cell<bool>,
}

impl RxQueue {
    /// Binds what is the driver's rx queue of this number from now on, and kept by it.
    pub(crate) fn bind(
        io: &Io,
        due: &Rc<Due>,
        number: u32,
        region: &Region,
        dma_buf: Option<&DmaBuf>,
        binding: &RxBinding,
    ) -> Result<Self> {
        let ring = io
            .ring_descriptor()
            .map_err(|error| Error::io("keeping the ring of an rx queue open", error))?;
        let (bound, refill) = Bound::new(io, number, region, dma_buf, binding)?;
        Ok(Self { shared: RxShared::new(due, ring, bound, refill) })
    }

    /// Bytes of a chunk: the unit in which the NIC takes memory.
    pub fn chunk(&self) -> usize {
        self.shared.bound.chunk
    }

    /// Chunks in all.
    pub fn chunks(&self) -> usize {
        self.shared.chunks()
    }

    /// Spans handed out and not dropped yet; each keeps a chunk.
    pub fn held(&self) -> usize {
        self.shared.held.get()
    }

    /// Why the area may run dry with the receives that are under way, and then stay so; `None` when
    /// it can't. See [`RxBinding::area`].
    pub fn shortfall(&self) -> Option<String> {
        self.shared.shortfall()
    }

    /// What was received so far.
    pub fn stats(&self) -> RxStats {
        let RxShared { spans, bytes, shortages, flushes, .. } = &*self.shared;
        RxStats {
            spans: spans.get(),
            bytes: bytes.get(),
            copied: self.shared.copied(),
            shortages: shortages.get(),
            flushes: flushes.get(),
        }
    }
}

impl Memory for RxQueue {}
impl Backed for RxQueue {
    fn backing(&self) -> &Arc<Backing> {
        &self.shared.bound.area
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

#[cfg(test)]
impl RxShared {
    /// A queue that nobody is bound to, and what was given back to it since it was last asked.
    pub(crate) fn without_kernel(
        due: &Rc<Due>,
        chunks: usize,
        chunk: usize,
    ) -> (Rc<Self>, impl Fn() -> Vec<u64> + use<>) {
        use rustix::mm::MapFlags;

        let area = crate::memory::map(chunks * chunk, MapFlags::PRIVATE, None).unwrap();
        let (kernel, refill) = crate::ring::refill::Kernel::and_queue(chunks as u32);
        let kernel = RefCell::new(kernel);
        let engine = ReceiveEngine::Zcrx;
        let bound = Bound { engine, id: 0, area, token: 0, chunk, ring: 0, statistics: None };
        let shared = Self::new(due, None, bound, refill);
        (shared, move || kernel.borrow_mut().take(u32::MAX))
    }
}

impl RxShared {
    fn new(due: &Rc<Due>, ring: Option<OwnedFd>, bound: Bound, refill: RefillQueue) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            itself: Weak::clone(itself),
            ring: Cell::new(ring),
            due: Rc::downgrade(due),
            bound,
            refill,
            spans: Cell::new(0),
            bytes: Cell::new(0),
            shortages: Cell::new(0),
            flushes: Cell::new(0),
            held: Cell::new(0),
            attended: Cell::new(false),
            starving: RefCell::default(),
            short: Cell::new(None),
            begun: Cell::new(0),
            receivers: Cell::new(0),
            warned: Cell::new(false),
        })
    }

    pub(crate) fn engine(&self) -> ReceiveEngine {
        self.bound.engine
    }

    /// What requests name.
    pub(crate) fn id(&self) -> u32 {
        self.bound.id
    }

    /// Receives begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    pub(crate) fn is_of(&self, due: &Rc<Due>) -> bool {
        std::ptr::eq(self.due.as_ptr(), Rc::as_ptr(due))
    }

    /// The kernel has handed so many spans over.
    pub(crate) fn arrived(&self, spans: usize, bytes: u64) {
        self.spans.set(self.spans.get() + spans as u64);
        self.bytes.set(self.bytes.get() + bytes);
        self.held.set(self.held.get() + spans);
    }

    /// The span that a completion has told of.
    ///
    /// # Safety
    ///
    /// The kernel has told of these bytes of the area, and nothing else is made of the same completion.
    #[inline]
    pub(crate) unsafe fn span(this: &Rc<Self>, place: u64, len: usize) -> Span {
        let (offset, start) = this.found(place, len);
        // SAFETY: inside the area, as the kernel's word is, and initialised; the kernel tells of each byte
        // that it has put there once, and puts others there only after the span was given back.
        unsafe { Span::of_queue(this, offset, start, len) }
    }

    /// The same, lent.
    ///
    /// # Safety
    ///
    /// As for [`span`](Self::span).
    #[inline]
    pub(crate) unsafe fn span_ref(this: &Rc<Self>, place: u64, len: usize) -> SpanRef<'_> {
        let (offset, start) = this.found(place, len);
        // SAFETY: as in `span`.
        unsafe { SpanRef::of_queue(this, offset, start, len) }
    }

    /// Where bytes are that the kernel has told of: in the area, and in memory.
    #[inline]
    fn found(&self, place: u64, len: usize) -> (usize, NonNull<u8>) {
        debug_assert!(is_within(self.bound.area.len(), place, len));
        let offset = offset(place);
        // SAFETY: inside the area, as the kernel's word was checked to be.
        (offset, unsafe { self.bound.area.start().add(offset) })
    }

    /// The span that began at `offset` is given back.
    #[inline]
    pub(crate) fn give_back(&self, offset: usize) {
        self.held.set(self.held.get() - 1);
        let off = offset as u64 | self.bound.token;
        if !self.refill.put(off) {
            self.begin_batch(off);
        }
    }

    /// As [`give_back`](Self::give_back), for the first since the driver has published or a batch was
    /// full.
    #[cold]
    fn begin_batch(&self, off: u64) {
        let due = self.due.upgrade().filter(|due| !due.is_closed());
        let Some(due) = due else { return self.close_if_unused() };
        self.refill.put_first(off);
        if self.attended.replace(true) {
            return;
        }
        due.mark_refill(self.itself.upgrade().expect("who gives back keeps the queue"));
        for receiver in self.starving.borrow_mut().drain(..) {
            due.mark_receive(receiver);
        }
    }

    /// The driver goes. No batch is begun from now on, so that all that is given back looks for the end.
    pub(crate) fn outlive_driver(&self) {
        self.refill.publish();
        self.close_if_unused();
    }

    /// Lets go of the ring when no span needs it open any more.
    fn close_if_unused(&self) {
        if !self.holds_any() {
            drop(self.ring.take());
        }
    }

    /// Has the kernel see what was given back; called with the next submission.
    pub(crate) fn publish(&self, ring: RawFd) {
        self.attended.set(false);
        self.refill.publish();
        if self.refill.is_crowded() && self.flush(ring) {
            self.refill.publish();
        }
        if self.short.get().is_some_and(|since| since.elapsed() >= ASK_AGAIN) {
            self.short.set(None);
            if let Err(error) = zcrx::arm_event(ring, self.bound.id, zcrx::EVENT_ALLOC_FAIL) {
                tracing::debug!(%error, "shortages of this rx queue are not told again");
            }
        }
    }

    /// Has the kernel take at once what was given back, for a receiver that found no chunk to copy
    /// to; whether it got any.
    pub(crate) fn replenish(&self, ring: RawFd) -> bool {
        self.refill.publish();
        self.refill.has_untaken() && self.flush(ring)
    }

    fn flush(&self, ring: RawFd) -> bool {
        match zcrx::flush_refill(ring, self.bound.id) {
            Ok(()) => {
                self.flushes.set(self.flushes.get() + 1);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "the refill queue can't be flushed");
                false
            }
        }
    }

    /// The kernel tells that the NIC's ring found no free chunk.
    pub(crate) fn fell_short(&self) {
        self.shortages.set(self.shortages.get() + 1);
        self.short.set(Some(Instant::now()));
    }

    pub(crate) fn starve(&self, receiver: Key) {
        self.starving.borrow_mut().push(receiver);
        self.refill.publish();
        self.attended.set(false);
    }

    pub(crate) fn forget(&self, receiver: Key) {
        self.starving.borrow_mut().retain(|starving| *starving != receiver);
    }

    /// Whether dropping a span would give a chunk back.
    pub(crate) fn holds_any(&self) -> bool {
        self.held.get() > 0
    }

    /// The area.
    pub(crate) fn memory(&self) -> &Arc<Backing> {
        &self.bound.area
    }

    pub(crate) fn chunks(&self) -> usize {
        self.bound.area.len() / self.bound.chunk
    }

    /// A receive begins; whether it is the only one.
    pub(crate) fn begin(&self) -> bool {
        self.begun.set(self.begun.get() + 1);
        let before = self.receivers.replace(self.receivers.get() + 1);
        if !self.warned.get()
            && let Some(shortfall) = self.shortfall()
        {
            self.warned.set(true);
            tracing::warn!("{shortfall}");
        }
        before == 0
    }

    pub(crate) fn end(&self) {
        self.receivers.set(self.receivers.get() - 1);
    }

    fn shortfall(&self) -> Option<String> {
        let (connections, chunks) = (self.receivers.get() as usize, self.chunks());
        let need = area::chunks(self.bound.ring, connections, self.bound.chunk);
        (chunks < need).then(|| {
            format!(
                "the area of {chunks} chunks may run dry with {connections} connections: {need} are \
                 safe; take more memory, or lower net.ipv4.tcp_rmem"
            )
        })
    }

    /// Bytes that the kernel has copied, by its own count.
    pub(crate) fn copied(&self) -> Option<u64> {
        let (memory, offset) = self.bound.statistics.as_ref()?;
        // SAFETY: the kernel was told to count here, spans and then bytes, in aligned words of memory
        // that is kept.
        let bytes = unsafe {
            AtomicU64::from_ptr(memory.start().add(offset + size_of::<u64>()).as_ptr().cast())
        };
        Some(bytes.load(Relaxed))
    }
}

/// Whether a span can be there, in an area of so many bytes.
#[inline]
pub(crate) fn is_within(area: usize, place: u64, len: usize) -> bool {
    offset(place).checked_add(len).is_some_and(|end| end <= area)
}

/// Where in the area a place is.
#[inline]
fn offset(place: u64) -> usize {
    (place & ((1 << zcrx::AREA_SHIFT) - 1)) as usize
}
