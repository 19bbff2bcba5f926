//! The bytes that RDS puts on a TCP connection: headers, their extensions, congestion maps.
//!
//! Contracts:
//! - parsing allocates nothing, reads a fixed number of bytes and never panics; the caller bounds what a
//!   length in a header may lead to ([`crate::protocol::Limits`]);
//! - written values parse back unchanged.
//!
//! Kernel interface: `struct rds_header` in `net/rds/rds.h`, extension headers in `net/rds/message.c`. All
//! numbers are big-endian. A connection carries frames, each a header of [`HEADER_LEN`] bytes and a payload
//! of the length in the header.

mod congestion;
mod extension;
mod header;

pub use congestion::{CongestionMap, MAP_LEN};
pub use extension::{EXTENSIONS_LEN, Extension, Extensions, Truncated};
pub use header::{HEADER_LEN, Header};

/// The TCP port that RDS listens on.
pub const PORT: u16 = 16385;
/// The most TCP connections between two addresses; the source port modulo this is the lane.
pub const MAX_LANES: u8 = 8;
/// The most payload that the kernel takes in one message.
pub const KERNEL_MESSAGE_LIMIT: usize = 1 << 20;
/// The source port of a ping, and so the destination port of a pong, that carries capabilities.
pub const PROBE_PORT: u16 = 1;

/// Header flag: the payload is a congestion map. It stands alone.
pub const FLAG_CONGESTION_MAP: u8 = 0x01;
/// Header flag: sent before, over a connection that has ended since.
pub const FLAG_RETRANSMITTED: u8 = 0x04;
