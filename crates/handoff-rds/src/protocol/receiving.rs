//! Receiving: judges frames by their headers, asks for payloads if there is room.

use std::mem;
use std::net::{IpAddr, SocketAddr};

use super::arriving::{self, Arriving};
use super::host::{Delivered, Host};
use super::output::{ConnectionId, Event, Expect, Output, Reason};
use super::peer::{Connection, FanOut, Link, MAX_PONGS, Reading};
use super::restarting::Announced;
use super::role::Role;
use crate::wire::{
    CongestionMap, FLAG_CONGESTION_MAP, FLAG_RETRANSMITTED, HEADER_LEN, Header, MAP_LEN, PROBE_PORT,
};

/// What a frame is, by its header.
enum Kind {
    Map,
    Ping,
    Pong,
    Message,
}

impl Kind {
    fn of(header: &Header) -> Self {
        match (header.flags, header.source, header.destination) {
            (FLAG_CONGESTION_MAP, ..) => Self::Map,
            (_, _, 0) => Self::Ping,
            (_, 0, _) => Self::Pong,
            _ => Self::Message,
        }
    }

    /// Whether its extensions report about the peer.
    fn tells(&self, header: &Header) -> bool {
        match self {
            Self::Map => true,
            Self::Ping => header.source == PROBE_PORT,
            Self::Pong => header.destination == PROBE_PORT,
            Self::Message => false,
        }
    }
}

impl Connection {
    /// Whether it is paused at such a report.
    fn tells(&self) -> bool {
        matches!(&self.reading, Reading::Paused(header) if Kind::of(header).tells(header))
    }
}

impl<B, R> Host<B, R> {
    /// What to read next from the connection.
    pub fn expect(&mut self, id: ConnectionId) -> Expect {
        if self.wait_if_crowded(id) {
            return Expect::Nothing;
        }
        let Some(connection) = self.connection(id) else { return Expect::Nothing };
        match connection.reading {
            Reading::Header => Expect::Header,
            Reading::Payload(header) => Expect::Payload(header.len as usize),
            Reading::Skip(len) => Expect::Skip(len),
            Reading::Map => Expect::Map,
            Reading::Paused(_) => Expect::Nothing,
        }
    }

    /// A header has arrived on the connection, after [`Expect::Header`]. A violation of the protocol closes
    /// the connection.
    pub fn header(&mut self, id: ConnectionId, bytes: &[u8; HEADER_LEN]) {
        if self.connection(id).is_some() {
            self.judge(id, Header::parse(bytes));
        }
    }

    fn judge(&mut self, id: ConnectionId, header: Header) {
        match self.admit(id, &header) {
            Ok(reading) => {
                self.goes_on_with(id, reading);
                let (address, _) = self.places[&id];
                if !matches!(reading, Reading::Paused(_)) {
                    return self.resume_told(id, &header);
                }
                self.statistics.pauses += 1;
                // Those that wait for it may continue when it waits for them.
                if self.is_awaited(id) {
                    self.resume_peer(address);
                }
            }
            Err(reason) => self.reject(id, reason),
        }
    }

    /// A header is acted on: if it has told about the peer, others of its connections may have waited for that.
    pub(super) fn resume_told(&mut self, id: ConnectionId, header: &Header) {
        if Kind::of(header).tells(header)
            && let Some((address, _)) = self.places.get(&id).copied()
        {
            self.resume_peer(address);
        }
    }

