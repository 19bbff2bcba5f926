//! A host's counters.

/// Counters since the host's beginning, and what it holds now.
///
/// [`Host::statistics`](super::Host::statistics) returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages accepted for sending.
    pub accepted: u64,
    /// Messages that peers acknowledged.
    pub acknowledged: u64,
    /// Messages given out again after a connection ended.
    pub retransmitted: u64,
    /// Messages given up because a peer restarted.
    pub lost_to_restarts: u64,
    /// Messages given up because they were cancelled.
    pub cancelled: u64,
    /// Messages refused because the port at the peer was congested.
    pub refused_congested: u64,
    /// Messages refused because too many bytes were queued for the peer.
    pub refused_full: u64,
    /// Messages delivered.
    pub received: u64,
    /// Messages received again, and dropped.
    pub duplicates: u64,
    /// Numbers of messages and pings that did not come: their senders gave them up, or lost them.
    pub missed: u64,
    /// Messages received for a port that nobody has bound, and dropped.
    pub unbound: u64,
    /// Pings received.
    pub pings: u64,
    /// Congestion maps received.
    pub maps_received: u64,
    /// Congestion maps given out to be written.
    pub maps_sent: u64,
    /// Connections that came up.
    pub connections: u64,
    /// Connections closed because a peer broke the protocol.
    pub violations: u64,
    /// Lanes renewed to make a kernel send its congestion map again.
    pub renewals: u64,
    /// Restarts of peers.
    pub restarts: u64,
    /// Headers that were judged: one that waits is judged again when it may go on.
    pub judged: u64,
    /// How often a connection was not read for lack of room.
    pub pauses: u64,
    /// Events that nobody took in time.
    pub events_dropped: u64,
    /// Bytes accepted for sending that have not come back.
    pub queued_bytes: u64,
    /// Bytes received or being received that nobody took yet.
    pub held_bytes: u64,
}
