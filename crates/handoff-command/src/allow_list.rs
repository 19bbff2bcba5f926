//! Who may connect to a listener, and what is said of those who may not.
//!
//! Contracts:
//! - a listener that others than this machine reach says so, unless it is told whom to let in;
//! - a flood of strangers gives at most one line a second, however many threads listen.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::output;
use crate::rate_limit::RateLimit;

/// Who may connect, as every command that listens takes it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AllowArgs {
    /// Accept connections from these addresses only, such as 192.0.2.0/24 or 192.0.2.7; may be repeated.
    /// Others are disconnected at once
    #[arg(long, value_name = "ADDR/LEN", value_parser = range)]
    pub from: Vec<IpNet>,
}

/// Reads ADDR/LEN, or one address.
///
/// # Errors
///
/// How they are written.
pub fn range(text: &str) -> Result<IpNet, String> {
    let one = text.parse::<IpAddr>().map(IpNet::from);
    one.or_else(|_| text.parse()).map(canonical).map_err(|_| {
        "addresses are written as ADDR/LEN, such as 192.0.2.0/24 or 2001:db8::/32".to_owned()
    })
}

/// IPv4 addresses in the form of IPv6 as what they are.
fn canonical(range: IpNet) -> IpNet {
    let v4 = range.addr().to_canonical();
    let len = range.prefix_len().checked_sub(96);
    let v4 = len.filter(|_| v4.is_ipv4() && range.addr().is_ipv6()).map(|len| IpNet::new(v4, len));
    v4.and_then(Result::ok).unwrap_or(range)
}

/// Says that anyone may come, where that is so.
pub fn warn(address: SocketAddr, from: &[IpNet], what: &str) {
    warning(address, from, what).into_iter().for_each(output::say);
}

/// The same, with what else to do.
pub fn warn_with(address: SocketAddr, from: &[IpNet], what: &str, instead: &str) {
    anyone(address, what, instead).filter(|_| from.is_empty()).into_iter().for_each(output::say);
}

/// Says that anyone may send by RDS, where that is so.
pub fn warn_of_rds(by_kernel: bool, address: SocketAddr, from: &[IpNet]) {
    // The kernel's lets all in.
    let of_kernel =
        || anyone(address, "send", "the kernel's RDS lets all in, our own engine takes --from");
    let line = if by_kernel { of_kernel() } else { warning(address, from, "send") };
    line.into_iter().for_each(output::say);
}

fn warning(address: SocketAddr, from: &[IpNet], what: &str) -> Option<String> {
    anyone(address, what, "--from ADDR/LEN lets fewer in").filter(|_| from.is_empty())
}

fn anyone(address: SocketAddr, what: &str, but: &str) -> Option<String> {
    (!address.ip().to_canonical().is_loopback())
        .then(|| format!("note: anyone who reaches {address} may {what}; {but}"))
}

/// The addresses that may connect. Clones, for other threads, say their lines together.
#[derive(Clone, Debug)]
pub struct AllowList {
    /// None: all may.
    from: Option<Vec<IpNet>>,
    /// Why others may not.
    why: &'static str,
    lines: RateLimit,
    say: fn(String),
}

impl AllowList {
    /// Those that `--from` names, or all where it names none.
    pub fn new(from: &[IpNet]) -> Self {
        let from = (!from.is_empty()).then(|| from.to_vec());
        Self::with_reason(from, "it is none of those that --from lets in", output::say)
    }

    /// Those that this side talks to, and nobody else. That others were turned away is for the log: they may be peers of
    /// an earlier run.
    pub fn only(peers: impl IntoIterator<Item = IpAddr>) -> Self {
        let peers = peers.into_iter().map(|peer| peer.to_canonical().into()).collect();
        let log = |line| tracing::info!("{line}");
        Self::with_reason(Some(peers), "only those that this side sends to may connect", log)
    }

    fn with_reason(from: Option<Vec<IpNet>>, why: &'static str, say: fn(String)) -> Self {
        let more = |count| format!("turned {count} more connections away");
        Self { from, why, lines: RateLimit::new(more, say), say }
    }

    /// Whether this peer may connect, which is said where it may not.
    pub fn lets_in(&self, peer: SocketAddr) -> bool {
        let may = self.may_come(peer.ip());
        if !may {
            self.turned_away(peer, self.why);
        }
        may
    }

    /// Whether this address may connect.
    pub fn may_come(&self, address: IpAddr) -> bool {
        // A socket for both versions sees IPv4 in the form of IPv6.
        let address = address.to_canonical();
        let named = |from: &Vec<IpNet>| from.iter().any(|range| range.contains(&address));
        self.from.as_ref().is_none_or(named)
    }

    /// Says that a peer was turned away.
    pub fn turned_away(&self, peer: impl Display, why: &str) {
        if let Some(line) =
            self.lines.now(|| format!("turned a connection from {peer} away: {why}"))
        {
            (self.say)(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_named_may_come() {
        let who = |from: &[IpNet]| AllowList::new(from);
        let all = who(&[]);
        let some = who(&["192.0.2.0/24", "2001:db8::7"].map(|text| range(text).unwrap()));
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
        for (mapped, v4) in
            [("::ffff:192.0.2.0/120", "192.0.2.0/24"), ("::ffff:192.0.2.7", "192.0.2.7/32")]
        {
            assert_eq!(range(mapped).unwrap().to_string(), v4);
        }
        for as_it_is in ["::/0", "::ffff:0.0.0.0/95", "0.0.0.0/0"] {
            assert_eq!(range(as_it_is).unwrap(), as_it_is.parse().unwrap());
        }
        assert_eq!(range("::ffff:0:0/96").unwrap().to_string(), "0.0.0.0/0");

        let peer: IpAddr = "::ffff:192.0.2.7".parse().unwrap();
        for (only, may) in [(vec![peer], true), (vec![], false)] {
            let only = AllowList::only(only);
            assert_eq!(only.may_come("192.0.2.7".parse().unwrap()), may);
            assert!(!only.may_come("192.0.2.8".parse().unwrap()));
        }
    }

    #[test]
    fn who_may_come_is_said_where_all_may_from_elsewhere() {
        let warned = |address: &str, from: &[IpNet]| {
            warning(address.parse().unwrap(), from, "send").is_some()
        };
        assert!(warned("192.0.2.9:1", &[]) && warned("[::]:1", &[]));
        assert!(!warned("127.0.0.1:1", &[]) && !warned("[::ffff:127.0.0.1]:1", &[]));
        assert!(!warned("192.0.2.9:1", &[range("192.0.2.0/24").unwrap()]));
    }
}
