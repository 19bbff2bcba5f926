//! What a host knows about a peer: its lanes, and the connection of each.

use std::array;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use super::arriving::Arriving;
use super::congestion::Congestion;
use super::output::{ConnectionId, MessageId};
use super::role::Role;
use crate::wire::{HEADER_LEN, Header, MAX_LANES};

/// After so many pongs owed, a connection is not read until they are written.
pub(super) const MAX_PONGS: usize = 64;
/// Pings to a peer that wait to be written.
pub(super) const MAX_PINGS: usize = 64;

pub(super) struct Peer {
    pub(super) address: IpAddr,
    pub(super) role: Role,
    /// The number that the peer last told, and the latest of the connections that told it.
    pub(super) generation: Option<(u32, ConnectionId)>,
    /// Lanes in common, once known; before that no message goes out.
    pub(super) lanes: Option<u8>,
    /// Whether the peer's maps carry extension headers, as ours do.
    pub(super) extended: Option<bool>,
    pub(super) congestion: Congestion,
    pub(super) lane: [Lane; MAX_LANES as usize],
    pub(super) fan_out: FanOut,
    /// Ports to ping from, by lane 0.
    pub(super) pings: VecDeque<u16>,
    /// Bytes accepted that have not come back.
    pub(super) queued: u64,
    /// Messages accepted whose end is not known.
    pub(super) unfinished: usize,
    /// Something has come by one of its connections, perhaps by one that has ended.
    pub(super) spoke: bool,
    /// Bytes received from it that nobody has taken, including parts of messages.
    pub(super) held: u64,
    pub(super) last_used: Duration,
}

/// Progress of a peer from lane 0 to a lane for each port.
///
/// A kernel sends by lane 0 until it knows the number of lanes. It uses the others once TCP has acknowledged
/// everything on lane 0, which does not mean that it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FanOut {
    /// No other lane has brought a message.
    #[default]
    Ahead,
    /// One has, and waits until the peer's connections are accepted: one of lane 0 may be among them.
    Accepts,
    /// It waits until everything unread on this connection of lane 0, and on later ones, is read.
    Awaits(ConnectionId),
    /// Everything that came by lane 0 before is read.
    Over,
}

#[derive(Default)]
pub(super) struct Lane {
    pub(super) link: Link,
    /// Accepted connections that wait until earlier ones are drained.
    pub(super) successors: VecDeque<ConnectionId>,
    /// Never written.
    pub(super) queue: VecDeque<MessageId>,
    /// Messages written to a connection that ended, in order.
    pub(super) retransmit: VecDeque<MessageId>,
    pub(super) next_tx: u64,
    pub(super) next_rx: u64,
    pub(super) retry_at: Duration,
    pub(super) backoff: Duration,
}

#[derive(Default)]
pub(super) enum Link {
    #[default]
    Down,
    /// We asked for it at that time; as the server, only so that the peer connects to us.
    Connecting(ConnectionId, Duration),
    Up(Box<Connection>),
}

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// When it came up, or was last seen with something unread.
    pub(super) since: Duration,
    /// Something has arrived.
    pub(super) heard: bool,
    /// The generation that the peer told on this connection.
    pub(super) verified: Option<u32>,
    /// A frame with a number has arrived.
    pub(super) numbered: bool,
    /// It had brought numbers before saying whose, when the peer's restart was noticed elsewhere. What it
    /// still carries is of the former incarnation, and its numbers say nothing about the lane's in this one.
    pub(super) former: bool,
    /// A map must be written, also at the beginning.
    pub(super) map_pending: bool,
    /// The peer must be asked for its lanes and generation.
    pub(super) probe: Probe,
    pub(super) pongs: VecDeque<u16>,
    /// Bytes given out to be written.
    pub(super) offset: u64,
    /// Frames given out and not acknowledged, each with the stream's offset at its end.
    pub(super) written: VecDeque<(u64, Frame)>,
    pub(super) reading: Reading,
    pub(super) arriving: Arriving,
    /// `Ready` was said.
    pub(super) signalled: bool,
    /// `Drain` was said.
    pub(super) draining: bool,
    /// `Finish` was said.
    pub(super) retiring: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    No,
    Pending,
    /// Written at that time.
    Sent(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Message(MessageId),
    /// A map, by its version.
    Map(u64),
    /// Nothing that anybody waits for.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Reading {
    Header,
    /// A header that cannot be acted on yet.
    Paused(Header),
    Payload(Header),
    Skip(usize),
    Map,
}

