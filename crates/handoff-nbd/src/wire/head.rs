//! Bytes that go before a payload, without an allocation.

use std::fmt;
use std::ops::Deref;

/// The longest: an extended header with a hole.
const MOST: usize = 44;

/// A header, and what stands between it and the payload. It is bytes: send all of them.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; MOST],
    len: usize,
}

impl Head {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; MOST], len: 0 }
    }

    pub(crate) fn with(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }
}

impl Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Head {}

impl fmt::Debug for Head {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Head({:02x?})", &**self)
    }
}
