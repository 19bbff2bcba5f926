//! A netkit pair: the near end beside the card, the far end in another network namespace, with leased
//! queues, addresses and routes.
//!
//! Kernel interface: RTM_NEWLINK for netkit, NETDEV_CMD_QUEUE_CREATE, Linux 7.1. Capabilities:
//! CAP_NET_ADMIN in the first user namespace, CAP_SYS_ADMIN to enter the namespace.
//!
//! The far end sends by a gateway that nobody has: the program at the near end hands the packets to the
//! card, and the host's routes say where they go (`redirect`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

use handoff_sys::netdev as abi;
use handoff_sys::netlink::{Attributes, Refusal};
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoNetkit, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, NetkitMode,
    NetkitPolicy,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::kernel::Kernel;
use crate::link::{Link, written};
use crate::namespace::Namespace;
use crate::queues::Bound;
use crate::queues::list;
use crate::redirect;

/// The gateways: link-local, so they are nobody's elsewhere.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// A netkit pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Name of the near end when it was made.
    pub name: String,
    /// Hardware address of the near end, which distinguishes it from pairs of others.
    address: String,
    /// Name of the far end.
    pub device: String,
    /// The far end's network namespace: where it was found.
    pub namespace: PathBuf,
    /// Its inode.
    inode: u64,
    /// MTU of both ends.
    mtu: u32,
    /// The card's queues; the far end has them as 1, 2, ... in this order.
    pub queues: Vec<u32>,
    /// Addresses of the far end.
    pub addresses: Vec<IpAddr>,
    /// What the far end reaches.
    pub routes: Vec<IpNet>,
}

impl Pair {
    pub(crate) fn new(
        card: &Link,
        queues: &[u32],
        to: &Namespace,
        device: &str,
        addresses: &[IpAddr],
        routes: Vec<IpNet>,
    ) -> Self {
        Self {
            name: format!("handoff{}", card.index),
            address: written(&hardware_address(card.index)),
            device: device.to_owned(),
            namespace: to.path().clone(),
            inode: to.inode,
            mtu: card.mtu,
            queues: queues.to_vec(),
            addresses: addresses.to_vec(),
            routes,
        }
    }

    /// The far end's queues.
    pub fn far_queues(&self) -> Vec<u32> {
        (1..=self.queues.len() as u32).collect()
    }

    /// Makes the pair and leases the queues. If a step fails, the pair goes with what was done.
    pub(crate) fn make(&self, kernel: &Kernel, card: u32) -> Result<(), Refusal> {
        let to = Namespace::open(self.namespace.clone())?;
        if to.inode != self.inode {
            return Err(other("the network namespace is another one by now"));
        }
        let there = to.kernel().map_err(|error| other(&error.to_string()))?;
        kernel.make_pair(self, card, &to).map_err(doing("making it"))?;
        let (near, far) = kernel.ends(&self.name)?;
        // Before the near end is up, nothing passes: so no packet that the program would drop.
        kernel.within(|| redirect::let_out(card, near, &self.addresses))?;
        kernel.set_up(near).map_err(doing("setting the near end up"))?;
        there.set_up(far).map_err(doing("setting the far end up"))?;
        let gateway = hardware_address(card);
        let has = there.addresses().map_err(doing("listing the addresses there"))?;
        for address in &self.addresses {
            if !has.iter().any(|(_, net)| net.addr() == *address) {
                there
                    .add_address(far, *address)
                    .map_err(doing(&format!("giving it the address {address}")))?;
            }
            there.add_neighbour(far, gateway_for(address), &gateway)?;
        }
        for route in &self.routes {
            let is_like = |address: &&IpAddr| address.is_ipv4() == route.addr().is_ipv4();
            let source = self.addresses.iter().find(is_like);
            there.add_route(far, *route, source.copied()).map_err(|refusal| {
                let what = format!("adding the route to {route}");
                match refusal.is(Errno::EXIST.raw_os_error()) {
                    true => {
                        other(&format!("{what}: the namespace has one: choose others (--route)"))
                    }
                    false => doing(&what)(refusal),
                }
            })?;
        }
        let namespace = there.number_of(&kernel.namespace)?;
        for (at, queue) in self.queues.iter().enumerate() {
            let number = there
                .lease(far, card, *queue, namespace)
                .map_err(doing(&format!("leasing queue {queue}")))?;
            if number != at as u32 + 1 {
                return Err(other(&format!("queue {queue} became queue {number} there")));
            }
        }
        let leased = kernel.queues(card)?.unwrap_or_default();
        let is_leased = |queue: &&u32| {
            leased.iter().any(|one| one.id == **queue && one.bound == Some(Bound::Lease))
        };
        match self.queues.iter().find(|queue| !is_leased(queue)) {
            None => Ok(()),
            Some(queue) => {
                Err(other(&format!("the kernel leased queue {queue}, but does not say so")))
            }
        }
    }