impl Connection {
    pub(super) fn new(id: ConnectionId, since: Duration) -> Self {
        Self {
            id,
            since,
            heard: false,
            verified: None,
            numbered: false,
            former: false,
            map_pending: true,
            probe: Probe::No,
            pongs: VecDeque::new(),
            offset: 0,
            written: VecDeque::new(),
            reading: Reading::Header,
            arriving: Arriving::default(),
            signalled: false,
            draining: false,
            retiring: false,
        }
    }

    /// When it has been silent for too long, on this lane of a peer that `spoke` or not. All say something on lane 0, and
    /// a kernel elsewhere only if it has something to say.
    pub(super) fn silent_at(
        &self,
        lane: usize,
        spoke: bool,
        peer_timeout: Duration,
    ) -> Option<Duration> {
        // A paused header is no silence.
        let waits = !self.heard && !matches!(self.reading, Reading::Paused(_));
        (waits && (lane == 0 || !spoke)).then_some(self.since + peer_timeout)
    }

    /// When the answer to a probe has been awaited for too long.
    pub(super) fn answer_deadline(&self, peer_timeout: Duration) -> Option<Duration> {
        match self.probe {
            Probe::Sent(at) if self.heard => Some(at.max(self.since) + peer_timeout),
            _ => None,
        }
    }

    /// Notes that so many bytes wait to be read; returns whether there is a header among them. If so, it has been neither
    /// silent nor without an answer until now.
    pub(super) fn note_unread(&mut self, now: Duration, waiting: usize) -> bool {
        let unread = waiting >= HEADER_LEN;
        if unread {
            self.since = now;
        }
        unread
    }

    /// Whether nothing more may be written to it.
    pub(super) fn is_ending(&self) -> bool {
        self.draining || self.retiring
    }
}

impl Lane {
    pub(super) fn up(&mut self) -> Option<&mut Connection> {
        match &mut self.link {
            Link::Up(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Its connection, if a header waits there.
    pub(super) fn paused(&self) -> Option<ConnectionId> {
        match &self.link {
            Link::Up(it) if matches!(it.reading, Reading::Paused(_)) => Some(it.id),
            _ => None,
        }
    }

    pub(super) fn is_former(&self) -> bool {
        matches!(&self.link, Link::Up(connection) if connection.former)
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.queue.is_empty() || !self.retransmit.is_empty()
    }
}

impl Peer {
    pub(super) fn new(address: IpAddr, role: Role) -> Self {
        let lane = array::from_fn(|_| Lane { next_tx: 1, ..Lane::default() });
        Self {
            address,
            role,
            generation: None,
            lanes: None,
            extended: None,
            congestion: Congestion::default(),
            lane,
            fan_out: FanOut::default(),
            pings: VecDeque::new(),
            queued: 0,
            unfinished: 0,
            spoke: false,
            held: 0,
            last_used: Duration::ZERO,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.lane.iter().any(Lane::is_up)
    }

    pub(super) fn is_idle(&self) -> bool {
        let unconnected = |lane: &Lane| matches!(lane.link, Link::Down);
        self.queued == 0
            && self.held == 0
            && self.pings.is_empty()
            && self.lane.iter().all(unconnected)
    }

    /// Whether we should make a connection for the lane.
    pub(super) fn wants(&self, lane: usize, now: Duration, keep: Duration) -> bool {
        let lanes = usize::from(self.lanes.unwrap_or(1));
        let awaited = self.congestion.is_awaited(now, keep);
        match self.role {
            Role::Client => {
                let used = self.unfinished > 0 || now < self.last_used + keep || awaited;
                lane < lanes && (used || !self.pings.is_empty())
            }
            // The client makes the others.
            Role::Server => {
                let unsent = self.lane.iter().any(|lane| !lane.is_up() && lane.has_unsent());
                let asked = awaited || !self.pings.is_empty();
                lane == 0 && (unsent || !self.lane[0].is_up() && asked)
            }
        }
    }
}
