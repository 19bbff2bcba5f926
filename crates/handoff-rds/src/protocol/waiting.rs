//! Connections that wait, and what each waits for.
//!
//! A message that comes or is taken is no reason to judge all of them again: a crowd of peers that wait for good would
//! then slow everybody down. So
//! - whoever waits for room is listed by how many bytes may be held at most when it goes on;
//! - what else a connection waits for is a matter of its peer's connections: one of them is read, written or ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::host::Host;
use super::output::{ConnectionId, Output};
use super::peer::{Lane, Reading};

/// Those that wait for room.
#[derive(Default)]
pub(super) struct Waiting {
    /// By the bytes that may be held then.
    by_held: BTreeSet<(u64, ConnectionId)>,
    held: BTreeMap<ConnectionId, u64>,
}

impl Waiting {
    /// It waits until not more than so many bytes are held.
    pub(super) fn insert(&mut self, id: ConnectionId, held: u64) {
        self.remove(id);
        self.by_held.insert((held, id));
        self.held.insert(id, held);
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        if let Some(held) = self.held.remove(&id) {
            self.by_held.remove(&(held, id));
        }
    }

    /// Those that may go on when so many bytes are held.
    fn take(&mut self, held: u64) -> BTreeSet<(u64, ConnectionId)> {
        let ready = self.by_held.split_off(&(held, ConnectionId(0)));
        for (_, id) in &ready {
            self.held.remove(id);
        }
        ready
    }
}

impl<B, R> Host<B, R> {
    /// Something has happened to a connection of the peer: one that waited for that goes on. Also if the peer holds
    /// less, of which it has a share.
    pub(super) fn resume_peer(&mut self, address: IpAddr) {
        let Some(peer) = self.peers.get(&address) else { return };
        let paused: Vec<_> = peer.lane.iter().filter_map(Lane::paused).collect();
        paused.into_iter().for_each(|id| self.judge_again(id));
    }

    /// A connection of the peer is gone, with what had come of a message.
    pub(super) fn resume_without(&mut self, address: IpAddr) {
        self.resume_peer(address);
        self.resume_waiting();
    }

    /// Less is held, or another message is the oldest in the midst.
    pub(super) fn resume_waiting(&mut self) {
        let held = self.statistics.held_bytes;
        self.waiting.take(held).into_iter().for_each(|(_, id)| self.judge_again(id));
        if let Some(oldest) = self.begun.first().copied() {
            self.resume_crowded(oldest);
        }
    }

    /// Whatever they wait for.
    pub(super) fn resume_all(&mut self) {
        self.waiting.take(0).into_iter().for_each(|(_, id)| self.judge_again(id));
    }

    /// What it waits for may have come.
    pub(super) fn judge_again(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection(id) else { return };
        let Reading::Paused(header) = connection.reading else {
            return self.resume_crowded(id);
        };
        match self.admit(id, &header) {
            Ok(Reading::Paused(_)) => {}
            Ok(reading) => {
                self.goes_on_with(id, reading);
                self.outputs.push_back(Output::Resume(id));
                self.resume_told(id, &header);
            }
            Err(reason) => self.reject(id, reason),
        }
    }
}
