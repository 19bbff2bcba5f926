//! Payloads: types that own bytes and keep them still.

use std::sync::Arc;

use handoff::Buffer;

/// Owns the bytes of a message, and may carry whatever its owner needs to recognise it.
///
/// # Safety
///
/// [`Payload::bytes`] must return the same memory each time. Until the value is dropped or given to
/// somebody who may change it, those bytes must stay in place and unchanged, also while the value is moved.
pub unsafe trait Payload: Send + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

// SAFETY: the memory belongs to the buffer's region, and a buffer owns its range alone.
unsafe impl Payload for Buffer {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: a vector's bytes are on the heap, and it owns them alone.
unsafe impl Payload for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: a box's bytes are on the heap, and it owns them alone.
unsafe impl Payload for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: shared bytes are not changed while anybody holds them (`Arc::get_mut` wants the only owner), and
// stay on the heap.
unsafe impl Payload for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: these bytes are never changed, and never go.
unsafe impl Payload for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: the payload keeps its bytes, whatever stands beside it.
unsafe impl<P: Payload, T: Send + 'static> Payload for (P, T) {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}
