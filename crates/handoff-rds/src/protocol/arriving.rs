//! Arriving payloads: charged as their bytes come; a payload that does not come ends.
//!
//! Contracts:
//! - an announced message takes nothing; bytes that have come are held until they are taken;
//! - a peer holds at most three times what it leaves free, so many headers or much data from one peer leave room for
//!   others; a peer that holds nothing has room for a message as long as there is any;
//! - at the limit, if no whole message waits to be taken, the oldest of the partial ones continues, so that
//!   one always ends;
//! - if almost nothing of a message comes for [`Limits::peer_timeout`](super::Limits::peer_timeout), its connection
//!   ends.

use std::net::IpAddr;
use std::time::Duration;

use super::host::Host;
use super::output::{ConnectionId, Output, Reason};
use super::peer::{Connection, Reading};

/// Bytes of a message that must come within [`Limits::peer_timeout`](super::Limits::peer_timeout), or all the rest.
const LEAST: u64 = 4096;

/// Progress of the payload being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arriving {
    /// Bytes that have come.
    pub(super) bytes: u64,
    /// Since when the host waits for enough, and how many bytes had come by then.
    since: (Duration, u64),
    /// It waits for room.
    crowded: bool,
}

/// The most bytes that may be held when a message begins of a peer that holds `own` of them. A message of any
/// length fits alone.
pub(super) fn begins_at(own: u64, len: u64, limit: u64) -> u64 {
    let left = if own == 0 { 0 } else { (own + len).div_ceil(3) };
    limit.saturating_sub(len + left)
}

impl Connection {
    /// When too little will have come, unless more does.
    pub(super) fn stalls_at(&self, peer_timeout: Duration) -> Option<Duration> {
        let waits = matches!(self.reading, Reading::Payload(_)) && !self.arriving.crowded;
        waits.then_some(self.arriving.since.0 + peer_timeout)
    }

    pub(super) fn stalled(&self, now: Duration, peer_timeout: Duration) -> Option<Reason> {
        let Reading::Payload(header) = self.reading else { return None };
        let arrived = self.arriving.bytes;
        self.stalls_at(peer_timeout)
            .filter(|at| *at <= now)
            .map(|_| Reason::Stalled { arrived, len: header.len })
    }

    /// So many bytes of its payload wait to be read: returns whether they are enough to continue.
    pub(super) fn still_comes(&mut self, now: Duration, waiting: usize) -> bool {
        let come = self.arriving.bytes + waiting as u64;
        let enough = come >= self.arriving.since.1 + LEAST;
        if enough {
            self.arriving.since = (now, come);
        }
        enough
    }
}

impl<B, R> Host<B, R> {
    /// So many bytes have come of the payload that [`Expect::Payload`](super::Expect::Payload) asked for.
    pub fn payload_arrived(&mut self, id: ConnectionId, bytes: usize) {
        let now = self.now;
        let Some(connection) = self.connection(id) else { return };
        let (arriving, bytes) = (&mut connection.arriving, bytes as u64);
        let more = bytes - arriving.bytes;
        arriving.bytes = bytes;
        if bytes >= arriving.since.1 + LEAST {
            arriving.since = (now, bytes);
        }
        let (address, _) = self.places[&id];
        self.peers.get_mut(&address).expect("has connections").held += more;
        self.statistics.held_bytes += more;
    }

    /// Judged bytes are read next.
    pub(super) fn goes_on_with(&mut self, id: ConnectionId, reading: Reading) {
        let now = self.now;
        let Some(connection) = self.connection(id) else { return };
        connection.reading = reading;
        if let Reading::Payload(_) = reading {
            connection.arriving.since = (now, 0);
            self.begun.insert(id);
        }
        if !matches!(reading, Reading::Paused(_)) {
            self.waiting.remove(id);
        }
    }

    /// Makes a payload wait for room if there is none: it continues when there is some. Returns whether it waits.
    pub(super) fn wait_if_crowded(&mut self, id: ConnectionId) -> bool {
        if !self.is_crowded(id) {
            return false;
        }
        let connection = self.connection(id).expect("is in the midst of a message");
        if !std::mem::replace(&mut connection.arriving.crowded, true) {
            self.statistics.pauses += 1;
            self.wait_for_any_room(id);
        }
        true
    }

    fn wait_for_any_room(&mut self, id: ConnectionId) {
        self.waiting.insert(id, self.limits.held.saturating_sub(1));
    }

    fn is_crowded(&self, id: ConnectionId) -> bool {
        if self.statistics.held_bytes < self.limits.held || !self.begun.contains(&id) {
            return false;
        }
        // Whole messages that wait to be taken make room.
        let whole = self.ports.values().any(|port| port.held > 0);
        whole || self.begun.first() != Some(&id)
    }

    /// There may be room: a waiting payload continues, or waits again.
    pub(super) fn resume_crowded(&mut self, id: ConnectionId) {
        if !self.connection(id).is_some_and(|it| it.arriving.crowded) {
            return;
        }
        if self.is_crowded(id) {
            return self.wait_for_any_room(id);
        }
        self.waiting.remove(id);
        let now = self.now;
        let connection = self.connection(id).expect("looked at above");
        connection.arriving.crowded = false;
        connection.arriving.since = (now, connection.arriving.bytes);
        self.outputs.push_back(Output::Resume(id));
    }

    /// Bytes from a peer were taken.
    pub(super) fn let_go(&mut self, from: IpAddr, len: u64) {
        self.statistics.held_bytes -= len;
        self.peers.get_mut(&from).expect("is kept as long as it holds something").held -= len;
    }
}
