//! Congestion maps of kernels, which may be outdated without notice.
//!
//! A kernel sends a map by whichever lane writes next, and connections have no order among each other. If
//! several lanes come up at once, an older map can be read after a newer one, and the kernel has no reason
//! to send another. The protocol has no request for a map; but a kernel sends one whenever a lane comes up.
//! So if a message was refused because of a map that has stood for a while, an idle lane is renewed: its
//! connection is half-closed, read to its end, and replaced. If the receiver is really congested, this
//! happens less and less often.
//!
//! Maps of engines like ours are taken only from lane 0 and need none of this. But any peer's map stands
//! while there is no connection, and the peer may have restarted; so a refused sender wants a new one.

use std::net::IpAddr;
use std::time::Duration;

use super::host::Host;
use super::output::Output;
use super::peer::{Lane, Link, Peer};
use crate::wire::CongestionMap;

/// How long a map stands before it is doubted, at first and at most.
const STANDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));

/// What a peer reported about its ports, and since when.
#[derive(Default)]
pub(super) struct Congestion {
    map: Option<CongestionMap>,
    /// When it was read, or doubted last.
    since: Duration,
    /// How long it stands from then on; each doubt doubles it.
    stands: Duration,
    /// When a message was last refused because of it.
    refused: Option<Duration>,
}

impl Congestion {
    /// Whether a message to the port must wait; remembers that it did.
    pub(super) fn refuses(&mut self, port: u16, now: Duration) -> bool {
        let congested = self.map.as_ref().is_some_and(|map| map.contains(port));
        if congested {
            self.refused = Some(now);
        }
        congested
    }

    /// Whether somebody may still wait for another map.
    pub(super) fn is_awaited(&self, now: Duration, keep: Duration) -> bool {
        self.refused.is_some_and(|refused| now < refused + keep)
    }

    /// The peer has reported anew; `true` if some port is no longer congested.
    pub(super) fn read(&mut self, map: CongestionMap, now: Duration) -> bool {
        let before = self.map.replace(map);
        let map = self.map.as_ref().expect("just put there");
        let relieved = before.is_some_and(|before| before.ports().any(|port| !map.contains(port)));
        let stands = if relieved { STANDS.0 } else { self.stands.max(STANDS.0) };
        (self.since, self.stands) = (now, stands);
        // Senders that are still refused ask again.
        self.refused = self.refused.filter(|_| !relieved);
        relieved
    }
}

impl Peer {
    /// When its map is to be doubted.
    pub(super) fn map_doubted_at(&self, now: Duration, keep: Duration) -> Option<Duration> {
        let it = &self.congestion;
        let doubtful = self.extended == Some(false) && it.is_awaited(now, keep);
        doubtful.then(|| it.since + it.stands)
    }

    /// The lane whose renewal disturbs least: one without messages, lane 0 last.
    fn lane_to_renew(&self) -> Option<usize> {
        let renewable = |lane: &Lane| match &lane.link {
            Link::Up(connection) => {
                !connection.draining && !connection.retiring && lane.successors.is_empty()
            }
            _ => false,
        };
        let busy = |lane: &Lane| match &lane.link {
            Link::Up(connection) => lane.has_unsent() || !connection.written.is_empty(),
            _ => true,
        };
        let lanes = self.lane.iter().enumerate().rev();
        lanes
            .filter(|(_, lane)| renewable(lane))
            .min_by_key(|(_, lane)| busy(lane))
            .map(|(at, _)| at)
    }
}

impl<B, R> Host<B, R> {
    /// Renews a lane, if the peer's map has stood for too long.
    pub(super) fn doubt_map(&mut self, address: IpAddr) {
        let (now, keep) = (self.now, self.limits.keep);
        let peer = self.peers.get_mut(&address).expect("known");
        if peer.map_doubted_at(now, keep).is_none_or(|at| now < at) {
            return;
        }
        peer.congestion.since = now;
        peer.congestion.stands = (peer.congestion.stands * 2).min(STANDS.1);
        let Some(lane) = peer.lane_to_renew() else { return };
        let connection = peer.lane[lane].up().expect("is up");
        connection.retiring = true;
        self.statistics.renewals += 1;
        self.outputs.push_back(Output::Finish(connection.id));
        self.resume_peer(address);
    }
}
