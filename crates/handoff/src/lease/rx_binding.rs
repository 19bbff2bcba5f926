//! Binding an rx queue of a NIC, with its memory.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};

use handoff_sys::{query, zcrx};
use rustix::mm::MapFlags;
use rustix::net;

use super::area;
use super::dma_buf::DmaBuf;
use super::rx_memory::RxMemory;
use crate::error::{Error, Result};
use crate::mechanism::ReceiveEngine;
use crate::memory::{Backed, Region, map, page_size};
use crate::ring::refill::RefillQueue;
use crate::ring::{Io, Ring, Token, memlock_or};

/// Which rx queue to bind, and how.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let binding = handoff::RxBinding::new("eth0", 3)?.chunk(1 << 16);
/// println!("one connection needs {} bytes", binding.area(1));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RxBinding {
    /// `None` for no device.
    interface: Option<Interface>,
    queue: u32,
    chunk: Option<usize>,
    grows_from: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    index: u32,
    /// Entries of each of its rx rings.
    ring: usize,
}

impl RxBinding {
    /// Queue `queue`, from 0, of an interface in this thread's network namespace.
    ///
    /// # Errors
    ///
    /// When there is no such interface.
    pub fn new(interface: &str, queue: u32) -> Result<Self> {
        let io = |error: rustix::io::Errno| Error::io("looking an interface up", error.into());
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::DGRAM, None);
        let index = net::netdevice::name_to_index(socket.map_err(io)?, interface).map_err(io)?;
        let interface = Interface { index, ring: area::ring_entries(interface) };
        Ok(Self { interface: Some(interface), queue, chunk: None, grows_from: None })
    }

    /// No NIC: the kernel copies everything into the chunks (Linux 7.2). Slower than receiving into a
    /// [`Pool`](crate::Pool); for tests.
    pub fn without_device() -> Self {
        Self { interface: None, queue: 0, chunk: None, grows_from: None }
    }

    /// Bytes of a chunk, a power of two and at least a page; default a page. Larger chunks (tried on Linux
    /// 7.2) need a NIC that has them, and memory in pieces as large ([`Region::huge`]).
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Begins with this many bytes of the region, and doubles the NIC's memory when chunks run short, up to the whole
    /// region (Linux 7.3). Take a [reserved](crate::Region::reserved) region: only the NIC's part of it is memory,
    /// unless you register the queue with a driver. Where the kernel cannot add memory, the queue has the whole
    /// region from the beginning. See
    /// [`RxQueue::growth`](crate::RxQueue::growth).
    pub fn grows_from(mut self, bytes: usize) -> Self {
        self.grows_from = Some(bytes);
        self
    }

    /// Bytes of an area that cannot run out with this many connections: chunks for the NIC's ring, for the
    /// kernel's cache of them, and for TCP's receive buffers at their largest (`net.ipv4.tcp_rmem`). A
    /// smaller area works as long as little is lost on the way.
    pub fn area(&self, connections: usize) -> usize {
        let chunk = self.chunk_size();
        area::chunks(self.ring(), connections, chunk).saturating_mul(chunk)
    }

    fn chunk_size(&self) -> usize {
        self.chunk.unwrap_or(page_size())
    }

    fn ring(&self) -> Option<usize> {
        self.interface.map(|interface| interface.ring)
    }

    fn engine(&self, dma_buf: bool) -> ReceiveEngine {
        match (&self.interface, dma_buf) {
            (_, true) => ReceiveEngine::ZcrxDmabuf,
            (Some(_), _) => ReceiveEngine::Zcrx,
            (None, _) => ReceiveEngine::ZcrxNodev,
        }
    }
}

