//! `bytes::Bytes`, lent as they are; and what frozen buffers are to whoever wants such.
//!
//! Minimum kernel: any. They are not registered: their memory is whatever their owner has.
//!
//! Contracts:
//! - a handle of the bytes is held until the kernel lets go of them, so they stay where and as they are;
//! - the drop of their owner is foreign code. What the driver drops goes when all that came with a turn is told,
//!   in the place of a waker.

use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;

use super::Frozen;

/// The last handle that somebody gave up.
struct Last(#[allow(dead_code, reason = "only dropped")] Bytes);

impl Wake for Last {
    // With this goes the handle.
    fn wake(self: Arc<Self>) {}
}

/// What drops the bytes when it is called.
pub(super) fn last_of(bytes: Bytes) -> Waker {
    Waker::from(Arc::new(Last(bytes)))
}

impl From<Frozen> for Bytes {
    /// Makes a frozen buffer bytes without copying it. It is unfrozen by a clone or part that stayed a
    /// [`Frozen`], when the bytes and all that was made of them are gone.
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
