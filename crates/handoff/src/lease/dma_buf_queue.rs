//! An rx queue over a dma-buf, and spans without bytes.
//!
//! Minimum kernel: 6.16 for areas of dma-bufs (tried on 7.2). Capability, NIC and ring: as for
//! [`RxQueue`](crate::RxQueue). Return signal: we hold the NIC's chunks; a dropped span is an entry in the
//! refill queue.
//!
//! Contracts:
//! - nothing here reads or writes the memory. In this process an inaccessible address range stands for it, so
//!   that its places work like those of other areas;
//! - a span says where its bytes are in the dma-buf, and the NIC puts no others there until the span is
//!   dropped.

use std::rc::Rc;

use super::dma_buf::DmaBuf;
use super::pending::Pending;
use super::received::Span;
use super::rx_binding::RxBinding;
use super::rx_queue::RxQueue;
use super::rx_stats::RxStats;
use crate::error::Result;
use crate::memory::Region;
use crate::ring::Io;

/// An rx queue of a NIC that receives into a [`DmaBuf`], bound until the driver and all spans are gone.
///
/// The kernel cannot copy there. So all packets of a connection must come by the queue, split, from the first
/// on: steer the port before anybody connects. If bytes come another way, the receive ends with an error.
///
/// ```no_run
/// use handoff::{DmaBuf, Driver, RxBinding, SharedRegion};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let connection = std::net::TcpStream::connect("192.0.2.1:9000")?;
/// # fn tell(offset: usize, len: usize) {}
/// let memory = SharedRegion::memfd(16 << 20)?;
/// let driver = Driver::builder().zero_copy_receive(true).build()?;
/// let queue = driver.dma_buf_queue(DmaBuf::of_memfd(&memory)?, &RxBinding::new("eth0", 3)?)?;
/// let mut receiver = driver.socket(connection)?.receive_to_dma_buf(&queue)?;
/// driver.block_on(async {
///     while let Some(span) = receiver.next_span().await {
///         let span = span?;
///         tell(span.offset(), span.len()); // whoever has the memory looks there
///     } // dropped when the owner is done
///     Ok::<_, handoff::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DmaBufQueue(pub(crate) RxQueue);

impl DmaBufQueue {
    /// Binds the queue; from now on it has this number at the driver, which keeps it.
    pub(crate) fn bind(
        io: &Io,
        pending: &Rc<Pending>,
        number: u32,
        memory: &DmaBuf,
        binding: &RxBinding,
    ) -> Result<Self> {
        let stand_in = Region::inaccessible(memory.len())?;
        RxQueue::bind(io, pending, number, &stand_in, Some(memory), binding).map(Self)
    }

    /// Bytes of a chunk: the unit in which the NIC takes memory.
    pub fn chunk(&self) -> usize {
        self.0.chunk()
    }

    /// Chunks in all.
    pub fn chunks(&self) -> usize {
        self.0.chunks()
    }

    /// Spans that the kernel has handed over and nobody has dropped; each keeps a chunk.
    pub fn held(&self) -> usize {
        self.0.held()
    }

    /// Why the memory may run out with the receives that are under way: see
    /// [`RxQueue::shortfall`](crate::RxQueue::shortfall).
    pub fn shortfall(&self) -> Option<String> {
        self.0.shortfall()
    }

    /// What was received so far.
    pub fn stats(&self) -> RxStats {
        self.0.stats()
    }
}

/// Received bytes in a [`DmaBuf`], which this process cannot read. Dropping all parts of a span gives the chunk
/// back.
///
/// It has no slice and cannot be lent on: up to Linux 7.2 a ring sends and writes only memory of its process.
/// You can tell the memory's owner the place, split the span, and give it back.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::DmaBufReceiver) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(span) = receiver.next_span().await {
///     let mut payload = span?;
///     let header = payload.split_to(16); // both parts hold the chunk
///     println!("16 bytes at {}, then {} at {}", header.offset(), payload.len(), payload.offset());
/// }
/// # Ok(()) }
/// ```
// Nobody reads the span's bytes: that is not possible.
pub struct DmaBufSpan(Span);

impl DmaBufSpan {
    pub(crate) fn new(span: Span) -> Self {
        Self(span)
    }

    /// Where in the dma-buf it begins, in bytes.
    pub fn offset(&self) -> usize {
        self.0.offset()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.count()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the first `at` bytes off into a span of their own, which shares the chunk.
    ///
    /// # Panics
    ///
    /// When `at` is past the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        Self(self.0.split_to(at))
    }
}

impl std::fmt::Debug for DmaBufSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaBufSpan")
            .field("offset", &self.offset())
            .field("len", &self.len())
            .finish()
    }
}
