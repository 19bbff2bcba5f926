//! Which peers are in our own network namespace, and which ones the application has named.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer is valid; addresses come and go.
const FRESH: Duration = Duration::from_secs(1);
/// Peers remembered before all are forgotten.
const MOST: usize = 4096;

/// Judges peers by the routes of the namespace that it was made in.
pub(super) struct Locality {
    state: Mutex<State>,
}

struct State {
    /// Never sends; connecting it asks for the route.
    asker: UdpSocket,
    known: HashMap<IpAddr, (bool, Instant)>,
    named: HashSet<IpAddr>,
}

impl Locality {
    pub(super) fn new(own: IpAddr) -> io::Result<Self> {
        let asker = UdpSocket::bind(match own {
            IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
            IpAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
        })?;
        let state = State { asker, known: HashMap::new(), named: HashSet::new() };
        Ok(Self { state: Mutex::new(state) })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self, peer: IpAddr, copy: bool) {
        let mut state = self.state();
        if copy {
            state.named.insert(peer);
        } else {
            state.named.remove(&peer);
        }
    }

    /// Whether to copy messages to the peer.
    pub(super) fn copies(&self, peer: IpAddr) -> bool {
        let State { asker, known, named } = &mut *self.state();
        if peer.is_loopback() || named.contains(&peer) {
            return true;
        }
        match known.get(&peer) {
            Some((local, asked)) if asked.elapsed() < FRESH => return *local,
            _ if known.len() >= MOST => known.clear(),
            _ => {}
        }
        // Packets to one of our own addresses leave from it. Without a route there is nothing to send, and
        // the send will say so.
        let route = asker.connect((peer, 9)).and_then(|()| asker.local_addr());
        let local = route.is_ok_and(|from| from.ip() == peer);
        known.insert(peer, (local, Instant::now()));
        local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_known_and_others_can_be_named() {
        let locality = Locality::new([127, 0, 0, 1].into()).unwrap();
        let [own, other] = [[127, 0, 0, 5], [192, 0, 2, 1]].map(IpAddr::from);
        assert!(locality.copies(own));
        assert!(!locality.copies(other));
        locality.name(other, true);
        assert!(locality.copies(other));
        locality.name(other, false);
        assert!(!locality.copies(other));
    }
}
