//! Messages received.

use std::net::SocketAddr;

/// A message received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The peer and its port.
    pub from: SocketAddr,
    /// The bytes, in memory of exactly their length.
    pub payload: Vec<u8>,
}
