//! The links of a namespace: what an interface is, and the interfaces above and below it.
//!
//! Kernel interface: RTM_GETLINK, and the ethtool ioctl for the driver's name.

use handoff_sys::ethtool as abi;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use crate::Error;
use crate::kernel::Kernel;

/// One link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    pub(crate) mtu: u32,
    /// Hardware address, as it is written.
    pub(crate) address: String,
    /// The kind of virtual interface; `None` for cards.
    pub(crate) kind: Option<String>,
    /// Index of the bond, bridge or team that it is a port of.
    pub(crate) controller: Option<u32>,
    /// Index of the interface below, as for a VLAN, or of its peer; if in this namespace.
    pub(crate) lower: Option<u32>,
}

impl Kernel {
    /// All links.
    pub(crate) fn links(&self) -> Result<Vec<Link>, Error> {
        let links = self.route(|route| route.links());
        let links = links.map_err(Error::doing("listing the network interfaces"))?;
        Ok(links.into_iter().map(Link::from).collect())
    }

    /// The link with this index, if it is still there.
    pub(crate) fn link(&self, index: u32) -> Result<Option<Link>, Error> {
        Ok(self.links()?.into_iter().find(|link| link.index == index))
    }

    /// Name of the driver; `None` where it does not tell.
    pub(crate) fn driver(&self, index: u32) -> Option<String> {
        let mut info = abi::DriverInfo::new();
        // SAFETY: ETHTOOL_GDRVINFO, which the structure carries, writes an ethtool_drvinfo.
        unsafe { self.ioctl(index, &mut info) }.ok()?;
        Some(info.driver())
    }
}

/// A hardware address as it is written.
pub(crate) fn written(address: &[u8]) -> String {
    let bytes: Vec<_> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            loopback: message.header.flags.contains(LinkFlags::Loopback),
            ..Self::default()
        };
        let elsewhere = |attribute: &_| matches!(attribute, LinkAttribute::LinkNetNsId(_));
        let elsewhere = message.attributes.iter().any(elsewhere);
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Address(address) => {
                    link.address = written(&address);
                }
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::Link(index) if index != 0 && !elsewhere => link.lower = Some(index),
                LinkAttribute::LinkInfo(infos) => {
                    link.kind = infos.into_iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        link
    }
}
