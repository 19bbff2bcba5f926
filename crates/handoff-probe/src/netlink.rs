//! Makes links over rtnetlink, reads rings and features over ethtool, and queues over netdev.

use std::io;

use handoff_sys::ethtool::{self as abi, Features};
use handoff_sys::netdev;
use handoff_sys::netlink::{Attributes, Generic, Netlink};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

/// Type of an rx queue.
const RECEIVES: u32 = 0;

/// The links of this network namespace.
pub(super) fn links() -> io::Result<Vec<LinkMessage>> {
    Ok(Netlink::route()?.links()?)
}

/// Makes a link in this network namespace.
pub(super) fn make_link(name: &str, kind: InfoKind) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
    let request = RouteNetlinkMessage::NewLink(link);
    Netlink::route()?.ask(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?;
    Ok(())
}

/// The number of a device in this network namespace.
fn index_of(device: &str) -> io::Result<u32> {
    let is_it = |link: &LinkMessage| {
        link.attributes.iter().any(|it| matches!(it, LinkAttribute::IfName(name) if name == device))
    };
    let link = links()?.into_iter().find(is_it).ok_or(io::ErrorKind::NotFound)?;
    Ok(link.header.index)
}

/// The rx queues of a device; `None` if the kernel does not list them.
pub(super) fn rx_queues(device: &str) -> io::Result<Option<usize>> {
    let about = Attributes::new().with(netdev::QUEUE_IFINDEX, &index_of(device)?.to_ne_bytes());
    let mut kernel = Netlink::generic()?;
    let Ok(family) = kernel.family(netdev::FAMILY) else { return Ok(None) };
    let queues = kernel.ask(Generic::new(family, netdev::QUEUE_GET, about), NLM_F_DUMP)?;
    let receives = |queue: &&Generic| queue.attributes.number(netdev::QUEUE_TYPE) == Some(RECEIVES);
    Ok(Some(queues.iter().filter(receives).count()))
}

/// Asks for one more queue of a device, leased from a card that does not exist; returns the kernel's
/// answer.
pub(super) fn lease_from_nobody(device: &str) -> io::Result<()> {
    const NOBODY: u32 = i32::MAX as u32;
    let queue = Attributes::new()
        .with(netdev::QUEUE_ID, &0_u32.to_ne_bytes())
        .with(netdev::QUEUE_TYPE, &RECEIVES.to_ne_bytes());
    let lease = Attributes::new()
        .with(netdev::LEASE_IFINDEX, &NOBODY.to_ne_bytes())
        .nest(netdev::LEASE_QUEUE, &queue);
    let request = Attributes::new()
        .with(netdev::QUEUE_IFINDEX, &index_of(device)?.to_ne_bytes())
        .with(netdev::QUEUE_TYPE, &RECEIVES.to_ne_bytes())
        .nest(netdev::QUEUE_LEASE, &lease);
    let mut kernel = Netlink::generic()?;
    let family = kernel.family(netdev::FAMILY)?;
    kernel.ask(Generic::new(family, netdev::QUEUE_CREATE, request), NLM_F_ACK)?;
    Ok(())
}

/// How a device splits headers from payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataSplit {
    /// The driver has no such setting.
    None,
    Off,
    On,
}

/// The header/data split of a device.
pub(super) fn data_split(device: &str) -> io::Result<DataSplit> {
    let rings = ethtool(device, abi::MSG_RINGS_GET)?;
    Ok(match rings.and_then(|rings| rings.number(abi::A_RINGS_TCP_DATA_SPLIT)) {
        Some(1) => DataSplit::Off,
        Some(2) => DataSplit::On,
        _ => DataSplit::None,
    })
}

/// The features of a device.
pub(super) fn features(device: &str) -> io::Result<Features> {
    let features = ethtool(device, abi::MSG_FEATURES_GET)?;
    features.as_ref().map(Features::of).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// ethtool's answer to `command` about a device; `None` where the driver has no answer.
fn ethtool(device: &str, command: u8) -> io::Result<Option<Attributes>> {
    let mut kernel = Netlink::generic()?;
    let family = kernel.family(abi::GENL_NAME)?;
    let header = Attributes::new().text(abi::A_HEADER_DEV_NAME, device);
    let request = Generic::new(family, command, Attributes::new().nest(abi::A_HEADER, &header));
    match kernel.ask(request, NLM_F_ACK) {
        Err(refusal) if refusal.is(libc::EOPNOTSUPP) => Ok(None),
        answers => Ok(answers?.into_iter().next().map(|answer| answer.attributes)),
    }
}
