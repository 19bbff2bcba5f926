//! What two sides have agreed on: the export's size, what it can do, and how requests look.

use crate::wire::{Framing, Reader, TransmissionFlags};

/// Sizes that requests must keep to, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it: a power of 2, at most 65,536.
    pub minimum: u32,
    /// What is fast: a power of 2, at least 512 and at least the minimum.
    pub preferred: u32,
    /// The most payload of a request or of its answer, at least the preferred size.
    pub maximum: u32,
}

impl Default for BlockSizes {
    /// What the protocol lets both sides expect where nothing was said.
    fn default() -> Self {
        Self { minimum: 1, preferred: 4096, maximum: 1 << 25 }
    }
}

impl BlockSizes {
    /// Bytes of its form on the wire.
    pub const LEN: usize = 12;

    /// Whether the sizes are as the protocol wants them.
    pub fn is_sound(&self) -> bool {
        self.minimum.is_power_of_two()
            && self.minimum <= 1 << 16
            && self.preferred.is_power_of_two()
            && self.preferred >= self.minimum.max(512)
            && self.maximum >= self.preferred
    }

    /// Its form on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.minimum.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.preferred.to_be_bytes());
        bytes[8..].copy_from_slice(&self.maximum.to_be_bytes());
        bytes
    }

    /// Reads some; `None` where the length is another, or the sizes are not as the protocol wants them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (minimum, preferred) = (reader.u32()?, reader.u32()?);
        let sizes = Self { minimum, preferred, maximum: reader.u32()? };
        (reader.0.is_empty() && sizes.is_sound()).then_some(sizes)
    }
}

/// An export in the transmission phase, as both sides know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Bytes of the export.
    pub size: u64,
    /// What it can do, as it was announced.
    pub flags: TransmissionFlags,
    /// Sizes that requests must keep to.
    pub block: BlockSizes,
    /// Which headers are used.
    pub framing: Framing,
    /// Whether a metadata context was chosen, so that block status can be asked for.
    pub has_contexts: bool,
}
