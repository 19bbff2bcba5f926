//! Lending `bytes::Bytes`, and turning frozen buffers into `Bytes`.
//!
//! Minimum kernel: any. They are not registered: their memory belongs to any owner.
//!
//! Contracts:
//! - an operation holds a handle of the bytes until the kernel lets go of them, so they stay in place and
//!   unchanged;
//! - the drop of their owner is foreign code. What the driver drops, it drops with the wakers, when all news of
//!   a turn is told.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;

use super::Frozen;

/// The last handle, which nobody wants.
struct Last(#[allow(dead_code, reason = "only dropped")] Bytes);

impl Wake for Last {
    // This drops the handle.
    fn wake(self: Arc<Self>) {}
}

/// A waker that drops the bytes when it is called.
pub(super) fn last_of(bytes: Bytes) -> Waker {
    Waker::from(Arc::new(Last(bytes)))
}

impl From<Frozen> for Bytes {
    /// Turns a frozen buffer into bytes without a copy. You can unfreeze it by a clone or part that stayed
    /// a [`Frozen`], when the bytes and all made of them are gone.
    ///
    /// ```
    /// let frozen = handoff::Buffer::from(b"hello".to_vec()).freeze();
    /// let mut bytes = bytes::Bytes::from(frozen.clone());
    /// assert_eq!(bytes.split_to(2), "he");
    /// drop(bytes);
    /// assert!(frozen.try_unfreeze().is_ok());
    /// ```
    fn from(frozen: Frozen) -> Self {
        Self::from_owner(frozen)
    }
}
