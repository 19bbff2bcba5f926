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
//! The kernel unbinds the queue when the ring is closed, and no earlier.

use std::cell::{Cell, RefCell};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use handoff_sys::{query, zcrx};
use rustix::mm::MapFlags;
use rustix::net;

use super::area;
use super::memory::{Region, map, page_size};
use super::received::{Received, Ticket};
use crate::driver::{Backend, Inner};
use crate::engine::receiving::ReceiveEngine;
use crate::error::{Error, Result};
use crate::inflight::{Key, Token};
use crate::lease::{Backing, Memory, Piece, Sealed};
use crate::ring::refill::RefillQueue;
use crate::ring::slots::memlock_or;

/// How often at most the kernel is asked to tell again that it found no chunk.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Which rx queue to bind, and how.
#[derive(Clone, Copy, Debug)]
pub struct RxBinding {
    /// `None` for no device.
    interface: Option<Interface>,
    queue: u32,
    chunk: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    index: u32,
    /// Entries of each of its rx rings.
    ring: usize,
}

impl RxBinding {
    /// Queue `queue`, from 0, of an interface of this thread's network namespace.
    ///
    /// # Errors
    ///
    /// When there is no such interface.
    pub fn new(interface: &str, queue: u32) -> Result<Self> {
        let io = |error: rustix::io::Errno| Error::io("looking an interface up", error.into());
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::DGRAM, None);
        let index = net::netdevice::name_to_index(socket.map_err(io)?, interface).map_err(io)?;
        let interface = Interface { index, ring: area::ring_entries(interface) };
        Ok(Self { interface: Some(interface), queue, chunk: None })
    }

    /// No queue of any NIC: the kernel copies everything into the chunks (Linux 7.2). Slower than
    /// receiving into a [`Pool`](crate::Pool); for tests.
    pub fn without_device() -> Self {
        Self { interface: None, queue: 0, chunk: None }
    }

    /// Bytes of a chunk, a power of two and at least a page; a page if this is not said. Chunks larger
    /// than a page (tried on Linux 7.2) need a NIC that has them, and memory in pieces as large
    /// ([`Region::huge`]).
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Bytes of an area that cannot run dry with so many connections: chunks for the NIC's ring, for
    /// the kernel's cache of them, and for what TCP may have in its receive buffers at their largest
    /// (`net.ipv4.tcp_rmem`). Less does as long as little is lost on the way.
    pub fn area(&self, connections: usize) -> usize {
        let chunk = self.chunk_size();
        area::chunks(self.ring(), connections, chunk).saturating_mul(chunk)
    }

    fn chunk_size(&self) -> usize {
        self.chunk.unwrap_or(page_size())
    }

    fn ring(&self) -> usize {
        self.interface.map_or(0, |interface| interface.ring)
    }

    fn engine(&self) -> ReceiveEngine {
        if self.interface.is_some() { ReceiveEngine::Zcrx } else { ReceiveEngine::ZcrxNodev }
    }
}

/// What an rx queue has received so far.
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

/// An rx queue bound to a driver, until the driver goes.
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
    driver: Weak<Inner>,
    bound: Bound,
    refill: RefCell<RefillQueue>,
    spans: Cell<u64>,
    bytes: Cell<u64>,
    shortages: Cell<u64>,
    flushes: Cell<u64>,
    /// Spans handed out and not given back.
    held: Cell<usize>,
    /// The driver knows that something was given back: it publishes that with its next submission,
    /// and nobody starves.
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

/// What a queue is bound as.
struct Bound {
    engine: ReceiveEngine,
    /// What requests name.
    id: u32,
    area: Arc<Backing>,
    token: u64,
    chunk: usize,
    /// Entries of the NIC's ring.
    ring: usize,
    /// Where the kernel counts copies, in the refill queue's memory.
    statistics: Option<(Arc<Backing>, usize)>,
}