    /// Refuses to make it if something else has its name, or its hardware address.
    pub(crate) fn check_room(&self, kernel: &Kernel) -> Result<(), Error> {
        let found =
            kernel.links()?.into_iter().find(|link| link.name == self.name || self.is(link));
        let Some(Link { name, .. }) = found else { return Ok(()) };
        let reason = format!(
            "{name} is in the way: somebody else's, or of a lease whose record was lost: ip link delete {name}"
        );
        Err(Error::DeviceExists { device: name, reason })
    }

    fn is(&self, link: &Link) -> bool {
        link.kind.as_deref() == Some("netkit") && link.address == self.address
    }

    /// The near end, if it exists and is ours.
    pub(crate) fn find(&self, kernel: &Kernel) -> Result<Option<Link>, Refusal> {
        let links = kernel.route(|route| route.links())?;
        Ok(links.into_iter().map(Link::from).find(|link| self.is(link)))
    }

    /// Deletes the pair; the queues are the card's again.
    pub(crate) fn delete(&self, kernel: &Kernel) -> Result<(), Refusal> {
        match self.find(kernel)? {
            Some(link) => kernel.delete_link(link.index),
            None => Ok(()),
        }
    }

    /// What the pair provides, in a sentence.
    pub(crate) fn gives(&self) -> String {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        format!(
            "{} in {} has {}, leased from {}, and {}",
            self.device,
            self.namespace.display(),
            list(&self.far_queues()),
            list(&self.queues),
            addresses.join(", ")
        )
    }
}

/// Locally administered, and the card's own number within.
fn hardware_address(card: u32) -> [u8; 6] {
    let [_, a, b, c] = card.to_be_bytes();
    [0x02, b'h', b'o', a, b, c]
}

fn gateway_for(address: &IpAddr) -> IpAddr {
    if address.is_ipv4() { GATEWAY_V4.into() } else { GATEWAY_V6.into() }
}

