//! A pool of buffers of one region: memory for sends that comes back.
//!
//! Minimum kernel: any. Register the region by the pool or by itself.
//!
//! Contracts:
//! - a buffer is free again when the last piece of it is gone, in hand or on loan, on any thread;
//! - to take a buffer and to give it back allocates nothing;
//! - the first waiter gets the next buffer; a dropped wait keeps none;
//! - wakers are called without the lock, and a driver calls them when all news of a turn is told.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::chunk::{Chunk, Shared, Stands, State, Waiting};
use super::{Backed, Backing, Buffer, Memory, Piece, Region};
use crate::error::{Error, Result};
use crate::sync::{AtomicU32, Mutex};

/// Buffers of one length that come back to their region: [`get`](Self::get) takes one, and dropping it, or the
/// end of its last loan, gives it back.
///
/// A driver that goes while the kernel has buffers, whose peers take nothing, leaves them to the kernel for good, and a
/// pool that outlives it has fewer from then on. Reset such connections before
/// ([`Socket::abort`](crate::Socket::abort)), or keep the driver until they are back.
///
/// You can clone a pool and use it from any thread. Its buffers are [`Buffer`]s like any other: lend, split and
/// [freeze](Buffer::freeze) them. A buffer still has the bytes of its last user.
///
/// ```no_run
/// use handoff::{BufferPool, Driver, Region};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new()?;
/// let pool = BufferPool::new(Region::anonymous(1 << 20)?, 1 << 14)?;
/// driver.register(&pool)?;
/// let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// driver.block_on(async {
///     for number in 0..1000 {
///         let mut buffer = pool.get().await;
///         buffer.fill(number as u8);
///         let (sent, _) = socket.send(buffer).map_err(|refused| refused.error)?.split();
///         sent.await?;
///     }
///     Ok::<_, handoff::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

impl Shared {
    fn buffer(self: &Arc<Self>, number: u32) -> Buffer {
        // SAFETY: the pool has this many buffers within its memory.
        let start: NonNull<u8> = unsafe { self.memory.start().add(number as usize * self.stride) };
        let chunk = Chunk::first(self, number);
        // SAFETY: the number was free, so that no piece of these bytes is there, and it is not handed out
        // again before the last piece of it is gone.
        Buffer(unsafe { Piece::of_pool(chunk, start, self.len) })
    }
}

impl BufferPool {
    /// Makes a pool of a region: as many buffers of `len` bytes as fit.
    ///
    /// # Errors
    ///
    /// When buffers were cut from the region, or it has no room for one.
    pub fn new(region: Region, len: usize) -> Result<Self> {
        if region.free() != region.len() {
            return Err(Error::Invalid("a region that becomes a pool has no buffers cut from it"));
        }
        let count = super::region::places(region.len(), len);
        if count == 0 {
            return Err(Error::Invalid("a pool has room for one buffer of at least a byte"));
        }
        let count = u32::try_from(count)
            .map_err(|_| Error::Invalid("a pool has less than 2^32 buffers"))?;
        // The first buffer is handed out first.
        let state = State { free: (0..count).rev().collect(), waiting: VecDeque::new(), next: 0 };
        Ok(Self(Arc::new(Shared {
            memory: Arc::clone(region.backing()),
            len,
            stride: super::region::stride(len),
            pieces: (0..count).map(|_| AtomicU32::new(0)).collect(),
            state: Mutex::new(state),
        })))
    }

    /// A buffer, if one is free and nobody waits.
    pub fn try_get(&self) -> Option<Buffer> {
        let number = self.0.state().free.pop()?;
        Some(self.0.buffer(number))
    }

    /// Waits for a buffer; the first waiter gets the first.
    ///
    /// If the buffers of a pool never come back, this never ends:
    /// [`Driver::get_within`](crate::Driver::get_within) gives up, and says who has them.
    pub fn get(&self) -> GetBuffer {
        GetBuffer { pool: self.clone(), ticket: None }
    }

    /// Bytes of a buffer.
    pub fn buffer_len(&self) -> usize {
        self.0.len
    }

    /// Buffers in all.
    pub fn buffers(&self) -> usize {
        self.0.pieces.len()
    }

    /// Buffers that are free.
    pub fn free(&self) -> usize {
        self.0.state().free.len()
    }

    /// The number of the buffer that a piece is part of, if the buffer is of this pool.
    pub(crate) fn number_of(&self, piece: &Piece) -> Option<u32> {
        let chunk = piece.chunk()?;
        Arc::ptr_eq(chunk.pool(), &self.0).then_some(chunk.number)
    }
}

impl Memory for BufferPool {}
impl Backed for BufferPool {
    fn backing(&self) -> &Arc<Backing> {
        &self.0.memory
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("buffer_len", &self.buffer_len())
            .field("buffers", &self.buffers())
            .field("free", &self.free())
            .finish()
    }
}

/// Future of [`BufferPool::get`].
///
/// ```no_run
/// # async fn example(pool: handoff::BufferPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut buffer = pool.get().await; // once somebody has given one back
/// buffer.fill(7);
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct GetBuffer {
    pool: BufferPool,
    /// Its place in the line, if it waits.
    ticket: Option<u64>,
}

impl GetBuffer {
    /// Leaves the line; returns the buffer that was given to it.
    fn leave(&mut self) -> Option<u32> {
        let ticket = self.ticket.take()?;
        let mut state = self.pool.0.state();
        let place = state.waiting.iter().position(|waiting| waiting.ticket == ticket)?;
        let waiting = state.waiting.remove(place)?;
        drop(state);
        match waiting.stands {
            Stands::Has(number) => Some(number),
            Stands::InLine(_) => None,
        }
    }
}

impl Future for GetBuffer {
    type Output = Buffer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Buffer> {
        let this = &mut *self;
        // Foreign code, before the lock; the old waker is dropped after it.
        let mut waker = Some(context.waker().clone());
        let pool = Arc::clone(&this.pool.0);
        let mut state = pool.state();
        let waiting = this
            .ticket
            .and_then(|ticket| state.waiting.iter_mut().find(|waiting| waiting.ticket == ticket));
        let number = match waiting {
            Some(Waiting { stands: Stands::InLine(before), .. }) => {
                waker = waker.map(|waker| std::mem::replace(before, waker));
                None
            }
            Some(Waiting { stands: Stands::Has(number), .. }) => Some(*number),
            None => state.free.pop(),
        };
        match number {
            Some(number) => {
                drop(state);
                let _ = this.leave();
                Poll::Ready(pool.buffer(number))
            }
            None => {
                if this.ticket.is_none() {
                    let ticket = state.next;
                    state.next += 1;
                    let waker = waker.take().expect("it has not gone anywhere");
                    state.waiting.push_back(Waiting { ticket, stands: Stands::InLine(waker) });
                    this.ticket = Some(ticket);
                }
                drop(state);
                drop(waker);
                Poll::Pending
            }
        }
    }
}

impl Drop for GetBuffer {
    fn drop(&mut self) {
        // Its buffer goes to the next waiter.
        let waker = self.leave().and_then(|number| self.pool.0.give_back(number));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
