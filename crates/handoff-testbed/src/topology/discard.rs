//! A device that drops what is transmitted to it, without a copy.
//!
//! `dummy` exists for that. Where a kernel lacks it, `ifb` does the same: it frees every packet that no
//! traffic-control rule redirected to it, and a fresh namespace has no such rule; with the `noqueue`
//! discipline, which `dummy` has from the start, its transmit path is the same.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use netlink_packet_route::link::{InfoKind, LinkAttribute};

use super::{
    Namespace, Netem,
    rtnetlink::{NewLink, Rtnetlink, enable_zero_copy_offloads},
};
use crate::driver::load;
use crate::error::TopologyError;

const DEVICE: &str = "discard0";
/// The largest MTU of IPv4, so that the largest UDP datagram is one packet.
const MTU: u32 = 65_535;
const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2)];
/// Locally administered, and used by nobody.
const NEIGHBOUR_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x77, 0x02];

/// Which device a [`Discard`] sink is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardKind {
    /// The `dummy` driver.
    Dummy,
    /// The `ifb` driver with the `noqueue` discipline.
    Ifb,
}

impl fmt::Display for DiscardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dummy => "dummy",
            Self::Ifb => "ifb",
        })
    }
}

/// A namespace with a device that drops whatever is sent to [`Discard::v4`] or [`Discard::v6`].
///
/// MTU 65,535, scatter-gather and checksum offload on, the neighbour permanent.
///
/// ```no_run
/// use std::net::UdpSocket;
/// use handoff_testbed::{Discard, TopologyError};
///
/// # fn main() -> Result<(), TopologyError> {
/// let sink = Discard::new()?;
/// sink.namespace().run(|| {
///     let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
///     socket.send_to(b"dropped", (sink.v4(), 9)).expect("sent");
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Discard {
    namespace: Namespace,
    kind: DiscardKind,
}

impl Discard {
    /// Makes the sink in a namespace of its own: a `dummy`, or else an `ifb`.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] where the kernel has neither.
    pub fn new() -> Result<Self, TopologyError> {
        let namespace = Namespace::new()?;
        let kind = namespace.run(make_device)??;
        Ok(Self { namespace, kind })
    }

    /// The namespace to open sockets in.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Which device it is.
    pub fn kind(&self) -> DiscardKind {
        self.kind
    }

    /// The device's name in the namespace.
    pub fn device(&self) -> &'static str {
        DEVICE
    }

    /// An IPv4 address behind the device. No port is ever refused.
    pub fn v4(&self) -> Ipv4Addr {
        V4[1]
    }

    /// An IPv6 address behind the device.
    pub fn v6(&self) -> Ipv6Addr {
        V6[1]
    }

    /// Delays or drops packets before the device sees them.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] where the kernel has no netem.
    pub fn set_netem(&self, netem: &Netem) -> Result<(), TopologyError> {
        self.namespace.run(|| netem.apply(DEVICE))?
    }
}

fn make_device() -> Result<DiscardKind, TopologyError> {
    let mut kernel = Rtnetlink::open()?;
    let mut add = |kind| {
        kernel.add_link(NewLink {
            name: DEVICE,
            kind,
            data: None,
            attributes: vec![LinkAttribute::Mtu(MTU)],
        })
    };
    // Loaded by the kernel, these would make devices in the machine's own namespace.
    let load_bare = |driver: &str, none: &str| {
        if !Path::new("/sys/module").join(driver).exists() {
            // The kernel says why there is none.
            let _ = load(driver, &[none]);
        }
    };
    load_bare("dummy", "numdummies=0");
    let kind = match add(InfoKind::Dummy) {
        Ok(()) => DiscardKind::Dummy,
        Err(TopologyError::Unavailable { .. }) => {
            load_bare("ifb", "numifbs=0");
            add(InfoKind::Ifb)?;
            DiscardKind::Ifb
        }
        Err(other) => return Err(other),
    };
    if kind == DiscardKind::Ifb {
        kernel.set_discipline(DEVICE, "noqueue", None)?;
    }
    enable_zero_copy_offloads(DEVICE)?;
    kernel.set_up(DEVICE)?;
    for ([own, neighbour], prefix_len) in [(V4.map(IpAddr::V4), 24), (V6.map(IpAddr::V6), 64)] {
        kernel.add_address(DEVICE, own, prefix_len)?;
        kernel.add_neighbour(DEVICE, neighbour, NEIGHBOUR_MAC)?;
    }
    Ok(kind)
}
