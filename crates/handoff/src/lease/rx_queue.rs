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
//! Several rings may receive from a queue ([`RxQueue::export`]). Each belongs to one thread and has its own
//! spans ([`rx_shared`](super::rx_shared)).

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use handoff_sys::zcrx;

use super::dma_buf::DmaBuf;
use super::pending::Pending;
use super::rx_binding::{self, RxBinding};
use super::rx_memory::{RxGrowth, RxMemory};
use super::rx_shared::RxShared;
use super::rx_stats::RxStats;
use crate::error::{Error, Result};
use crate::mechanism::ReceiveEngine;
use crate::memory::{Backed, Backing, Memory, Region};
use crate::ring::Io;

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

impl RxQueue {
    /// Binds the queue; from now on it has this number at the driver, which keeps it.
    pub(crate) fn bind(
        io: &Io,
        pending: &Rc<Pending>,
        number: u32,
        region: &Region,
        dma_buf: Option<&DmaBuf>,
        binding: &RxBinding,
    ) -> Result<Self> {
        let ring = io.ring_descriptor().map_err(keeping_open)?;
        let (memory, id) = rx_binding::bind(io, number, region, dma_buf, binding)?;
        Ok(Self { shared: RxShared::new(pending, number, ring, id, Arc::new(memory)) })
    }

    /// Makes this driver receive from the queue as well; from now on it has this number at the driver, which keeps
    /// it.
    pub(crate) fn import(
        io: &Io,
        pending: &Rc<Pending>,
        number: u32,
        exported: &ExportedRxQueue,
    ) -> Result<Self> {
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
        Ok(Self { shared: RxShared::new(pending, number, ring, id, Arc::clone(memory)) })
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