impl RxQueue {
    pub(crate) fn bind(driver: &Rc<Inner>, region: &Region, binding: &RxBinding) -> Result<Self> {
        let unavailable =
            |reason: String| Error::EngineUnavailable { engine: binding.engine().name(), reason };
        if region.free() != region.len() {
            return Err(Error::Invalid(
                "an rx queue takes a whole region, and buffers were cut from this one",
            ));
        }
        let Backend::Ring(ring) = &driver.backend else {
            return Err(unavailable("there is no ring".to_owned()));
        };
        let ring = ring.borrow();
        if !ring.io.tell_of_spans() {
            return Err(Error::Invalid(
                "the driver was not built for zero-copy receive (DriverBuilder::zero_copy_receive)",
            ));
        }
        let chunk = binding.chunk_size();
        if !chunk.is_power_of_two() || chunk < page_size() || region.len() < chunk {
            return Err(Error::Invalid(
                "a chunk is a power of two, at least a page and at most the region",
            ));
        }
        // A kernel that can't be asked has neither.
        let known = query::zcrx().unwrap_or_default();
        let counts = known.features & query::ZCRX_FEATURE_EVENT != 0;

        let (chunks, ring_entries) = (region.len() / chunk, binding.ring());
        if chunks <= ring_entries {
            return Err(unavailable(format!(
                "the NIC's ring alone takes {ring_entries} chunks, and the area has {chunks}: take \
                 more memory (RxBinding::area), or make the ring smaller (ethtool -G)"
            )));
        }
        let entries =
            chunks.next_power_of_two().clamp(64, zcrx::MAX_REFILL_ENTRIES as usize) as u32;
        let statistics = zcrx::refill_size(entries);
        let size = (statistics + 64).next_multiple_of(page_size());
        let memory = map(size, MapFlags::PRIVATE, None)
            .map_err(|error| Error::io("mapping a refill queue", error))?;
        let area = region.backing().clone();

        let place = driver.rx_queues.borrow().len() as u32;
        let events = zcrx::Events {
            user_data: Token::of_rx_queue(place).to_user_data(),
            type_mask: 1 << zcrx::EVENT_ALLOC_FAIL,
            flags: zcrx::EVENT_DESC_FLAG_STATS,
            stats_offset: statistics as u64,
            ..zcrx::Events::default()
        };
        let mut registration = zcrx::Binding {
            if_idx: binding.interface.map_or(0, |interface| interface.index),
            if_rxq: binding.queue,
            rq_entries: entries,
            flags: if binding.interface.is_none() { query::ZCRX_REG_NODEV as u32 } else { 0 },
            rx_buf_len: if chunk > page_size() { chunk as u32 } else { 0 },
            ..zcrx::Binding::default()
        };
        let mut pages = zcrx::Area {
            addr: area.start().as_ptr().addr() as u64,
            len: area.len() as u64,
            ..zcrx::Area::default()
        };
        // SAFETY: both pieces of memory are kept by the queue, which the driver keeps until its ring
        // is closed; the region is whole, so nobody has a piece of it but the spans handed out.
        unsafe {
            zcrx::bind(
                ring.io.as_raw_fd(),
                &mut registration,
                &mut pages,
                (memory.start().as_ptr(), memory.len()),
                counts.then_some(&events),
            )
        }
        .map_err(|error| explain(binding, chunk, area.len(), error))?;

        // SAFETY: the kernel has laid the queue out in this memory, with as many entries.
        let refill = unsafe {
            RefillQueue::new(memory.clone(), registration.offsets, registration.rq_entries)
        };
        let bound = Bound {
            engine: binding.engine(),
            id: registration.zcrx_id,
            area,
            token: pages.rq_area_token,
            chunk,
            ring: ring_entries,
            statistics: counts.then_some((memory, statistics)),
        };
        let shared = Rc::new(RxShared::new(driver, bound, refill));
        driver.rx_queues.borrow_mut().push(Rc::clone(&shared));
        Ok(Self { shared })
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

impl Sealed for RxQueue {}
impl Memory for RxQueue {
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
        driver: &Rc<Inner>,
        chunks: usize,
        chunk: usize,
    ) -> (Rc<Self>, impl Fn() -> Vec<u64>) {
        let area = map(chunks * chunk, MapFlags::PRIVATE, None).unwrap();
        let (kernel, refill) = crate::ring::refill::Kernel::and_queue(chunks as u32);
        let kernel = RefCell::new(kernel);
        let engine = ReceiveEngine::Zcrx;
        let bound = Bound { engine, id: 0, area, token: 0, chunk, ring: 0, statistics: None };
        let shared = Rc::new(Self::new(driver, bound, refill));
        (shared, move || kernel.borrow_mut().take(u32::MAX))
    }
}

impl RxShared {
    fn new(driver: &Rc<Inner>, bound: Bound, refill: RefillQueue) -> Self {
        Self {
            driver: Rc::downgrade(driver),
            bound,
            refill: RefCell::new(refill),
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
        }
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

    pub(crate) fn is_of(&self, driver: &Rc<Inner>) -> bool {
        std::ptr::eq(self.driver.as_ptr(), Rc::as_ptr(driver))
    }

    /// Whether a span can be there, by what is known of the area.
    #[inline]
    pub(crate) fn has(&self, place: u64, len: usize) -> bool {
        offset(place).checked_add(len).is_some_and(|end| end <= self.bound.area.len())
    }

    /// The kernel has handed so many spans over.
    pub(crate) fn arrived(&self, spans: usize, bytes: u64) {
        self.spans.set(self.spans.get() + spans as u64);
        self.bytes.set(self.bytes.get() + bytes);
        self.held.set(self.held.get() + spans);
    }

    /// The span that a completion has told of, once.
    #[inline]
    pub(crate) fn span(this: &Rc<Self>, place: u64, len: usize) -> Received {
        debug_assert!(this.has(place, len));
        let offset = offset(place);
        // SAFETY: inside the area; the kernel tells of each byte that it has put there once, and puts
        // others there only after the span was given back.
        let piece = unsafe { Piece::new(this.bound.area.clone(), offset, len) };
        Received::new(piece, Ticket::of_queue(Rc::clone(this), offset))
    }

    /// The span that began at `offset` is given back.
    #[inline]
    pub(crate) fn give_back(this: &Rc<Self>, offset: usize) {
        this.held.set(this.held.get() - 1);
        this.refill.borrow_mut().put(offset as u64 | this.bound.token);
        if !this.attended.get() {
            Self::tell_driver(this);
        }
    }

    #[cold]
    fn tell_driver(this: &Rc<Self>) {
        this.attended.set(true);
        let Some(driver) = this.driver.upgrade() else { return };
        driver.mark_refill(this);
        for receiver in this.starving.borrow_mut().drain(..) {
            driver.mark_receive(receiver);
        }
    }

    /// Has the kernel see what was given back; called with the next submission.
    pub(crate) fn publish(&self, driver: &Inner) {
        self.attended.set(false);
        let mut refill = self.refill.borrow_mut();
        refill.publish();
        if refill.is_crowded() && self.flush(driver) {
            refill.publish();
        }
        if self.short.get().is_some_and(|since| since.elapsed() >= ASK_AGAIN) {
            self.short.set(None);
            if let Err(error) =
                zcrx::arm_event(driver.ring_raw(), self.bound.id, zcrx::EVENT_ALLOC_FAIL)
            {
                tracing::debug!(%error, "shortages of this rx queue are not told again");
            }
        }
    }

    /// Has the kernel take at once what was given back, for a receiver that found no chunk to copy
    /// to; whether it got any.
    pub(crate) fn replenish(&self, driver: &Inner) -> bool {
        let mut refill = self.refill.borrow_mut();
        refill.publish();
        refill.has_untaken() && self.flush(driver)
    }

    fn flush(&self, driver: &Inner) -> bool {
        match zcrx::flush_refill(driver.ring_raw(), self.bound.id) {
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
        self.attended.set(false);
    }

    pub(crate) fn forget(&self, receiver: Key) {
        self.starving.borrow_mut().retain(|starving| *starving != receiver);
    }

    /// Whether dropping a span would give a chunk back.
    pub(crate) fn holds_any(&self) -> bool {
        self.held.get() > 0
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

/// Where in the area a place is.
fn offset(place: u64) -> usize {
    (place & ((1 << zcrx::AREA_SHIFT) - 1)) as usize
}

fn explain(binding: &RxBinding, chunk: usize, len: usize, error: std::io::Error) -> Error {
    let queue = binding.queue;
    let reason = match error.raw_os_error() {
        Some(libc::EPERM) => "binding an rx queue needs CAP_NET_ADMIN: run as root".to_owned(),
        Some(libc::EEXIST | libc::EBUSY) => format!(
            "rx queue {queue} is bound already, by this or another program: take another queue"
        ),
        Some(libc::EOPNOTSUPP) if binding.interface.is_none() && chunk > page_size() => {
            "without a device, chunks are a page".to_owned()
        }
        Some(libc::EOPNOTSUPP) => {
            "the NIC's driver can't give an rx queue memory of a program (handoff nic show)"
                .to_owned()
        }
        Some(libc::ERANGE | libc::E2BIG) if chunk > page_size() => format!(
            "the NIC has no rx queue {queue}, or the area is not in pieces of {chunk} bytes: take \
             huge pages"
        ),
        Some(libc::ERANGE | libc::ENXIO) => format!("the NIC has no rx queue {queue}"),
        Some(libc::ENODEV) => "the interface is gone".to_owned(),
        Some(libc::EINVAL) if binding.interface.is_none() => {
            "the kernel needs a device: Linux 7.2 does without".to_owned()
        }
        Some(libc::EINVAL) => format!(
            "the kernel (before Linux 6.15), or the NIC: header/data split must be on, and chunks of \
             {chunk} bytes possible (handoff nic prepare)"
        ),
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            return memlock_or("binding an rx queue", len as u64, error);
        }
        _ => return Error::io("binding an rx queue", error),
    };
    Error::EngineUnavailable {
        engine: binding.engine().name(),
        reason: format!("{reason} ({error})"),
    }
}