    /// What to read after this header.
    pub(super) fn admit(&mut self, id: ConnectionId, header: &Header) -> Result<Reading, Reason> {
        self.statistics.judged += 1;
        let (address, lane) = self.places[&id];
        let kind = Kind::of(header);
        match kind {
            Kind::Map if header.len as usize != MAP_LEN => {
                return Err(Reason::MapLength(header.len));
            }
            Kind::Ping | Kind::Pong if header.len > 0 => {
                return Err(Reason::PingLength(header.len));
            }
            Kind::Message if header.len as usize > self.limits.message => {
                return Err(Reason::Oversize { len: header.len, limit: self.limits.message });
            }
            _ => {}
        }
        let mut announced = if kind.tells(header) {
            Announced::by(&header.extensions)?
        } else {
            Announced::default()
        };
        // A kernel has read our generation when it has answered our probe. Messages go out when the lanes
        // are known, so they are not learned from its own probe, which may cross ours.
        match kind {
            Kind::Ping => announced.paths = None,
            Kind::Pong if header.destination == PROBE_PORT => {
                announced.paths = announced.paths.or(Some(1))
            }
            _ => {}
        }
        if !self.judge_report(address, id, announced)? {
            return Ok(Reading::Paused(*header));
        }
        if matches!(kind, Kind::Message) && lane > 0 && self.wait_for_first_lane(address, lane) {
            return Ok(Reading::Paused(*header));
        }
        let now = self.now;
        let peer = self.peers.get_mut(&address).expect("has connections");
        let place = &mut peer.lane[usize::from(lane)];
        let Link::Up(connection) = &mut place.link else { unreachable!("it was read") };
        let next_rx = &mut place.next_rx;
        let again = !connection.former
            && header.flags & FLAG_RETRANSMITTED != 0
            && header.sequence < *next_rx;
        if again && !matches!(kind, Kind::Map) {
            self.statistics.duplicates += 1;
            connection.since = now;
            return Ok(Reading::Skip(header.len as usize).or_header());
        }
        let reading = match kind {
            Kind::Map => Reading::Map,
            // Nothing more is written to a connection that ends.
            Kind::Ping if header.source == 0 || connection.is_ending() => Reading::Header,
            Kind::Ping if connection.pongs.len() >= MAX_PONGS => {
                return Ok(Reading::Paused(*header));
            }
            Kind::Ping => {
                self.statistics.pings += 1;
                connection.pongs.push_back(header.source);
                Reading::Header
            }
            Kind::Pong => Reading::Header,
            Kind::Message if !self.ports.contains_key(&header.destination) => {
                self.statistics.unbound += 1;
                Reading::Skip(header.len as usize).or_header()
            }
            Kind::Message => {
                let most = arriving::begins_at(peer.held, header.len.into(), self.limits.held);
                if self.statistics.held_bytes > most {
                    self.waiting.insert(id, most);
                    return Ok(Reading::Paused(*header));
                }
                Reading::Payload(*header)
            }
        };
        if !connection.former && !matches!(kind, Kind::Map) && *next_rx > 0 {
            let before = header.sequence.saturating_sub(*next_rx);
            self.statistics.missed = self.statistics.missed.saturating_add(before);
        }
        if !connection.former && !matches!(reading, Reading::Map | Reading::Payload(_)) {
            *next_rx = header.sequence.wrapping_add(1);
        }
        connection.heard = true;
        peer.spoke = true;
        connection.numbered |= !matches!(kind, Kind::Map);
        place.backoff = Default::default();
        peer.last_used = now;
        match kind {
            Kind::Map if lane == 0 => self.manner_known(address, announced.generation.is_some()),
            // Among a kernel's lanes the map may have come by another.
            _ if lane == 0 && peer.extended.is_none() => self.manner_known(address, false),
            _ => {}
        }
        if matches!(kind, Kind::Pong) && header.destination != PROBE_PORT {
            self.tell(Event::Pong { peer: address, port: header.destination });
        }
        self.learn(address, id, announced);
        self.signal(address);
        Ok(reading)
    }

    /// Returns whether lane 0 may still hold what the peer sent before it used another lane. If so, lane 0 is to catch up
    /// first.
    fn wait_for_first_lane(&mut self, address: IpAddr, lane: u8) -> bool {
        let peer = self.peers.get_mut(&address).expect("has connections");
        // Frames of the peer's former incarnation come before all of this one.
        if peer.fan_out == FanOut::Over || peer.lane[usize::from(lane)].is_former() {
            return false;
        }
        let (next, asked) = match (peer.fan_out, &peer.lane[0].link) {
            // It reports a new incarnation, which waits until all of this one is read. Lane 0 was, before it.
            (_, Link::Up(connection)) if connection.tells() => (FanOut::Over, None),
            (FanOut::Accepts, _) => return true,
            // Also if there is one, which another may follow.
            (FanOut::Ahead, _) if peer.role == Role::Server => {
                (FanOut::Accepts, Some(Output::Accept(address)))
            }
            (_, Link::Up(connection)) => {
                (FanOut::Awaits(connection.id), Some(Output::CatchUp(connection.id)))
            }
            // The peer may have sent by it already.
            (before, Link::Connecting(..)) if peer.role == Role::Client => (before, None),
            _ => (FanOut::Over, None),
        };
        if mem::replace(&mut peer.fan_out, next) != next {
            self.outputs.extend(asked);
        }
        next != FanOut::Over
    }

