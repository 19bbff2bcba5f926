//! Connections: who makes them, when, and what happens to a lane when one ends.

use std::mem;
use std::net::IpAddr;
use std::time::Duration;

use super::host::Host;
use super::output::{ConnectionId, Event, Output, Reason};
use super::peer::{Connection, Frame, Link, Probe};
use super::role::Role;
use crate::wire::MAX_LANES;

/// How long a peer may take to connect back before it is asked again.
const ASKING: Duration = Duration::from_secs(1);
/// Connections that wait on a lane until those before them are read to their ends.
const MAX_SUCCESSORS: usize = 4;

impl<B, R> Host<B, R> {
    /// A peer has connected to us, from that TCP port.
    ///
    /// # Errors
    ///
    /// Why the connection is to be closed.
    pub fn accepted(&mut self, from: IpAddr, source_port: u16) -> Result<ConnectionId, Reason> {
        let lane = (source_port % u16::from(MAX_LANES)) as u8;
        let now = self.now;
        let lanes = self.limits.common_lanes(u16::from(MAX_LANES));
        let peer = self.know(from)?;
        if peer.role == Role::Client {
            peer.last_used = now;
            self.connect_wanted(from);
            return Err(Reason::WakeUp);
        }
        if lane >= lanes {
            return Err(Reason::NoSuchLane(lane));
        }
        if peer.lane[usize::from(lane)].successors.len() >= MAX_SUCCESSORS {
            return Err(Reason::Undrained);
        }
        peer.last_used = now;
        let id = self.new_connection(from, lane);
        let place = &mut self.peers.get_mut(&from).expect("known").lane[usize::from(lane)];
        match &mut place.link {
            Link::Up(connection) => {
                if !mem::replace(&mut connection.draining, true) {
                    self.outputs.push_back(Output::Drain(connection.id));
                }
                place.successors.push_back(id);
                self.resume_peer(from);
            }
            Link::Connecting(asking, _) => {
                let asking = *asking;
                place.link = Link::Down;
                self.close(asking, Reason::Asked);
                self.comes_up(id);
            }
            Link::Down => self.comes_up(id),
        }
        Ok(id)
    }

    /// A connection that [`Output::Connect`] asked for is up.
    pub fn connected(&mut self, id: ConnectionId) {
        let Some((address, lane)) = self.places.get(&id).copied() else { return };
        let peer = self.peers.get_mut(&address).expect("has connections");
        let link = &peer.lane[usize::from(lane)].link;
        // As the server we wait until the peer, woken by it, closes it.
        if peer.role == Role::Client && matches!(link, Link::Connecting(asked, _) if *asked == id) {
            self.comes_up(id);
            self.resume_peer(address);
        }
    }

    fn comes_up(&mut self, id: ConnectionId) {
        let (address, lane) = self.places[&id];
        let peer = self.peers.get_mut(&address).expect("has connections");
        let first = !peer.is_up();
        let mut connection = Connection::new(id, self.now);
        connection.draining = !peer.lane[usize::from(lane)].successors.is_empty();
        let draining = connection.draining;
        // A peer that reports by its maps will answer there what a probe asks.
        if lane == 0 && peer.extended == Some(false) {
            connection.probe = Probe::Pending;
        }
        peer.lane[usize::from(lane)].link = Link::Up(Box::new(connection));
        self.statistics.connections += 1;
        self.outputs.push_back(if draining { Output::Drain(id) } else { Output::Resume(id) });
        if first {
            self.tell(Event::Up(address));
        }
        self.signal(address);
    }

    /// A connection has ended or an attempt failed. Everything that had arrived on it was handed in before,
    /// even if that meant waiting for room; so was the count of acknowledged bytes.
    pub fn closed(&mut self, id: ConnectionId) {
        if let Some((peer, _)) = self.forget_connection(id) {
            self.connect_wanted(peer);
            self.resume_without(peer);
        }
    }

    /// Closes a connection that the host forgets at once.
    pub(super) fn close(&mut self, id: ConnectionId, reason: Reason) {
        if let Some((peer, _)) = self.places.get(&id).copied() {
            self.outputs.push_back(Output::Close { connection: id, peer, reason });
        }
        self.forget_connection(id);
    }

    /// As [`Host::close`], because of something read from it.
    pub(super) fn reject(&mut self, id: ConnectionId, reason: Reason) {
        let Some((address, _)) = self.places.get(&id).copied() else { return };
        self.statistics.violations += u64::from(reason != Reason::FormerLife);
        self.close(id, reason);
        self.resume_without(address);
    }

