//! What is written to connections, and what the peer has acknowledged.

use std::net::IpAddr;

use super::host::Host;
use super::output::{Body, ConnectionId, MessageId, Output, Write};
use super::peer::{Connection, Frame, Link, MAX_PONGS, Peer, Probe};
use crate::completion::End;
use crate::wire::{
    Extension, Extensions, FLAG_CONGESTION_MAP, FLAG_RETRANSMITTED, HEADER_LEN, Header, MAP_LEN,
    PROBE_PORT,
};

/// What a connection carries next.
enum Next {
    Map,
    Again(MessageId),
    Probe,
    Ping(u16),
    Pong(u16),
    New(MessageId),
}

/// Maps go first, so that a peer's restart is known early. Pings and pongs go behind resent frames, because
/// a kernel drops resent frames with a smaller number than it has seen.
fn next(peer: &Peer, lane: usize) -> Option<Next> {
    let place = &peer.lane[lane];
    let Link::Up(connection) = &place.link else { return None };
    if connection.is_ending() {
        return None;
    }
    if connection.map_pending {
        return Some(Next::Map);
    }
    // Except to kernels, no numbered frame goes out before the peer's generation is known.
    if !connection.heard && peer.extended != Some(false) {
        return None;
    }
    if let Some(id) = place.retransmit.front() {
        return Some(Next::Again(*id));
    }
    if connection.probe == Probe::Pending {
        return Some(Next::Probe);
    }
    if let Some(port) = connection.pongs.front() {
        return Some(Next::Pong(*port));
    }
    if let Some(port) = peer.pings.front().filter(|_| lane == 0) {
        return Some(Next::Ping(*port));
    }
    let id = place.queue.front().filter(|_| peer.lanes.is_some())?;
    Some(Next::New(*id))
}

impl<B, R> Host<B, R> {
    /// The next frame for a connection, to write behind earlier ones. It lends a message's payload, until
    /// [`Host::released`].
    pub fn next_write(&mut self, id: ConnectionId) -> Option<Write> {
        self.connection(id)?;
        let (address, lane) = self.places[&id];
        let peer = self.peers.get_mut(&address).expect("has connections");
        let Some(next) = next(peer, usize::from(lane)) else {
            peer.lane[usize::from(lane)].up().expect("found above").signalled = false;
            return None;
        };
        let capabilities = Extensions::of(&[
            Extension::Paths(self.limits.common_lanes(u16::MAX).into()),
            Extension::Generation(self.generation),
            Extension::SourcePortIndex(0),
        ]);
        let place = &mut peer.lane[usize::from(lane)];
        let Link::Up(connection) = &mut place.link else { unreachable!("found above") };
        let mut header = Header::default();
        let (mut frame, mut body) = (Frame::Other, Body::Empty);
        if !matches!(next, Next::Map | Next::Again(_)) {
            header.sequence = place.next_tx;
            place.next_tx += 1;
        }
        match next {
            Next::Map => {
                connection.map_pending = false;
                self.statistics.maps_sent += 1;
                header.flags = FLAG_CONGESTION_MAP;
                header.len = MAP_LEN as u32;
                header.extensions = capabilities;
                frame = Frame::Map(self.map_version);
                body = Body::Map(self.map.clone());
            }
            Next::Probe => {
                connection.probe = Probe::Sent(self.now);
                header.source = PROBE_PORT;
                header.extensions = capabilities;
            }
            Next::Ping(port) => {
                peer.pings.pop_front();
                header.source = port;
            }
            Next::Pong(port) => {
                connection.pongs.pop_front();
                header.destination = port;
                if port == PROBE_PORT {
                    header.extensions = capabilities;
                }
            }
            Next::Again(message) | Next::New(message) => {
                let record = self.messages.get_mut(&message).expect("queued until it ends");
                match record.sequence {
                    // Numbers start anew with each incarnation of the peer, so only frames written to this one
                    // have one.
                    Some(sequence) => {
                        place.retransmit.pop_front();
                        self.statistics.retransmitted += 1;
                        header.sequence = sequence;
                        header.flags = FLAG_RETRANSMITTED;
                    }
                    None => {
                        place.queue.pop_front();
                        record.sequence = Some(header.sequence);
                    }
                }
                record.loans += 1;
                header.len = record.len as u32;
                (header.source, header.destination) = (record.from, record.to.port());
                frame = Frame::Message(message);
                body = Body::Message(message);
            }
        }
        connection.offset += HEADER_LEN as u64 + u64::from(header.len);
        connection.written.push_back((connection.offset, frame));
        let room = connection.pongs.len() == MAX_PONGS - 1;
        if room {
            self.judge_again(id);
        }
        Some(Write { header: header.to_bytes(), body })
    }

    /// The peer's TCP has acknowledged so many bytes of the connection in all.
    pub fn acknowledged(&mut self, id: ConnectionId, bytes: u64) {
        let version = self.map_version;
        let mut stale = false;
        let mut done = Vec::new();
        let Some(connection) = self.connection(id) else { return };
        while connection.written.front().is_some_and(|(end, _)| *end <= bytes) {
            match connection.written.pop_front().expect("just seen").1 {
                Frame::Message(id) => done.push(id),
                Frame::Map(sent) => stale |= sent != version,
                Frame::Other => {}
            }
        }
        self.statistics.acknowledged += done.len() as u64;
        let (address, lane) = self.places[&id];
        let peer = self.peers.get_mut(&address).expect("has connections");
        if !done.is_empty() {
            peer.last_used = self.now;
        }
        // The map that this lane began with may have overtaken later ones of lane 0.
        if stale
            && lane != 0
            && let Some(first) = peer.lane[0].up()
        {
            first.map_pending = true;
            self.signal(address);
        }
        done.into_iter().for_each(|id| self.finish(id, End::Acknowledged));
    }

    /// Outputs `Ready` for the peer's connections that have something to write.
    pub(super) fn signal(&mut self, address: IpAddr) {
        let peer = self.peers.get_mut(&address).expect("known");
        for lane in 0..peer.lane.len() {
            if next(peer, lane).is_none() {
                continue;
            }
            if let Some(Connection { id, signalled: signalled @ false, .. }) = peer.lane[lane].up()
            {
                *signalled = true;
                self.outputs.push_back(Output::Ready(*id));
            }
        }
    }
}
