//! Who connects to whom, and which lane a port's messages take.

use std::net::{IpAddr, Ipv6Addr};

/// Our part in the TCP connections with a peer: the smaller address is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We connect.
    Client,
    /// The peer connects to us; a connection of ours only asks it to.
    Server,
}

impl Role {
    /// Our role; `None` towards ourselves. IPv4 addresses compare as mapped into IPv6.
    pub fn of(own: IpAddr, peer: IpAddr) -> Option<Self> {
        match mapped(own).cmp(&mapped(peer)) {
            std::cmp::Ordering::Less => Some(Self::Client),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Self::Server),
        }
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The lane of a port among `lanes`, a power of two. Neighbouring ports take different ones.
pub(super) fn lane_of(port: u16, lanes: u8) -> u8 {
    (port.wrapping_mul(0x9e37) >> 13) as u8 & (lanes - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_address_connects() {
        let role = |own: &str, peer: &str| Role::of(own.parse().unwrap(), peer.parse().unwrap());
        assert_eq!(role("10.0.0.1", "10.0.0.2"), Some(Role::Client));
        assert_eq!(role("10.0.0.2", "10.0.0.1"), Some(Role::Server));
        assert_eq!(role("10.0.0.1", "::ffff:10.0.0.1"), None);
        // Mapped addresses begin with ten zeros.
        assert_eq!(role("200.0.0.1", "fd00::1"), Some(Role::Client));
        assert_eq!(role("9.255.0.0", "10.0.0.0"), Some(Role::Client));
    }

    #[test]
    fn ports_spread_over_the_lanes() {
        for lanes in [1, 2, 4, 8] {
            let mut used = [0; 8];
            (4000..4064).for_each(|port| used[usize::from(lane_of(port, lanes))] += 1);
            assert!(used[..usize::from(lanes)].iter().all(|ports| *ports > 0), "{used:?}");
            assert!(used[usize::from(lanes)..].iter().all(|ports| *ports == 0), "{used:?}");
        }
    }
}
