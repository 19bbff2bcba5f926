//! Memory that payload is received into and read into.
//!
//! Contracts:
//! - all connections of a thread share two pools, registered with its ring where the limit on locked memory allows;
//! - a connection that finds the pools empty goes on with a little of its own, so nobody who keeps memory stops others.

use std::cell::OnceCell;
use std::pin::pin;

use futures_util::future::{Either, select};
use handoff::{Buffer, BufferPool, Driver, Region, Result};

/// Bytes of the large buffers, and the most of a piece.
pub(crate) const LARGE: usize = 256 << 10;
/// Bytes of the small ones.
pub(crate) const SMALL: usize = 16 << 10;
/// What a connection has of its own.
const OWN: usize = 64 << 10;

pub(crate) struct Memory {
    small: BufferPool,
    large: BufferPool,
    /// Why it is not registered.
    pub(crate) note: Option<String>,
}

impl Memory {
    /// An eighth in small buffers, the rest in large ones.
    ///
    /// # Errors
    ///
    /// When there is not so much.
    pub(crate) fn new(driver: &Driver, bytes: usize) -> Result<Self> {
        let small = (bytes / 8).max(SMALL) / SMALL * SMALL;
        let large = bytes.saturating_sub(small).max(LARGE) / LARGE * LARGE;
        let small = BufferPool::new(Region::anonymous(small)?, SMALL)?;
        let large = BufferPool::new(Region::anonymous(large)?, LARGE)?;
        let registered = driver.register(&small).and_then(|_| driver.register(&large));
        let note = registered.err().map(|error| format!("memory is not registered: {error}"));
        Ok(Self { small, large, note })
    }

    /// A free buffer with room for so many bytes, or for [`LARGE`], all of it in use.
    pub(crate) fn try_take(&self, len: usize) -> Option<Buffer> {
        let small = (len <= SMALL).then(|| self.small.try_get()).flatten();
        let mut buffer = small.or_else(|| self.large.try_get())?;
        buffer.set_len(buffer.capacity());
        Some(buffer)
    }

    /// Waits for a buffer, which may be shorter than asked for: of [`OWN`] at least.
    ///
    /// # Errors
    ///
    /// When the system has no memory.
    pub(crate) async fn take(&self, len: usize, own: &Own) -> Result<Buffer> {
        if let Some(buffer) = self.try_take(len) {
            return Ok(buffer);
        }
        let own = match own.0.get() {
            Some(pool) => pool,
            None => {
                let pool = BufferPool::new(Region::anonymous(OWN)?, OWN)?;
                own.0.get_or_init(|| pool)
            }
        };
        let pool = if len <= SMALL { &self.small } else { &self.large };
        let (own, shared) = (pin!(own.get()), pin!(pool.get()));
        let either = select(own, shared).await;
        let (Either::Left((mut buffer, _)) | Either::Right((mut buffer, _))) = either;
        buffer.set_len(buffer.capacity());
        Ok(buffer)
    }
}

/// A connection's own memory, made when it is first needed.
#[derive(Default)]
pub(crate) struct Own(OnceCell<BufferPool>);
