//! Makes links over rtnetlink, and reads rings and features over ethtool.

use std::io;

use handoff_sys::ethtool::{self as abi, Features};
use handoff_sys::netlink::{Attributes, Generic, Netlink};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

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
