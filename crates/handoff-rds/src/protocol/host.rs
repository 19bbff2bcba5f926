//! A host: its sockets, their messages and what they hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use handoff::Tally;

use super::limits::Limits;
use super::output::{ConnectionId, Event, MessageId, Output, Reason};
use super::peer::{Connection, Frame, MAX_PINGS, Peer};
use super::role::{Role, lane_of};
use super::statistics::Statistics;
use super::waiting::Waiting;
use crate::completion::{Completion, Completions, End};
use crate::error::{Error, Refused, Result};
use crate::wire::CongestionMap;

/// Events kept for an application that does not ask for them.
const MAX_EVENTS: usize = 1024;

/// A message to be sent.
#[derive(Debug)]
pub struct Message<B> {
    /// The bound port that sends it.
    pub from: u16,
    /// The peer.
    pub to: IpAddr,
    /// The port there.
    pub port: u16,
    /// Owns the bytes.
    pub payload: B,
    /// How many bytes those are.
    pub len: usize,
    /// Comes back with the payload; any number.
    pub cookie: u32,
}

/// A message received.
///
/// [`Host::receive`] returns it.
#[derive(Debug)]
pub struct Delivered<R> {
    /// The peer and its port.
    pub from: SocketAddr,
    /// The driver's buffer with the payload.
    pub payload: R,
    /// How many bytes of it.
    pub len: usize,
}

/// One address, its sockets and its peers. `B` owns a payload to send, `R` one received.
///
/// ```
/// use std::net::IpAddr;
/// use handoff_rds::protocol::{Host, Limits, Message, Output};
///
/// let mut host: Host<Vec<u8>, Vec<u8>> =
///     Host::new("192.0.2.1".parse().unwrap(), 7, Limits::default());
/// host.bind(4000).unwrap();
/// let to: IpAddr = "192.0.2.2".parse().unwrap();
/// let message = Message { from: 4000, to, port: 4000, payload: vec![1; 5], len: 5, cookie: 42 };
/// assert!(host.send(message).is_ok());
/// // The host asks its driver to connect; the smaller address is the client.
/// assert!(matches!(host.poll(), Some(Output::Connect { peer, .. }) if peer == to));
/// ```
pub struct Host<B, R> {
    pub(super) address: IpAddr,
    pub(super) generation: u32,
    pub(super) limits: Limits,
    pub(super) now: Duration,
    pub(super) peers: BTreeMap<IpAddr, Peer>,
    /// The peer and lane of each connection.
    pub(super) places: BTreeMap<ConnectionId, (IpAddr, u8)>,
    pub(super) ports: BTreeMap<u16, Port<B, R>>,
    pub(super) messages: BTreeMap<MessageId, Record<B>>,
    pub(super) map: Arc<CongestionMap>,
    pub(super) map_version: u64,
    pub(super) waiting: Waiting,
    /// Connections in the middle of a message.
    pub(super) begun: BTreeSet<ConnectionId>,
    pub(super) outputs: VecDeque<Output>,
    pub(super) statistics: Statistics,
    events: VecDeque<Event>,
    next_connection: u64,
    next_message: u64,
}

pub(super) struct Port<B, R> {
    pub(super) incoming: VecDeque<Delivered<R>>,
    pub(super) held: u64,
    pub(super) congested: bool,
    completions: Completions<B>,
    /// Messages that have not come back.
    under_way: usize,
}

/// A message from its acceptance until its payload is back.
pub(super) struct Record<B> {
    pub(super) payload: B,
    pub(super) len: usize,
    pub(super) from: u16,
    pub(super) to: SocketAddr,
    cookie: u32,
    /// Set when it is first given out to be written.
    pub(super) sequence: Option<u64>,
    pub(super) loans: usize,
    end: Option<End>,
    tally: Tally,
}

impl<B, R> Host<B, R> {
    /// A host at `address`. `generation` names this incarnation of it: a random number other than 0.
    pub fn new(address: IpAddr, generation: u32, limits: Limits) -> Self {
        Self {
            address,
            generation,
            limits,
            now: Duration::ZERO,
            peers: BTreeMap::new(),
            places: BTreeMap::new(),
            ports: BTreeMap::new(),
            messages: BTreeMap::new(),
            map: Arc::new(CongestionMap::new()),
            map_version: 0,
            waiting: Waiting::default(),
            begun: BTreeSet::new(),
            outputs: VecDeque::new(),
            statistics: Statistics::default(),
            events: VecDeque::new(),
            next_connection: 0,
            next_message: 0,
        }
    }

    /// Makes a socket.
    ///
    /// # Errors
    ///
    /// If the port is taken, or is 0.
    pub fn bind(&mut self, port: u16) -> Result<()> {
        if port == 0 {
            return Err(Error::Invalid("port 0 belongs to pings: choose another"));
        }
        if self.ports.contains_key(&port) {
            return Err(Error::PortInUse(port));
        }
        let made = Port {
            incoming: VecDeque::new(),
            held: 0,
            congested: false,
            completions: Completions::default(),
            under_way: 0,
        };
        self.ports.insert(port, made);
        Ok(())
    }

