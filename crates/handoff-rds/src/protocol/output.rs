//! What a host asks for, reports and lends.

use std::net::IpAddr;
use std::sync::Arc;

use crate::wire::{CongestionMap, HEADER_LEN, Truncated};

/// A TCP connection, or the attempt at one. A host never reuses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

/// A message accepted for sending. A host never reuses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(super) u64);

/// A request to the host's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Connect to port [`crate::wire::PORT`] of the peer, from a source port that is `lane` modulo 8;
    /// answer with `connected` or `closed`.
    Connect {
        /// The attempt's name.
        connection: ConnectionId,
        /// Where to.
        peer: IpAddr,
        /// The source port encodes the lane.
        lane: u8,
    },
    /// `next_write` has something for this connection. Not repeated before `next_write` returned `None`.
    Ready(ConnectionId),
    /// The connection is in use, or there is room again: read from it.
    Resume(ConnectionId),
    /// A connection waits for earlier ones of the peer: accept all that there are, and call `accepted_all`. Serve the
    /// host's requests between two of them, since few of a lane's connections may wait until others are drained.
    Accept(IpAddr),
    /// Another connection waits until everything unread on this one now is handed in: then call
    /// `caught_up`.
    CatchUp(ConnectionId),
    /// Renew the lane: once everything given out is written, shut down the connection's sending side, hand
    /// in all that comes until the peer's end, and call `closed`.
    Finish(ConnectionId),
    /// Another connection takes this one's place: hand in all that has arrived on it, close it, and call
    /// `closed`. Bytes whose acknowledgement the peer's TCP has seen count as delivered there.
    Drain(ConnectionId),
    /// Close the connection, which the host has forgotten.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Whose.
        peer: IpAddr,
        /// The reason, for the log.
        reason: Reason,
    },
}

/// Why a connection was closed or refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The peer announces more than a message may have.
    #[error("the peer announces a message of {len} bytes, the limit is {limit}")]
    Oversize {
        /// Bytes announced.
        len: u32,
        /// [`Limits::message`](super::Limits::message).
        limit: usize,
    },
    /// A congestion map of the wrong length.
    #[error("the peer announces a congestion map of {0} bytes, which has 8192")]
    MapLength(u32),
    /// A ping, a pong or a probe with a payload.
    #[error("the peer sends a ping or pong with a payload of {0} bytes")]
    PingLength(u32),
    /// An extension header is cut off.
    #[error("malformed header: {0}")]
    Extension(#[from] Truncated),
    /// The rest of a message does not come, or almost nothing of it.
    #[error("the peer does not go on with a message: {arrived} of {len} bytes have come")]
    Stalled {
        /// Bytes that have come.
        arrived: u64,
        /// Bytes announced.
        len: u32,
    },
    /// Nothing came on a new connection.
    #[error("the peer says nothing on a new connection")]
    Silent,
    /// The other side must connect; it was asked to.
    #[error("the peer's connection only asks for ours, because its address is the larger")]
    WakeUp,
    /// The connection that this one asked for is there, or this one is too late.
    #[error("its purpose, to ask for a connection, is fulfilled or given up")]
    Asked,
    /// The source port encodes a lane that we do not have.
    #[error("lane {0} is not in use here")]
    NoSuchLane(u8),
    /// The peer has restarted since the connection was made.
    #[error("the connection is older than the peer's restart")]
    FormerLife,
    /// The lane's former connections are not read to their ends.
    #[error("the lane's former connections still wait to be read, for want of room")]
    Undrained,
    /// More peers than the limit, none idle.
    #[error("{0} peers are known, the most this host was told to remember, and none is idle")]
    TooManyPeers(usize),
    /// The peer's address is ours.
    #[error("the peer has our own address")]
    OwnAddress,
}

/// Events that applications may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The first lane to a peer came up.
    Up(IpAddr),
    /// The last lane to a peer went down.
    Down(IpAddr),
    /// A peer has a new generation number. Messages that it had not acknowledged are given up.
    Restarted {
        /// Which peer.
        peer: IpAddr,
        /// Its generation in the new incarnation.
        generation: u32,
        /// Messages to it that were given up.
        lost: usize,
    },
    /// Some port at a peer is no longer congested.
    Uncongested(IpAddr),
    /// A peer answered [`Host::ping`](super::Host::ping).
    Pong {
        /// Which peer.
        peer: IpAddr,
        /// The port that the ping came from.
        port: u16,
    },
}

/// What the driver must read next from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A header: hand it in by `header`.
    Header,
    /// This many bytes in all, into a buffer of the driver's choice: whenever some have come, report their
    /// number by `payload_arrived`, then ask again; hand in the whole by `payload_received`.
    Payload(usize),
    /// This many bytes that nobody wants: call `skipped` afterwards.
    Skip(usize),
    /// A congestion map: hand it in by `map`.
    Map,
    /// Nothing until [`Output::Resume`], or the connection is forgotten.
    Nothing,
}

/// A frame to write whole: the header, then the body.
#[derive(Debug)]
pub struct Write {
    /// The header's bytes.
    pub header: [u8; HEADER_LEN],
    /// What follows.
    pub body: Body,
}

/// What follows a header.
#[derive(Debug)]
pub enum Body {
    /// Nothing.
    Empty,
    /// A message's payload, on loan: [`Host::payload`](super::Host::payload) has it, and the driver calls
    /// `released` once the kernel has let go of it, also if the connection ends.
    Message(MessageId),
    /// A congestion map.
    Map(Arc<CongestionMap>),
}
