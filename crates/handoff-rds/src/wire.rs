//! The bytes that RDS puts on a TCP connection: headers, their extensions, congestion maps.
//!
//! Contracts:
//! - parsing allocates nothing, looks at a fixed number of bytes and never fails by a panic; what a
//!   length in a header may lead to is for the caller to bound ([`crate::protocol::Limits`]);
//! - what is written is parsed back as it was.
//!
//! Kernel interface: `struct rds_header` in `net/rds/rds.h`, extension headers in
//! `net/rds/message.c`. All numbers are big-endian. A connection carries frames, each a header of
//! [`HEADER_LEN`] bytes and the payload whose length the header tells.

mod congestion;
mod extension;
mod header;

pub use congestion::{CongestionMap, MAP_LEN};
pub use extension::{EXTENSIONS_LEN, Extension, Extensions, Truncated};
pub use header::{HEADER_LEN, Header};

/// The TCP port that RDS listens on.
pub const PORT: u16 = 16385;
/// Most TCP connections between two addresses; the source port modulo this is the lane.
pub const MAX_LANES: u8 = 8;
/// Payload that the kernel takes in one message, at most.
pub const KERNEL_MESSAGE_LIMIT: usize = 1 << 20;
/// The source port of a ping, and so the destination port of a pong, that carries capabilities.
pub const PROBE_PORT: u16 = 1;

/// Header flag: the payload is a congestion map. It stands alone.
pub const FLAG_CONGESTION_MAP: u8 = 0x01;
/// Header flag: sent before, over a connection that has ended since.
pub const FLAG_RETRANSMITTED: u8 = 0x04;