fn family(address: &IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn other(message: &str) -> Refusal {
    std::io::Error::other(message.to_owned()).into()
}

/// For `map_err`: which part of it was refused.
fn doing(what: &str) -> impl FnOnce(Refusal) -> Refusal {
    move |refusal| {
        let message = match &refusal.message {
            Some(message) => format!("{what}: {message}"),
            None => what.to_owned(),
        };
        Refusal { message: Some(message), ..refusal }
    }
}

impl Kernel {
    /// The networks and addresses of an interface, except those of its link only.
    pub(crate) fn networks(&self, index: u32) -> Result<Vec<IpNet>, Refusal> {
        Ok(self
            .addresses()?
            .into_iter()
            .filter(|(of, _)| *of == index)
            .map(|(_, net)| net)
            .collect())
    }

    /// All addresses of the namespace with the index of their interface, except those of a link only.
    pub(crate) fn addresses(&self) -> Result<Vec<(u32, IpNet)>, Refusal> {
        let ask = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let answers = self.route(|route| route.ask(ask, NLM_F_DUMP))?;
        let of = |answer| {
            let RouteNetlinkMessage::NewAddress(message) = answer else { return None };
            let header = message.header;
            let mut addresses = message.attributes.iter();
            let address = addresses.find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })?;
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let address = local.unwrap_or(address);
            let is_of_link =
                matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
            let net = IpNet::new(address, header.prefix_len).ok()?;
            (!is_of_link).then_some((header.index, net))
        };
        Ok(answers.into_iter().filter_map(of).collect())
    }

    fn change_route(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), Refusal> {
        self.route(|route| route.ask(message, NLM_F_ACK | flags)).map(drop)
    }

    pub(crate) fn index_of(&self, name: &str) -> Result<u32, Refusal> {
        let links = self.route(|route| route.links())?;
        let link = links.into_iter().map(Link::from).find(|link| link.name == name);
        link.map(|link| link.index).ok_or_else(|| other(&format!("{name} went away")))
    }

    /// The numbers of the near end with this name, and of its far end in that one's namespace; a program there
    /// may have renamed the far end by now.
    fn ends(&self, name: &str) -> Result<(u32, u32), Refusal> {
        let has_name = |it: &LinkAttribute| matches!(it, LinkAttribute::IfName(of) if of == name);
        let links = self.route(|route| route.links())?;
        let near = links.into_iter().find(|link| link.attributes.iter().any(has_name));
        let near = near.ok_or_else(|| other(&format!("{name} went away")))?;
        let far = near.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Link(index) => Some(*index),
            _ => None,
        });
        let far = far.ok_or_else(|| other(&format!("{name} has no far end")))?;
        Ok((near.header.index, far))
    }

    fn make_pair(&self, pair: &Pair, card: u32, to: &Namespace) -> Result<(), Refusal> {
        let mut far = LinkMessage::default();
        far.attributes = vec![
            LinkAttribute::IfName(pair.device.clone()),
            LinkAttribute::NetNsFd(to.file().as_fd().as_raw_fd()),
            LinkAttribute::Mtu(pair.mtu),
            // Queue 0 is its own.
            LinkAttribute::NumRxQueues(pair.queues.len() as u32 + 1),
        ];
        let mut near = LinkMessage::default();
        near.attributes = vec![
            LinkAttribute::IfName(pair.name.clone()),
            LinkAttribute::Mtu(pair.mtu),
            LinkAttribute::Address(hardware_address(card).to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Netkit),
                LinkInfo::Data(InfoData::Netkit(vec![
                    // With headers of the link, which the redirect to a neighbour needs.
                    InfoNetkit::Mode(NetkitMode::L2),
                    InfoNetkit::Policy(NetkitPolicy::Pass),
                    InfoNetkit::PeerPolicy(NetkitPolicy::Pass),
                    InfoNetkit::Peer(far),
                ])),
            ]),
        ];
        self.change_route(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn delete_link(&self, index: u32) -> Result<(), Refusal> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.change_route(RouteNetlinkMessage::DelLink(message), 0) {
            // It went with its namespace meanwhile.
            Err(refusal) if refusal.is(Errno::NODEV.raw_os_error()) => Ok(()),
            done => done,
        }
    }

    fn set_up(&self, index: u32) -> Result<(), Refusal> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change_route(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn add_address(&self, index: u32, address: IpAddr) -> Result<(), Refusal> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = if address.is_ipv4() { 32 } else { 128 };
        message.header.family = family(&address);
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        self.change_route(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn add_neighbour(&self, index: u32, address: IpAddr, at: &[u8]) -> Result<(), Refusal> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(&address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        let destination = match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(destination),
            NeighbourAttribute::LinkLayerAddress(at.to_vec()),
        ];
        // Two addresses have the same gateway.
        self.change_route(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(doing("adding the gateway"))
    }

    fn add_route(&self, index: u32, to: IpNet, source: Option<IpAddr>) -> Result<(), Refusal> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(&to.addr());
        message.header.destination_prefix_length = to.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        // The gateway is in no network of the interface.
        message.header.flags = RouteFlags::Onlink;
        message.attributes = vec![
            RouteAttribute::Destination(to.network().into()),
            RouteAttribute::Gateway(gateway_for(&to.addr()).into()),
            RouteAttribute::Oif(index),
        ];
        message.attributes.extend(source.map(|it| RouteAttribute::PrefSource(it.into())));
        self.change_route(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// The number of another namespace in this one.
    fn number_of(&self, other_one: &Namespace) -> Result<i32, Refusal> {
        let numbering = || doing("numbering the card's network namespace");
        let about = |id: Option<i32>| {
            let mut message = NsidMessage::default();
            let fd = other_one.file().as_fd().as_raw_fd() as u32;
            message.attributes = vec![NsidAttribute::Fd(fd)];
            message.attributes.extend(id.map(NsidAttribute::Id));
            message
        };
        let ask = || {
            let question = RouteNetlinkMessage::GetNsId(about(None));
            let answers = self.route(|route| route.ask(question, NLM_F_ACK)).map_err(numbering())?;
            Ok::<_, Refusal>(answers.into_iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewNsId(message) => {
                    message.attributes.into_iter().find_map(|attribute| match attribute {
                        NsidAttribute::Id(id) if id >= 0 => Some(id),
                        _ => None,
                    })
                }
                _ => None,
            }))
        };
        if let Some(id) = ask()? {
            return Ok(id);
        }
        // The kernel chooses.
        self.change_route(RouteNetlinkMessage::NewNsId(about(Some(-1))), 0).map_err(numbering())?;
        ask()?.ok_or_else(|| other("the card's network namespace gets no number"))
    }

    /// Leases a queue of a card, whose namespace has this number here; returns the number of the new queue.
    fn lease(&self, far: u32, card: u32, queue: u32, namespace: i32) -> Result<u32, Refusal> {
        const RECEIVES: u32 = 0;
        let of_card = Attributes::new()
            .with(abi::QUEUE_ID, &queue.to_ne_bytes())
            .with(abi::QUEUE_TYPE, &RECEIVES.to_ne_bytes());
        let lease = Attributes::new()
            .with(abi::LEASE_IFINDEX, &card.to_ne_bytes())
            .nest(abi::LEASE_QUEUE, &of_card)
            .with(abi::LEASE_NETNS_ID, &namespace.to_ne_bytes());
        let request = Attributes::new()
            .with(abi::QUEUE_IFINDEX, &far.to_ne_bytes())
            .with(abi::QUEUE_TYPE, &RECEIVES.to_ne_bytes())
            .nest(abi::QUEUE_LEASE, &lease);
        let answers = self.netdev_do(abi::QUEUE_CREATE, request)?;
        let number = answers.iter().find_map(|answer| answer.number(abi::QUEUE_ID));
        number.ok_or_else(|| other("the kernel gives the queue no number"))
    }
}
