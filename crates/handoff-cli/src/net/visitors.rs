//! Who may connect to a listener, and what is said of those who may not.
//!
//! Contracts:
//! - a listener that others than this machine reach says so, unless it is told whom to let in;
//! - a flood of strangers gives at most one line a second.

use std::cell::Cell;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;

/// The least time between two lines about strangers.
const QUIET: Duration = Duration::from_secs(1);

/// Reads ADDR/LEN, or one address.
///
/// # Errors
///
/// What is neither.
pub(crate) fn range(text: &str) -> Result<IpNet, String> {
    let one = text.parse::<IpAddr>().map(IpNet::from);
    one.or_else(|_| text.parse()).map_err(|_| {
        "addresses are written as ADDR/LEN, such as 192.0.2.0/24 or 2001:db8::/32".to_owned()
    })
}

/// Says that anyone may come, where that is so.
pub(crate) fn warn(address: SocketAddr, from: &[IpNet], what: &str) {
    if from.is_empty() && !address.ip().to_canonical().is_loopback() {
        eprintln!(
            "handoff: note: anyone who reaches {address} may {what}; --from ADDR/LEN lets fewer in"
        );
    }
}

/// The addresses that may connect, and how many lines were said about others.
#[derive(Debug)]
pub(crate) struct Visitors {
    /// None named: all may.
    from: Vec<IpNet>,
    said: Cell<Option<Instant>>,
    unsaid: Cell<u64>,
}

impl Visitors {
    pub(crate) fn new(from: &[IpNet]) -> Self {
        Self { from: from.to_vec(), said: Cell::new(None), unsaid: Cell::new(0) }
    }

    /// The same addresses, for another thread, which says its own lines.
    pub(crate) fn for_another(&self) -> Self {
        Self::new(&self.from)
    }

    /// Whether this peer may connect, which is said where it may not.
    pub(crate) fn lets_in(&self, peer: SocketAddr) -> bool {
        let may = self.may_come(peer.ip());
        if !may {
            self.turned_away(peer, "it is none of those that --from lets in");
        }
        may
    }

    /// Whether this address may connect.
    pub(crate) fn may_come(&self, address: IpAddr) -> bool {
        // A socket for both versions sees IPv4 in the form of IPv6.
        let address = address.to_canonical();
        self.from.is_empty() || self.from.iter().any(|range| range.contains(&address))
    }

    /// Says that a peer was turned away.
    pub(crate) fn turned_away(&self, peer: impl Display, why: &str) {
        if self.said.get().is_some_and(|said| said.elapsed() < QUIET) {
            self.unsaid.set(self.unsaid.get() + 1);
            return;
        }
        self.said.set(Some(Instant::now()));
        eprintln!("handoff: turned a connection from {peer} away: {why}{}", self.others());
    }

    fn others(&self) -> String {
        match self.unsaid.take() {
            0 => String::new(),
            others => format!("; and {others} others before"),
        }
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        if self.unsaid.get() > 0 {
            eprintln!("handoff: turned {} more connections away", self.unsaid.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_named_may_come() {
        let all = Visitors::new(&[]);
        let some = Visitors::new(&["192.0.2.0/24", "2001:db8::7"].map(|text| range(text).unwrap()));
        for (address, may) in [
            ("192.0.2.9", true),
            ("::ffff:192.0.2.9", true),
            ("192.0.3.9", false),
            ("2001:db8::7", true),
            ("2001:db8::8", false),
        ] {
            let address = address.parse().unwrap();
            assert!(all.may_come(address));
            assert_eq!(some.may_come(address), may, "{address}");
        }
        for wrong in ["", "host", "192.0.2.0/33", "192.0.2/24"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