    /// Ends a socket, and returns received messages that nobody took.
    ///
    /// # Errors
    ///
    /// [`Error::UnderWay`] while payloads of its messages are not back and taken.
    pub fn unbind(&mut self, port: u16) -> Result<Vec<Delivered<R>>> {
        let found = self.ports.get(&port).ok_or(Error::NotBound(port))?;
        let outstanding = found.under_way + found.completions.len();
        if outstanding > 0 {
            return Err(Error::UnderWay(outstanding));
        }
        let ended = self.ports.remove(&port).expect("found above");
        for delivered in &ended.incoming {
            self.let_go(delivered.from.ip(), delivered.len as u64);
        }
        if ended.congested {
            self.mark_congested(port, false);
        }
        self.resume_all();
        Ok(ended.incoming.into())
    }

    /// Accepts a message for sending.
    ///
    /// # Errors
    ///
    /// With the payload: the message is too long, the destination congested, too much queued for the peer,
    /// or there is one peer too many.
    pub fn send(&mut self, message: Message<B>) -> Result<MessageId, Refused<B>> {
        if let Err(error) = self.prepare_send(&message) {
            match &error {
                Error::Congested(_) => self.statistics.refused_congested += 1,
                Error::Full { .. } => self.statistics.refused_full += 1,
                _ => {}
            }
            return Err(Refused { payload: message.payload, error });
        }
        let Message { from, to, port, payload, len, cookie } = message;
        let id = MessageId(self.next_message);
        self.next_message += 1;
        let record = Record {
            payload,
            len,
            from,
            to: (to, port).into(),
            cookie,
            sequence: None,
            loans: 0,
            end: None,
            tally: Tally::default(),
        };
        self.messages.insert(id, record);
        self.statistics.accepted += 1;
        self.statistics.queued_bytes += len as u64;
        self.ports.get_mut(&from).expect("checked").under_way += 1;
        let peer = self.peers.get_mut(&to).expect("made if new");
        peer.queued += len as u64;
        peer.unfinished += 1;
        peer.last_used = self.now;
        let lane = peer.lanes.map_or(0, |lanes| lane_of(from, lanes));
        peer.lane[usize::from(lane)].queue.push_back(id);
        self.connect_wanted(to);
        self.signal(to);
        Ok(id)
    }

    /// Checks that the message can be sent now. Its peer is known from here on.
    fn prepare_send(&mut self, message: &Message<B>) -> Result<()> {
        let to = SocketAddr::from((message.to, message.port));
        if !self.ports.contains_key(&message.from) {
            return Err(Error::NotBound(message.from));
        }
        if message.port == 0 {
            return Err(Error::Invalid("port 0 belongs to pings: choose another"));
        }
        if message.len > self.limits.message {
            return Err(Error::MessageTooLong {
                len: message.len,
                limit: self.limits.message,
                cause: "the host was made with it (Limits::message)",
            });
        }
        let (now, queued_limit) = (self.now, self.limits.queued);
        let peer = self.acquaint(message.to)?;
        if peer.congestion.refuses(message.port, now) {
            self.connect_wanted(message.to);
            return Err(Error::Congested(to));
        }
        // As a message of any length fits alone.
        if peer.queued > 0 && peer.queued + message.len as u64 > queued_limit {
            return Err(Error::Full {
                to,
                cause: "its bytes under way are at Limits::queued; completions make room",
            });
        }
        Ok(())
    }

    /// As [`Host::know`], for a caller that wants to talk to the peer.
    fn acquaint(&mut self, address: IpAddr) -> Result<&mut Peer> {
        self.know(address).map_err(|reason| match reason {
            Reason::TooManyPeers(limit) => Error::TooManyPeers { peer: address, limit },
            _ => Error::Invalid("messages to one's own address do not go over the network"),
        })
    }

    /// The peer with that address, made if new.
    pub(super) fn know(&mut self, address: IpAddr) -> Result<&mut Peer, Reason> {
        let role = Role::of(self.address, address).ok_or(Reason::OwnAddress)?;
        if !self.peers.contains_key(&address) {
            if self.peers.len() >= self.limits.peers {
                let idle = |peer: &&Peer| {
                    peer.is_idle() && peer.last_used + self.limits.forget <= self.now
                };
                let oldest = self.peers.values().filter(idle).min_by_key(|peer| peer.last_used);
                let oldest = oldest.ok_or(Reason::TooManyPeers(self.limits.peers))?.address;
                self.peers.remove(&oldest);
            }
            let mut peer = Peer::new(address, role);
            peer.last_used = self.now;
            self.peers.insert(address, peer);
        }
        Ok(self.peers.get_mut(&address).expect("known or just made"))
    }

