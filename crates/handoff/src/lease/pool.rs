//! Receive pools: chunks of a region; the kernel picks one when data arrives.
//!
//! Minimum kernel: 5.19 (`IORING_REGISTER_PBUF_RING`); without a ring, this module hands out the chunks.
//! Receiving holds no more than the pool's chunks: when none is left, receivers wait.

use std::cell::{Cell, OnceCell, RefCell};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Release};

use handoff_sys::process::Process;
use io_uring::types::BufRingEntry;
use rustix::mm::MapFlags;

use super::datagram::DATAGRAM_HEAD;
use super::pending::Pending;
use crate::error::{Error, Result};
use crate::memory::{Backed, Backing, Region, map};
use crate::ring::{Backend, Io, Key};

/// The most chunks in a pool, by the kernel's limit on a ring of buffers.
const MAX_CHUNKS: usize = 1 << 15;

/// Chunks that receivers share.
///
/// TLS connections that this process deciphers share as many chunks again, in memory that is made for the first of them.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = driver.pool(handoff::Region::anonymous(1 << 20)?, 1 << 16)?;
/// let mut receiver = socket.receive(&pool)?;
/// while let Some(span) = receiver.next_span().await {
///     println!("{} bytes; {} of {} chunks are out", span?.len(), pool.held(), pool.chunks());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(crate) shared: Rc<PoolShared>,
}

pub(crate) struct PoolShared {
    io: Weak<Io>,
    pending: Weak<Pending>,
    /// In a child there is no memory of it.
    made_by: Process,
    backing: Arc<Backing>,
    chunk: usize,
    chunks: usize,
    /// The ring of free chunks that the kernel takes from, or their list without a ring.
    supply: Supply,
    /// Chunks with received bytes, which nobody can receive into now.
    held: Cell<usize>,
    /// Receivers that found no chunk.
    starving: RefCell<Vec<Key>>,
    /// As many chunks again, which this module hands out, where the kernel takes the others.
    by_hand: OnceCell<Rc<PoolShared>>,
}

enum Supply {
    Ring { group: u16, entries: Arc<Backing>, mask: u16, tail: Cell<u16> },
    List(RefCell<Vec<u16>>),
}

impl Pool {
    pub(crate) fn new(
        io: &Rc<Io>,
        pending: &Rc<Pending>,
        region: Region,
        chunk: usize,
    ) -> Result<Self> {
        let chunks = region.len().checked_div(chunk).unwrap_or(0).min(MAX_CHUNKS);
        if chunks == 0 || u32::try_from(chunk).is_err() {
            return Err(Error::Invalid(
                "a pool needs room for at least one chunk, of at least one byte and below 4 GiB",
            ));
        }
        if region.free() != region.len() {
            return Err(Error::Invalid(
                "a pool takes a whole region, and buffers were cut from this one",
            ));
        }
        let supply = match &io.backend {
            Backend::Ring(ring) => {
                let slots = chunks.next_power_of_two();
                let entries = map(slots * size_of::<BufRingEntry>(), MapFlags::PRIVATE, None)
                    .map_err(|error| Error::io("mapping a ring of buffers", error))?;
                let group = io
                    .take_group()
                    .ok_or(Error::Invalid("a driver has at most 65536 pools at a time"))?;
                // SAFETY: the mapping is page-aligned, zeroed, large enough for the entries, and kept
                // until the ring of buffers is unregistered or its io_uring is closed.
                unsafe {
                    ring.borrow_mut().io.submitter().register_buf_ring_with_flags(
                        entries.start().as_ptr().addr() as u64,
                        slots as u16,
                        group,
                        0,
                    )
                }
                .map_err(|error| {
                    io.release_group(group);
                    Error::io("registering a ring of buffers", error)
                })?;
                Supply::Ring { group, entries, mask: (slots - 1) as u16, tail: Cell::new(0) }
            }
            Backend::Readiness(_) => Supply::List(RefCell::default()),
        };
        let shared = PoolShared::new(io, pending, region.backing().clone(), chunk, chunks, supply);
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Bytes of a chunk: the most that one receive returns.
    pub fn chunk(&self) -> usize {
        self.shared.chunk
    }

    /// Chunks in all.
    pub fn chunks(&self) -> usize {
        self.shared.chunks
    }

    /// Chunks with received bytes that nobody has dropped, whether or not you have taken them.
    pub fn held(&self) -> usize {
        self.shared.held()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("chunk", &self.chunk())
            .field("chunks", &self.chunks())
            .field("held", &self.held())
            .finish()
    }
}

impl PoolShared {
    fn new(
        io: &Rc<Io>,
        pending: &Rc<Pending>,
        backing: Arc<Backing>,
        chunk: usize,
        chunks: usize,
        supply: Supply,
    ) -> Self {
        let pool = Self {
            io: Rc::downgrade(io),
            pending: Rc::downgrade(pending),
            made_by: io.made_by,
            backing,
            chunk,
            chunks,
            supply,
            held: Cell::new(0),
            starving: RefCell::default(),
            by_hand: OnceCell::new(),
        };
        for chunk in 0..chunks {
            pool.supply_chunk(chunk as u16);
        }
        pool
    }

    /// Chunks that this module hands out, with or without a ring.
    pub(crate) fn of_list(
        io: &Rc<Io>,
        pending: &Rc<Pending>,
        backing: Arc<Backing>,
        chunk: usize,
        chunks: usize,
    ) -> Self {
        let supply = Supply::List(RefCell::default());
        Self::new(io, pending, backing, chunk, chunks.min(MAX_CHUNKS), supply)
    }

