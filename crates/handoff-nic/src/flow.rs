//! Which packets a rule matches: those of one TCP port, or of one connection.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use handoff_sys::ethtool::{self as abi, FlowFields, FlowRule};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Version of the Internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ip {
    /// IPv4.
    #[serde(rename = "4")]
    V4,
    /// IPv6.
    #[serde(rename = "6")]
    V6,
}

impl From<IpAddr> for Ip {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// One end of a connection, as far as it matters to the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct End {
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl End {
    fn of(address: SocketAddr) -> Self {
        let ip = Some(address.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        Self { address: ip, port: Some(address.port()).filter(|port| *port != 0) }
    }

    fn covers(&self, other: &Self) -> bool {
        self.address.is_none_or(|address| other.address == Some(address))
            && self.port.is_none_or(|port| other.port == Some(port))
    }
}

/// TCP packets that arrive for a port, an address, or a connection.
///
/// ```
/// use handoff_nic::{Flow, Ip};
///
/// let port = Flow::port(Ip::V4, 8000);
/// let connection = Flow::connection("10.0.0.1:8000".parse().unwrap(), "10.0.0.2:4711".parse().unwrap());
/// assert!(port.covers(&connection.unwrap()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    ip: Ip,
    local: End,
    remote: End,
}

impl Flow {
    /// Packets for this port, at any of our addresses.
    pub fn port(ip: Ip, port: u16) -> Self {
        Self { ip, local: End { address: None, port: Some(port) }, remote: End::default() }
    }

    /// Packets for a listening socket; an unspecified address stands for all of its version.
    pub fn listening(local: SocketAddr) -> Self {
        let ip = local.ip().to_canonical().into();
        Self { ip, local: End::of(local), remote: End::default() }
    }

    /// Packets of a connection. IPv4 addresses may be written as IPv6, as on a socket that listens to
    /// both.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the addresses are of different versions.
    pub fn connection(local: SocketAddr, remote: SocketAddr) -> Result<Self, Error> {
        let ip: Ip = local.ip().to_canonical().into();
        if ip != Ip::from(remote.ip().to_canonical()) {
            let cause = format!("{local} and {remote} are of different versions of IP");
            return Err(Error::invalid(cause));
        }
        Ok(Self { ip, local: End::of(local), remote: End::of(remote) })
    }

    /// Whether this flow contains every packet of the other.
    pub fn covers(&self, other: &Self) -> bool {
        self.ip == other.ip && self.local.covers(&other.local) && self.remote.covers(&other.remote)
    }

    fn layout(ip: Ip) -> Layout {
        match ip {
            Ip::V4 => Layout { flow_type: abi::TCP_V4_FLOW, address: 4 },
            Ip::V6 => Layout { flow_type: abi::TCP_V6_FLOW, address: 16 },
        }
    }

    /// The rule for it; the caller sets the location.
    pub(crate) fn rule(&self, queue: u32) -> FlowRule {
        let layout = Self::layout(self.ip);
        let (mut value, mut mask) = (FlowFields::NONE, FlowFields::NONE);
        for (from, ends, bytes) in layout.fields() {
            let end = if ends == Side::Remote { &self.remote } else { &self.local };
            let wanted = match bytes {
                FieldKind::Address => end.address.map(octets),
                FieldKind::Port => end.port.map(|port| port.to_be_bytes().to_vec()),
            };
            if let Some(wanted) = wanted {
                value.fields[from..][..wanted.len()].copy_from_slice(&wanted);
                mask.fields[from..][..wanted.len()].fill(0xff);
            }
        }
        FlowRule { flow_type: layout.flow_type, value, mask, cookie: queue.into(), location: 0 }
    }