    /// Gives up the port's messages to a peer, or to all. A frame being written continues to its end, and
    /// may arrive. The payloads come back as completions.
    pub fn cancel(&mut self, port: u16, to: Option<IpAddr>) {
        let concerned: Vec<MessageId> = self
            .messages
            .iter()
            .filter(|(_, record)| record.from == port && record.end.is_none())
            .filter(|(_, record)| to.is_none_or(|to| record.to.ip() == to))
            .map(|(id, _)| *id)
            .collect();
        let is_concerned = |id: &MessageId| concerned.binary_search(id).is_ok();
        for lane in self.peers.values_mut().flat_map(|peer| &mut peer.lane) {
            lane.queue.retain(|id| !is_concerned(id));
            lane.retransmit.retain(|id| !is_concerned(id));
            let written = lane.up().map(|connection| &mut connection.written);
            for (_, frame) in written.into_iter().flatten() {
                if let Frame::Message(id) = *frame
                    && is_concerned(&id)
                {
                    *frame = Frame::Other;
                }
            }
        }
        self.statistics.cancelled += concerned.len() as u64;
        concerned.into_iter().for_each(|id| self.finish(id, End::Cancelled));
    }

    /// A message's fate is known.
    pub(super) fn finish(&mut self, id: MessageId, end: End) {
        let record = self.messages.get_mut(&id).expect("finished once");
        record.end = Some(end);
        self.peers.get_mut(&record.to.ip()).expect("has messages").unfinished -= 1;
        self.give_back(id);
    }

    /// The kernel has let go of a payload that [`Host::next_write`] lent. `tally` says how many of its
    /// bytes were copied. Call it once for each [`Body::Message`](super::Body::Message).
    pub fn released(&mut self, id: MessageId, tally: Tally) {
        let record = self.messages.get_mut(&id).expect("stays while it is lent");
        record.loans = record.loans.checked_sub(1).expect("released once for each loan");
        record.tally += tally;
        self.give_back(id);
    }

    fn give_back(&mut self, id: MessageId) {
        let record = &self.messages[&id];
        let (Some(end), 0) = (record.end, record.loans) else { return };
        let record = self.messages.remove(&id).expect("just seen");
        self.statistics.queued_bytes -= record.len as u64;
        self.peers.get_mut(&record.to.ip()).expect("has messages").queued -= record.len as u64;
        let port = self.ports.get_mut(&record.from).expect("bound while messages are under way");
        port.under_way -= 1;
        let Record { payload, cookie, to, tally, .. } = record;
        port.completions.push(Completion { payload, cookie, to, end, tally });
    }

    /// A payload on loan.
    pub fn payload(&self, id: MessageId) -> Option<&B> {
        self.messages.get(&id).map(|record| &record.payload)
    }

    /// The port's completions, to be taken or looked at.
    pub fn completions(&mut self, port: u16) -> Option<&mut Completions<B>> {
        self.ports.get_mut(&port).map(|port| &mut port.completions)
    }

    /// The oldest message that the port holds.
    pub fn receive(&mut self, port: u16) -> Option<Delivered<R>> {
        let found = self.ports.get_mut(&port)?;
        let delivered = found.incoming.pop_front()?;
        found.held -= delivered.len as u64;
        let relieved = found.congested && found.held < self.limits.receive / 2;
        if relieved {
            found.congested = false;
        }
        self.let_go(delivered.from.ip(), delivered.len as u64);
        if relieved {
            self.mark_congested(port, false);
        }
        self.resume_without(delivered.from.ip());
        Some(delivered)
    }

    /// Tells all peers.
    pub(super) fn mark_congested(&mut self, port: u16, congested: bool) {
        Arc::make_mut(&mut self.map).set(port, congested);
        self.map_version += 1;
        let peers: Vec<IpAddr> = self.peers.keys().copied().collect();
        for peer in peers {
            // One lane, so that an older map cannot overtake a newer one.
            if let Some(connection) = self.peers.get_mut(&peer).expect("listed").lane[0].up() {
                connection.map_pending = true;
            }
            self.signal(peer);
        }
    }

    /// Asks whether a peer is there, from a port that need not be bound; [`Event::Pong`] answers. It makes
    /// a connection for that.
    ///
    /// # Errors
    ///
    /// As for [`Host::send`]: an address of our own, too many peers, too much waiting.
    pub fn ping(&mut self, to: IpAddr, from: u16) -> Result<()> {
        if from == 0 {
            return Err(Error::Invalid("port 0 answers pings: ping from another"));
        }
        let now = self.now;
        let peer = self.acquaint(to)?;
        if peer.pings.len() == MAX_PINGS {
            let cause = "so many pings wait to be written: the peer is not connected";
            return Err(Error::Full { to: (to, 0).into(), cause });
        }
        peer.pings.push_back(from);
        peer.last_used = now;
        self.connect_wanted(to);
        self.signal(to);
        Ok(())
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn tell(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
            self.statistics.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    /// What was counted.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    pub(super) fn new_connection(&mut self, peer: IpAddr, lane: u8) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.places.insert(id, (peer, lane));
        id
    }

    /// The connection, if it is up.
    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let (peer, lane) = self.places.get(&id)?;
        let connection = self.peers.get_mut(peer)?.lane[usize::from(*lane)].up()?;
        (connection.id == id).then_some(connection)
    }
}