    /// Chunks that this module hands out: those of the pool, or as many in memory beside it where the kernel takes the
    /// pool's, since the kernel gives none back unused.
    #[cfg(feature = "tls")]
    pub(crate) fn by_hand(this: &Rc<Self>) -> Result<Rc<Self>> {
        if let Supply::List(_) = this.supply {
            return Ok(Rc::clone(this));
        }
        if let Some(beside) = this.by_hand.get() {
            return Ok(Rc::clone(beside));
        }
        let (Some(io), Some(pending)) = (this.io.upgrade(), this.pending.upgrade()) else {
            return Err(Error::DriverGone);
        };
        let memory = map(this.chunk * this.chunks, MapFlags::PRIVATE, None)
            .map_err(|error| Error::io("mapping memory beside a pool", error))?;
        let beside = Self::of_list(&io, &pending, memory, this.chunk, this.chunks);
        Ok(Rc::clone(this.by_hand.get_or_init(|| Rc::new(beside))))
    }

    /// Chunks that hold bytes.
    pub(crate) fn held(&self) -> usize {
        self.held.get() + self.by_hand.get().map_or(0, |beside| beside.held())
    }

    /// A ring names pools by number, so another driver's would be mistaken for its own.
    pub(crate) fn is_of(&self, pending: &Rc<Pending>) -> bool {
        std::ptr::eq(self.pending.as_ptr(), Rc::as_ptr(pending))
    }

    pub(super) fn pending(&self) -> Option<Rc<Pending>> {
        self.pending.upgrade()
    }

    /// The group that requests name, with a ring.
    pub(crate) fn group(&self) -> Option<u16> {
        match &self.supply {
            Supply::Ring { group, .. } => Some(*group),
            Supply::List(_) => None,
        }
    }

    /// Takes a chunk to receive into, without a ring.
    pub(crate) fn take_chunk(&self) -> Option<(u16, NonNull<u8>, usize)> {
        let Supply::List(free) = &self.supply else { return None };
        let chunk = free.borrow_mut().pop()?;
        Some((chunk, self.start(chunk), self.chunk))
    }

    /// Puts a chunk of [`take_chunk`](Self::take_chunk) back unused.
    pub(crate) fn untake_chunk(&self, chunk: u16) {
        self.supply_chunk(chunk);
    }

    /// Counts a chunk that a receive filled with so many bytes.
    pub(super) fn hold(&self, len: usize) {
        assert!(len <= self.chunk, "{len} bytes in a chunk of {}", self.chunk);
        self.held.set(self.held.get() + 1);
    }

    /// The head of a chunk.
    ///
    /// # Safety
    ///
    /// The chunk was [filled with a datagram](Self::filled_datagram), and is not given back as long as the bytes are
    /// looked at.
    pub(crate) unsafe fn head(&self, chunk: u16) -> &[u8] {
        // SAFETY: it is initialised, and nobody writes it meanwhile, as the caller says.
        unsafe { std::slice::from_raw_parts(self.start(chunk).as_ptr(), DATAGRAM_HEAD) }
    }

    /// Bytes of a chunk.
    pub(crate) fn chunk(&self) -> usize {
        self.chunk
    }

    /// The memory of the chunks.
    pub(crate) fn memory(&self) -> &Arc<Backing> {
        &self.backing
    }

    pub(super) fn start(&self, chunk: u16) -> NonNull<u8> {
        // SAFETY: every chunk lies in the backing.
        unsafe { self.backing.start().add(usize::from(chunk) * self.chunk) }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(crate) fn give_back(this: &Rc<Self>, chunk: u16) {
        if !this.made_by.is_this() {
            return;
        }
        this.held.set(this.held.get() - 1);
        this.supply_chunk(chunk);
        if let Some(pending) = this.pending.upgrade() {
            for receiver in this.starving.borrow_mut().drain(..) {
                pending.mark_receive(receiver);
            }
        }
    }

    pub(crate) fn starve(&self, receiver: Key) {
        self.starving.borrow_mut().push(receiver);
    }

    /// Whether a chunk is free, so that a receiver without one may go on.
    pub(crate) fn has_free(&self) -> bool {
        self.held.get() < self.chunks
    }

    pub(crate) fn forget(&self, receiver: Key) {
        self.starving.borrow_mut().retain(|starving| *starving != receiver);
    }

    fn supply_chunk(&self, chunk: u16) {
        let Supply::Ring { entries, mask, tail, .. } = &self.supply else {
            if let Supply::List(free) = &self.supply {
                free.borrow_mut().push(chunk);
            }
            return;
        };
        let base = entries.start().as_ptr().cast::<BufRingEntry>();
        // SAFETY: the masked index is below the number of entries; only this thread writes entries,
        // and the kernel reads none at or past the tail. The first entry's last two bytes are the
        // tail itself, which the setters leave alone.
        let entry = unsafe { &mut *base.add(usize::from(tail.get() & mask)) };
        entry.set_addr(self.start(chunk).as_ptr().addr() as u64);
        entry.set_len(self.chunk as u32);
        entry.set_bid(chunk);
        tail.set(tail.get().wrapping_add(1));
        // SAFETY: `base` is the first entry; its tail is aligned and written by this thread only.
        let published = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) };
        published.store(tail.get(), Release);
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        if let (Some(io), Supply::Ring { group, .. }) = (self.io.upgrade(), &self.supply)
            && let Some(ring) = io.ring()
        {
            match ring.borrow().io.submitter().unregister_buf_ring(*group) {
                Ok(()) => io.release_group(*group),
                Err(error) => tracing::warn!(%error, "unregistering a ring of buffers failed"),
            }
        }
    }
}