    fn forget_connection(&mut self, id: ConnectionId) -> Option<(IpAddr, u8)> {
        let (address, number) = self.places.remove(&id)?;
        self.waiting.remove(id);
        let (retry, most) = self.limits.retry;
        let now = self.now;
        let peer = self.peers.get_mut(&address).expect("has connections");
        let lane = &mut peer.lane[usize::from(number)];
        if let Some(at) = lane.successors.iter().position(|waiting| *waiting == id) {
            lane.successors.remove(at);
            return Some((address, number));
        }
        match mem::take(&mut lane.link) {
            Link::Up(connection) if connection.id == id => {
                let unacknowledged =
                    connection.written.iter().filter_map(|(_, frame)| match frame {
                        Frame::Message(id) => Some(*id),
                        _ => None,
                    });
                for (at, id) in unacknowledged.enumerate() {
                    lane.retransmit.insert(at, id);
                }
                peer.held -= connection.arriving.bytes;
                self.statistics.held_bytes -= connection.arriving.bytes;
                self.begun.remove(&id);
                let successor = lane.successors.pop_front();
                lane.retry_at = now + lane.backoff;
                lane.backoff = (lane.backoff * 2).clamp(retry, most);
                match successor {
                    Some(successor) => self.comes_up(successor),
                    None if !peer.is_up() => self.tell(Event::Down(address)),
                    None => {}
                }
            }
            Link::Connecting(asked, _) if asked == id => {
                lane.backoff = (lane.backoff * 2).clamp(retry, most);
                lane.retry_at = now + lane.backoff;
            }
            other => lane.link = other,
        }
        Some((address, number))
    }

    /// Asks for the connections that the peer's messages need and whose time has come.
    pub(super) fn connect_wanted(&mut self, address: IpAddr) {
        let (now, keep) = (self.now, self.limits.keep);
        for lane in 0..MAX_LANES {
            let peer = self.peers.get_mut(&address).expect("known");
            let wanted = peer.wants(usize::from(lane), now, keep);
            let place = &mut peer.lane[usize::from(lane)];
            if wanted && matches!(place.link, Link::Down) && place.retry_at <= now {
                let connection = self.new_connection(address, lane);
                let peer = self.peers.get_mut(&address).expect("known");
                peer.lane[usize::from(lane)].link = Link::Connecting(connection, now);
                self.outputs.push_back(Output::Connect { connection, peer: address, lane });
            }
        }
    }

    /// Time has passed; `now` counts from any beginning and never goes back.
    pub fn advance(&mut self, now: Duration) {
        self.advance_with(now, |_| 0);
    }

    /// As [`Host::advance`], for a driver that reads only when there is much: `waiting` returns how many bytes of a
    /// connection it has not read yet. It is asked before a connection ends because nothing comes.
    pub fn advance_with(&mut self, now: Duration, waiting: impl Fn(ConnectionId) -> usize) {
        self.now = now;
        let peers: Vec<IpAddr> = self.peers.keys().copied().collect();
        for address in peers {
            let mut late = Vec::new();
            let mut unanswered = false;
            let peer = self.peers.get_mut(&address).expect("listed");
            let role = peer.role;
            let unknown = peer.lanes.is_none();
            let spoke = peer.spoke;
            for (at, lane) in peer.lane.iter_mut().enumerate() {
                if let Link::Up(it) = &mut lane.link
                    && let Some(reason) = it.stalled(now, self.limits.peer_timeout)
                    && !it.still_comes(now, waiting(it.id))
                {
                    late.push((it.id, reason));
                    continue;
                }
                if let Link::Up(it) = &mut lane.link
                    && it.silent_at(at, spoke, self.limits.peer_timeout).is_some_and(|at| at <= now)
                    && !it.note_unread(now, waiting(it.id))
                {
                    late.push((it.id, Reason::Silent));
                    continue;
                }
                match &mut lane.link {
                    Link::Up(it)
                        if at == 0
                            && unknown
                            && it
                                .answer_deadline(self.limits.peer_timeout)
                                .is_some_and(|at| at <= now) =>
                    {
                        unanswered |= !it.note_unread(now, waiting(it.id));
                    }
                    Link::Connecting(id, since)
                        if role == Role::Server && *since + ASKING <= now =>
                    {
                        late.push((*id, Reason::Asked));
                    }
                    _ => {}
                }
            }
            for (id, reason) in late {
                match reason {
                    Reason::Stalled { .. } => self.reject(id, reason),
                    _ => {
                        self.close(id, reason);
                        self.resume_without(address);
                    }
                }
            }
            if unanswered {
                self.lanes_known(address, 1);
            }
            self.doubt_map(address);
            self.connect_wanted(address);
        }
    }

    /// When [`Host::advance`] has something to do; `None`: not before another event.
    pub fn deadline(&self) -> Option<Duration> {
        let peer_timeout = self.limits.peer_timeout;
        let of_peer = |peer: &super::peer::Peer| {
            let wanted = |at: usize| {
                peer.wants(at, self.now, self.limits.keep).then_some(peer.lane[at].retry_at)
            };
            let of_lane = |at: usize| match &peer.lane[at].link {
                Link::Down => wanted(at),
                Link::Connecting(_, since) if peer.role == Role::Server => Some(*since + ASKING),
                Link::Connecting(..) => None,
                Link::Up(it) => {
                    let answered =
                        it.answer_deadline(peer_timeout).filter(|_| peer.lanes.is_none());
                    let silent = it.silent_at(at, peer.spoke, peer_timeout);
                    answered.into_iter().chain(silent).chain(it.stalls_at(peer_timeout)).min()
                }
            };
            let lanes = (0..peer.lane.len()).filter_map(of_lane);
            lanes.chain(peer.map_doubted_at(self.now, self.limits.keep)).min()
        };
        self.peers.values().filter_map(of_peer).min()
    }
}