    fn is_awaited(&self, id: ConnectionId) -> bool {
        let (address, _) = self.places[&id];
        self.peers[&address].fan_out == FanOut::Awaits(id)
    }

    /// Everything unread on the connection at [`Output::CatchUp`] is handed in.
    pub fn caught_up(&mut self, id: ConnectionId) {
        let Some((address, _)) = self.places.get(&id).copied() else { return };
        let peer = self.peers.get_mut(&address).expect("has connections");
        // Connections that wait behind it may hold more.
        if peer.fan_out == FanOut::Awaits(id) && peer.lane[0].successors.is_empty() {
            peer.fan_out = FanOut::Over;
        }
        // If the peer has restarted meanwhile, waiting connections must be judged again.
        self.resume_peer(address);
    }

    /// All connections that the peer had made are accepted, after [`Output::Accept`].
    pub fn accepted_all(&mut self, from: IpAddr) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.fan_out == FanOut::Accepts {
            peer.fan_out = FanOut::Over;
            if let Some(connection) = peer.lane[0].up() {
                self.outputs.push_back(Output::CatchUp(connection.id));
                peer.fan_out = FanOut::Awaits(connection.id);
            }
        }
        self.resume_peer(from);
    }

    /// The payload that [`Expect::Payload`] asked for, whole.
    pub fn payload_received(&mut self, id: ConnectionId, payload: R) {
        let Some(connection) = self.connection(id) else { return };
        if let Reading::Payload(header) = connection.reading {
            self.payload_arrived(id, header.len as usize);
            self.begun.remove(&id);
        }
        let connection = self.connection(id).expect("looked at above");
        connection.arriving = Arriving::default();
        let Reading::Payload(header) = mem::replace(&mut connection.reading, Reading::Header)
        else {
            panic!("a payload is handed in where none was expected");
        };
        let former = connection.former;
        let (address, lane) = self.places[&id];
        let peer = self.peers.get_mut(&address).expect("has connections");
        if !former {
            peer.lane[usize::from(lane)].next_rx = header.sequence.wrapping_add(1);
        }
        let len = u64::from(header.len);
        let Some(port) = self.ports.get_mut(&header.destination) else {
            self.let_go(address, len);
            self.statistics.unbound += 1;
            self.resume_without(address);
            return;
        };
        self.statistics.received += 1;
        port.held += len;
        let from = SocketAddr::from((address, header.source));
        port.incoming.push_back(Delivered { from, payload, len: header.len as usize });
        if !port.congested && port.held > self.limits.receive {
            port.congested = true;
            self.mark_congested(header.destination, true);
        }
        self.resume_waiting();
    }

    /// The bytes that [`Expect::Skip`] asked to skip are gone.
    pub fn skipped(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection(id) {
            connection.reading = Reading::Header;
        }
    }

    /// The map that [`Expect::Map`] asked for.
    pub fn map(&mut self, id: ConnectionId, bytes: &[u8; MAP_LEN]) {
        let Some(connection) = self.connection(id) else { return };
        connection.reading = Reading::Header;
        self.statistics.maps_received += 1;
        let (address, lane) = self.places[&id];
        let peer = self.peers.get_mut(&address).expect("has connections");
        // Engines like ours send changes only by lane 0, so a map from another is no newer.
        if lane != 0 && peer.extended == Some(true) {
            return;
        }
        if peer.congestion.read(CongestionMap::from_bytes(bytes), self.now) {
            self.tell(Event::Uncongested(address));
        }
    }
}

impl Reading {
    /// A payload of no bytes needs no skipping.
    fn or_header(self) -> Self {
        match self {
            Self::Skip(0) => Self::Header,
            other => other,
        }
    }
}
