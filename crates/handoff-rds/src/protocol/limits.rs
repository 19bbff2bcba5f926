//! The limits of a host.

use std::time::Duration;

use crate::wire::{KERNEL_MESSAGE_LIMIT, MAX_LANES};

/// Bounds of a [`Host`](super::Host). Memory for received payloads stays below `held`, plus two messages of
/// `message` bytes; memory for sent ones below `peers` times `queued`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of one message, both ways. The kernel sends no longer ones.
    pub message: usize,
    /// Bytes accepted for one peer that have not come back yet.
    pub queued: u64,
    /// Bytes that the socket of one port holds before peers are told that it is congested; below half of it
    /// they are told that it no longer is.
    pub receive: u64,
    /// Bytes that all sockets hold before connections are no longer read.
    pub held: u64,
    /// Peers remembered.
    pub peers: usize,
    /// Lanes to one peer: 1, 2, 4 or 8.
    pub lanes: u8,
    /// How long after the last traffic with a peer lost connections are remade.
    pub keep: Duration,
    /// After how long without traffic a peer may be forgotten in favour of another. Messages that the peer
    /// resends after that may be delivered twice.
    pub forget: Duration,
    /// How long a new connection may stay silent, on lane 0 or while the peer has said nothing at all, and how long a
    /// probe may stay unanswered.
    pub peer_timeout: Duration,
    /// Time from a lost connection to the next attempt; it doubles up to the second value.
    pub retry: (Duration, Duration),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: KERNEL_MESSAGE_LIMIT,
            queued: 16 << 20,
            receive: 4 << 20,
            held: 64 << 20,
            peers: 1024,
            lanes: MAX_LANES,
            keep: Duration::from_secs(60),
            forget: Duration::from_secs(600),
            peer_timeout: Duration::from_secs(10),
            retry: (Duration::from_millis(10), Duration::from_secs(1)),
        }
    }
}

impl Limits {
    /// The number of lanes between us and a peer that can have `theirs`.
    pub(super) fn common_lanes(&self, theirs: u16) -> u8 {
        let most = u16::from(self.lanes.clamp(1, MAX_LANES)).min(theirs.max(1));
        1 << most.ilog2()
    }
}
