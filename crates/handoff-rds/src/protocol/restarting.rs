//! What a peer reports about itself: its generation, and the lanes that it can have.

use std::mem;
use std::net::IpAddr;

use super::congestion::Congestion;
use super::host::Host;
use super::output::{ConnectionId, Event, MessageId, Output, Reason};
use super::peer::{FanOut, Frame, Link, Probe, Reading};
use super::role::lane_of;
use crate::completion::End;
use crate::wire::{Extension, Extensions, Truncated};

/// A header's extensions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Announced {
    pub(super) generation: Option<u32>,
    pub(super) paths: Option<u16>,
}

impl Announced {
    pub(super) fn by(extensions: &Extensions) -> Result<Self, Truncated> {
        let mut announced = Self::default();
        for extension in extensions.iter() {
            match extension? {
                Extension::Generation(generation) if generation != 0 => {
                    announced.generation = Some(generation);
                }
                Extension::Paths(paths) => announced.paths = Some(paths),
                _ => {}
            }
        }
        Ok(announced)
    }
}

impl<B, R> Host<B, R> {
    /// Returns whether to act on the report, and drains what stands against it. A new incarnation may not begin while
    /// there are connections to the one before: what it had sent by them was delivered as far as it knew, and is read
    /// first.
    ///
    /// # Errors
    ///
    /// Here the connection is to an incarnation before the known one, since it is older.
    pub(super) fn judge_report(
        &mut self,
        address: IpAddr,
        noticed_by: ConnectionId,
        announced: Announced,
    ) -> Result<bool, Reason> {
        let peer = self.peers.get_mut(&address).expect("known");
        let (Some(new), Some((old, announced_by))) = (announced.generation, peer.generation) else {
            return Ok(true);
        };
        if new == old {
            return Ok(true);
        }
        if noticed_by <= announced_by {
            return Err(Reason::FormerLife);
        }
        let (mut may, mut drains) = (true, false);
        for lane in &mut peer.lane {
            if let Some(connection) = lane.up()
                && connection.id != noticed_by
                && connection.verified == Some(old)
            {
                may = false;
                if !mem::replace(&mut connection.draining, true) {
                    self.outputs.push_back(Output::Drain(connection.id));
                    drains = true;
                }
            }
        }
        if drains {
            self.resume_peer(address);
        }
        Ok(may)
    }

    /// Acts on what a peer reported on a connection.
    pub(super) fn learn(&mut self, address: IpAddr, id: ConnectionId, announced: Announced) {
        if let Some(generation) = announced.generation {
            let peer = self.peers.get_mut(&address).expect("known");
            let before = peer.generation;
            let latest = before.map_or(id, |(_, announced_by)| announced_by.max(id));
            peer.generation = Some((generation, latest));
            if before.is_some_and(|(before, _)| before != generation) {
                self.restart(address, generation, id);
            }
            if let Some(connection) = self.connection(id) {
                connection.verified = Some(generation);
                connection.former = false;
            }
        }
        if let Some(paths) = announced.paths {
            self.lanes_known(address, self.limits.common_lanes(paths));
        }
    }

    /// Gives up what the peer's former incarnation had not acknowledged, and counts anew.
    fn restart(&mut self, address: IpAddr, generation: u32, noticed_by: ConnectionId) {
        let peer = self.peers.get_mut(&address).expect("known");
        let (mut lost, mut unsent) = (Vec::new(), Vec::new());
        for lane in &mut peer.lane {
            lost.extend(mem::take(&mut lane.retransmit));
            unsent.extend(mem::take(&mut lane.queue));
            (lane.next_tx, lane.next_rx) = (1, 0);
            let Some(connection) = lane.up() else { continue };
            // A header that waits has a number, too. Connections made later belong to the new incarnation.
            let waits = matches!(connection.reading, Reading::Paused(_));
            let is_numbered = connection.numbered || waits && connection.id < noticed_by;
            connection.former =
                connection.id != noticed_by && connection.verified.is_none() && is_numbered;
            for (_, frame) in &mut connection.written {
                if let Frame::Message(id) = *frame {
                    lost.push(id);
                    *frame = Frame::Other;
                }
            }
        }
        unsent.sort_unstable();
        peer.lane[0].queue = unsent.into();
        peer.lanes = None;
        peer.fan_out = FanOut::Ahead;
        peer.congestion = Congestion::default();
        self.statistics.restarts += 1;
        self.statistics.lost_to_restarts += lost.len() as u64;
        self.tell(Event::Restarted { peer: address, generation, lost: lost.len() });
        lost.into_iter().for_each(|id: MessageId| self.finish(id, End::PeerRestarted));
    }

    /// Spreads over its lanes what waits for a peer. Done once for each of its incarnations.
    pub(super) fn lanes_known(&mut self, address: IpAddr, lanes: u8) {
        let peer = self.peers.get_mut(&address).expect("known");
        if peer.lanes.is_some() {
            return;
        }
        peer.lanes = Some(lanes);
        for id in mem::take(&mut peer.lane[0].queue) {
            let lane = lane_of(self.messages[&id].from, lanes);
            peer.lane[usize::from(lane)].queue.push_back(id);
        }
        self.connect_wanted(address);
        self.signal(address);
    }

    /// The peer's first map on lane 0 has shown whether its maps report as ours do.
    pub(super) fn manner_known(&mut self, address: IpAddr, extended: bool) {
        let peer = self.peers.get_mut(&address).expect("known");
        peer.extended = Some(extended);
        if let Link::Up(connection) = &mut peer.lane[0].link
            && !extended
            && connection.probe == Probe::No
        {
            connection.probe = Probe::Pending;
        }
    }
}