    /// What a rule matches, if a flow can say it.
    pub(crate) fn of(rule: &FlowRule) -> Option<Self> {
        let flow_type = rule.flow_type & !abi::FLOW_RSS;
        let ip =
            [Ip::V4, Ip::V6].into_iter().find(|ip| Self::layout(*ip).flow_type == flow_type)?;
        let layout = Self::layout(ip);
        let mut flow = Self { ip, local: End::default(), remote: End::default() };
        let mut rest = rule.mask;
        for (from, side, kind) in layout.fields() {
            let length = if kind == FieldKind::Port { 2 } else { layout.address };
            let mask = &mut rest.fields[from..][..length];
            let wanted = match mask.iter().all(|byte| *byte == 0xff) {
                true => &rule.value.fields[from..][..length],
                false if mask.iter().all(|byte| *byte == 0) => continue,
                false => return None,
            };
            mask.fill(0);
            let end = if side == Side::Remote { &mut flow.remote } else { &mut flow.local };
            match kind {
                FieldKind::Address => end.address = Some(address(wanted)?),
                FieldKind::Port => end.port = Some(u16::from_be_bytes(wanted.try_into().ok()?)),
            }
        }
        (rest == FlowFields::NONE).then_some(flow)
    }
}

/// Where the fields are. The remote end is the packets' source.
struct Layout {
    flow_type: u32,
    /// Bytes of an address.
    address: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Remote,
    Local,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Address,
    Port,
}

impl Layout {
    fn fields(&self) -> [(usize, Side, FieldKind); 4] {
        let ports = 2 * self.address;
        [
            (0, Side::Remote, FieldKind::Address),
            (self.address, Side::Local, FieldKind::Address),
            (ports, Side::Remote, FieldKind::Port),
            (ports + 2, Side::Local, FieldKind::Port),
        ]
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(|octets| Ipv4Addr::from(octets).into()),
        _ => <[u8; 16]>::try_from(octets).ok().map(|octets| Ipv6Addr::from(octets).into()),
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.port) {
            (Some(address), Some(port)) => SocketAddr::new(address, port).fmt(f),
            (Some(address), None) => address.fmt(f),
            (None, Some(port)) => write!(f, "port {port}"),
            (None, None) => f.write_str("anywhere"),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.ip == Ip::V4 { "IPv4" } else { "IPv6" };
        write!(f, "TCP over {name} to {}", self.local)?;
        if self.remote != End::default() {
            write!(f, " from {}", self.remote)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let flow = Flow::connection(parse("10.0.0.2:8000"), parse("10.0.0.1:4660")).expect("fits");
        let rule = flow.rule(3);
        assert_eq!(rule.flow_type, 1);
        assert_eq!(rule.cookie, 3);
        assert_eq!(rule.value.fields[..12], [10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0x1f, 0x40]);
        assert_eq!(
            rule.mask.fields[..13],
            [255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0]
        );
        let rule = Flow::port(Ip::V6, 8000).rule(1);
        assert_eq!((rule.flow_type, rule.value.fields[34], rule.mask.fields[34]), (5, 0x1f, 255));
        assert_eq!(rule.mask.fields.iter().filter(|byte| **byte != 0).count(), 2);
    }

    #[test]
    fn what_a_flow_cannot_say_is_none() {
        let mut rule = Flow::port(Ip::V4, 80).rule(0);
        rule.mask.fields[0] = 0xff;
        assert_eq!(Flow::of(&rule), None, "a subnet");
        let mut rule = Flow::port(Ip::V4, 80).rule(0);
        rule.mask.more[3] = 1;
        assert_eq!(Flow::of(&rule), None, "more fields");
        let mut rule = Flow::port(Ip::V4, 80).rule(0);
        rule.flow_type = 2;
        assert_eq!(Flow::of(&rule), None, "UDP");
    }

    #[test]
    fn addresses_of_sockets_that_listen_to_both() {
        let flow = Flow::connection(parse("[::ffff:10.0.0.2]:80"), parse("[::ffff:10.0.0.1]:9"));
        let flow = flow.expect("both are of version 4");
        assert_eq!(flow.to_string(), "TCP over IPv4 to 10.0.0.2:80 from 10.0.0.1:9");
        assert!(Flow::port(Ip::V4, 80).covers(&flow));
        assert!(!flow.covers(&Flow::port(Ip::V4, 80)));
        assert!(!Flow::port(Ip::V6, 80).covers(&flow));
        assert_eq!(Flow::listening(parse("0.0.0.0:80")), Flow::port(Ip::V4, 80));
        assert_eq!(Flow::port(Ip::V6, 80).to_string(), "TCP over IPv6 to port 80");
        Flow::connection(parse("10.0.0.2:80"), parse("[fd00::1]:9")).expect_err("of two versions");
    }

    proptest! {
        #[test]
        fn a_rule_says_what_its_flow_did(
            local: Option<u128>, port: Option<u16>, remote: Option<u128>, from: Option<u16>, six: bool
        ) {
            let address = |bits: u128| -> IpAddr {
                if six { Ipv6Addr::from(bits).into() } else { Ipv4Addr::from(bits as u32).into() }
            };
            let flow = Flow {
                ip: if six { Ip::V6 } else { Ip::V4 },
                local: End { address: local.map(address), port },
                remote: End { address: remote.map(address), port: from },
            };
            prop_assert_eq!(Flow::of(&flow.rule(7)), Some(flow));
            let text = serde_json::to_string(&flow).expect("serialises");
            prop_assert_eq!(serde_json::from_str::<Flow>(&text).expect("reads"), flow);
        }
    }
}
