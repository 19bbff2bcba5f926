//! The few rtnetlink requests that build topologies, each acknowledged before it returns.
//!
//! Kernel interface: NETLINK_ROUTE, and the SIOCETHTOOL ioctl for the two offloads that zero copy
//! depends on.

use std::{io, net::IpAddr, os::fd::AsFd as _};

use handoff_sys::{ethtool, netlink::Netlink};
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
    tc::{TcAttribute, TcHandle, TcMessage},
};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::error::TopologyError;
use crate::error::asked;

const TCA_OPTIONS: u16 = 2;

/// A socket to the kernel's network configuration, in the namespace of the thread that opened it.
pub(super) struct Rtnetlink(Netlink);

/// A link to be made; its attributes are those of RTM_NEWLINK.
pub(super) struct NewLink<'a> {
    pub(super) name: &'a str,
    pub(super) kind: InfoKind,
    pub(super) data: Option<LinkInfo>,
    pub(super) attributes: Vec<LinkAttribute>,
}

impl Rtnetlink {
    pub(super) fn open() -> Result<Self, TopologyError> {
        Netlink::route().map(Self).map_err(asked("open an rtnetlink socket"))
    }

    /// Sends one request and waits for its acknowledgement.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.ask(message, NLM_F_ACK | flags)?;
        Ok(())
    }

    /// Makes a link. A device type that the kernel lacks is `Unavailable`.
    pub(super) fn add_link(&mut self, link: NewLink<'_>) -> Result<(), TopologyError> {
        let kind = link.kind.to_string();
        let mut info = vec![LinkInfo::Kind(link.kind)];
        info.extend(link.data);
        let mut message = LinkMessage::default();
        message.attributes = link.attributes;
        message.attributes.push(LinkAttribute::IfName(link.name.into()));
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let made = self.request(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL);
        made.map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => TopologyError::Unavailable {
                what: format!("the {kind} device"),
                reason: "this kernel has no such device type".into(),
            },
            Some(libc::EPERM) => TopologyError::NotPermitted {
                reason: format!("making a {kind} device takes CAP_NET_ADMIN"),
            },
            _ => asked(format!("make a {kind} device"))(error),
        })
    }

    pub(super) fn set_up(&mut self, name: &str) -> Result<(), TopologyError> {
        self.set(name, LinkFlags::Up, Vec::new())
    }

    /// Gives a device other attributes; it is down afterwards.
    pub(super) fn change(
        &mut self,
        name: &str,
        attributes: Vec<LinkAttribute>,
    ) -> Result<(), TopologyError> {
        self.set(name, LinkFlags::empty(), attributes)
    }

    fn set(
        &mut self,
        name: &str,
        up: LinkFlags,
        attributes: Vec<LinkAttribute>,
    ) -> Result<(), TopologyError> {
        let action = match up.is_empty() {
            true => format!("take {name} down, with {attributes:?}"),
            false => format!("set {name} up"),
        };
        let mut message = LinkMessage::default();
        message.header.index = index_of(name)?;
        message.header.flags = up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = attributes;
        self.request(RouteNetlinkMessage::SetLink(message), 0).map_err(asked(action))
    }

    /// Adds an address with its on-link route; an IPv6 address is usable at once (no duplicate
    /// address detection).
    pub(super) fn add_address(
        &mut self,
        name: &str,
        address: IpAddr,
        prefix_len: u8,
    ) -> Result<(), TopologyError> {
        let mut message = AddressMessage::default();
        message.header.index = index_of(name)?;
        message.header.prefix_len = prefix_len;
        message.header.family = address.into();
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
            .map_err(asked(format!("give {name} the address {address}")))
    }

    /// Adds a neighbour that needs no resolution and never expires.
    pub(super) fn add_neighbour(
        &mut self,
        name: &str,
        address: IpAddr,
        mac: [u8; 6],
    ) -> Result<(), TopologyError> {
        let mut message = NeighbourMessage::default();
        message.header.family = address.into();
        message.header.ifindex = index_of(name)?;
        message.header.state = NeighbourState::Permanent;
        message.attributes = vec![
            NeighbourAttribute::Destination(address.into()),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(asked(format!("add the neighbour {address}")))
    }

    /// Replaces a device's root queueing discipline. One that the kernel lacks is `Unavailable`.
    pub(super) fn set_discipline(
        &mut self,
        name: &str,
        kind: &str,
        options: Option<Vec<u8>>,
    ) -> Result<(), TopologyError> {
        let index = i32::try_from(index_of(name)?).map_err(|_| {
            asked(format!("find {name}"))(io::Error::other("its index is out of range"))
        })?;
        let mut message = TcMessage::with_index(index);
        message.header.parent = TcHandle::ROOT;
        message.attributes = vec![TcAttribute::Kind(kind.into())];
        message
            .attributes
            .extend(options.map(|bytes| TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, bytes))));
        let set = self.request(
            RouteNetlinkMessage::NewQueueDiscipline(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        );
        set.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => TopologyError::Unavailable {
                what: format!("the {kind} queueing discipline"),
                reason: "this kernel has no such discipline".into(),
            },
            _ => asked(format!("give {name} the discipline {kind}"))(error),
        })
    }
}

fn index_of(name: &str) -> Result<u32, TopologyError> {
    let probe =
        socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(asked("open a socket"))?;
    netdevice::name_to_index(probe.as_fd(), name).map_err(asked(format!("find {name}")))
}

/// The offloads without which the stack copies lent pages before the device sees them.
const OFFLOADS: [(&str, u32, u32); 2] = [
    ("checksum offload", ethtool::GTXCSUM, ethtool::STXCSUM),
    ("scatter-gather", ethtool::GSG, ethtool::SSG),
];

/// Switches checksum offload and scatter-gather on where they are off.
pub(super) fn enable_zero_copy_offloads(name: &str) -> Result<(), TopologyError> {
    for (what, get, set) in OFFLOADS {
        let action = || format!("switch {what} of {name} on");
        if ethtool_value(name, get, 0).map_err(asked(action()))? == 0 {
            ethtool_value(name, set, 1).map_err(asked(action()))?;
        }
    }
    Ok(())
}

fn ethtool_value(name: &str, cmd: u32, data: u32) -> io::Result<u32> {
    let probe = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut value = ethtool::Value { cmd, data };
    // SAFETY: the four commands read or write an ethtool_value.
    unsafe { ethtool::ioctl(&probe, name, &mut value) }?;
    Ok(value.data)
}