/// Binds the queue for this driver, with the region as its memory; with a dma-buf the region only stands for it.
/// Returns also the id that requests of the ring use.
pub(super) fn bind(
    io: &Io,
    place: u32,
    region: &Region,
    dma_buf: Option<&DmaBuf>,
    binding: &RxBinding,
) -> Result<(RxMemory, u32)> {
    let engine = binding.engine(dma_buf.is_some());
    let unavailable = |reason| Error::EngineUnavailable { engine: engine.name(), reason };
    if region.free() != region.len() {
        return Err(Error::Invalid(
            "an rx queue takes a whole region, and buffers were cut from this one",
        ));
    }
    let ring = ring_for(io, engine)?.borrow();
    let chunk = binding.chunk_size();
    if !chunk.is_power_of_two() || chunk < page_size() || region.len() < chunk {
        return Err(Error::Invalid(
            "a chunk is a power of two, at least a page and at most the region",
        ));
    }
    if let Some(dma_buf) = dma_buf.filter(|memory| !memory.len().is_multiple_of(chunk)) {
        return Err(unavailable(format!(
            "the dma-buf has {} bytes, which are no whole chunks of {chunk}: take one that is a multiple",
            dma_buf.len()
        )));
    }
    // A kernel that cannot be asked has none of this.
    let known = query::zcrx().unwrap_or_default();
    let counts = known.features & query::ZCRX_FEATURE_EVENT != 0;
    let grows = known.nr_ctrl_opcodes >= zcrx::CTRL_OPCODES_WITH_ADD_AREA;
    let first = match binding.grows_from {
        // A dma-buf is one area; it cannot be combined.
        Some(bytes) if grows && dma_buf.is_none() => {
            bytes.max(1).checked_next_multiple_of(chunk).unwrap_or(usize::MAX).min(region.len())
        }
        _ => region.len(),
    };

    if let Some(limit) = most_bytes(grows).filter(|limit| first > *limit) {
        return Err(unavailable(format!(
            "the area has {first} bytes, and before Linux 7.3 the kernel misplaces what it puts beyond \
             {limit}: take less memory"
        )));
    }
    let (chunks, ring_entries) = (first / chunk, binding.ring());
    if let Some(ring_entries) = ring_entries.filter(|entries| chunks <= *entries) {
        return Err(unavailable(format!(
            "the NIC's ring alone takes {ring_entries} chunks, and the area has {chunks}: take \
             more memory (RxBinding::area), or make the ring smaller (ethtool -G)"
        )));
    }
    let entries = (region.len() / chunk)
        .next_power_of_two()
        .clamp(64, zcrx::MAX_REFILL_ENTRIES as usize) as u32;
    let statistics = zcrx::refill_size(entries);
    let size = (statistics + 64).next_multiple_of(page_size());
    let memory = map(size, MapFlags::PRIVATE, None)
        .map_err(|error| Error::io("mapping a refill queue", error))?;
    let area = region.backing().clone();

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
        len: first as u64,
        ..zcrx::Area::default()
    };
    if let Some(dma_buf) = dma_buf {
        pages = zcrx::Area {
            len: first as u64,
            flags: zcrx::AREA_DMABUF,
            dmabuf_fd: dma_buf.as_fd().as_raw_fd() as u32,
            ..zcrx::Area::default()
        };
    }
    // SAFETY: both pieces of memory are kept by the queue, which the driver keeps until its ring
    // is closed; the region is whole, so nobody has a piece of it but the spans handed out. Those of a
    // dma-buf, which the kernel keeps, are not looked at.
    unsafe {
        zcrx::bind(
            ring.io.as_raw_fd(),
            &mut registration,
            &mut pages,
            (memory.start().as_ptr(), memory.len()),
            counts.then_some(&events),
        )
    }
    .map_err(|error| explain(binding, engine, chunk, first, error))?;

    // SAFETY: the kernel has laid the queue out in this memory, with as many entries.
    let refill =
        unsafe { RefillQueue::new(memory.clone(), registration.offsets, registration.rq_entries) };
    let statistics = counts.then_some((memory, statistics));
    // SAFETY: the kernel has this much of the region, of which there are no pieces, and counts there.
    let bound =
        unsafe { RxMemory::new(engine, (area, first), (chunk, ring_entries), refill, statistics) };
    Ok((bound, registration.zcrx_id))
}

/// The most bytes of an area: kernels that add no areas count places within one in 32 bits.
fn most_bytes(adds_areas: bool) -> Option<usize> {
    (!adds_areas).then_some(1 << 32)
}

/// The driver's ring, if rx queues can be bound to it.
pub(super) fn ring_for(io: &Io, engine: ReceiveEngine) -> Result<&RefCell<Ring>> {
    let Some(ring) = io.ring() else {
        let reason = "there is no ring".to_owned();
        return Err(Error::EngineUnavailable { engine: engine.name(), reason });
    };
    if !ring.borrow().io.tell_of_spans() {
        return Err(Error::Invalid(
            "the driver was not built for zero-copy receive (DriverBuilder::zero_copy_receive)",
        ));
    }
    Ok(ring)
}

fn explain(
    binding: &RxBinding,
    engine: ReceiveEngine,
    chunk: usize,
    len: usize,
    error: std::io::Error,
) -> Error {
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
        Some(libc::ERANGE | libc::E2BIG)
            if chunk > page_size() && engine == ReceiveEngine::ZcrxDmabuf =>
        {
            format!(
                "the NIC has no rx queue {queue}, or the dma-buf is not in pieces of {chunk} bytes"
            )
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
    Error::EngineUnavailable { engine: engine.name(), reason: format!("{reason} ({error})") }
}
