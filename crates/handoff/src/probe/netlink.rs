//! One netlink request and its answers; links through rtnetlink, rings through ethtool.

use std::io;

use handoff_sys::ethtool as abi;
use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL,
    NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// The links of this network namespace.
pub(super) fn links() -> io::Result<Vec<LinkMessage>> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let answers = exchange(NETLINK_ROUTE, request, NLM_F_DUMP)?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        })
        .collect())
}

/// Makes a link in this network namespace.
pub(super) fn make_link(name: &str, kind: InfoKind) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
    let request = RouteNetlinkMessage::NewLink(link);
    exchange(NETLINK_ROUTE, request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL).map(drop)
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
    let ask_family = Generic::new(
        abi::GENL_ID_CTRL,
        abi::CTRL_CMD_GETFAMILY,
        DefaultNla::new(abi::CTRL_ATTR_FAMILY_NAME, text(abi::GENL_NAME)),
    );
    let family = exchange(NETLINK_GENERIC, ask_family, NLM_F_ACK)?
        .iter()
        .find_map(|answer| answer.value(abi::CTRL_ATTR_FAMILY_ID))
        .and_then(|id| id.try_into().ok())
        .map(u16::from_ne_bytes)
        .ok_or_else(|| io::Error::other("the kernel names no ethtool family"))?;
    let name = DefaultNla::new(abi::A_HEADER_DEV_NAME, text(device));
    let mut header = vec![0; name.buffer_len()];
    name.emit(&mut header);
    let ask_rings = Generic::new(
        family,
        abi::MSG_RINGS_GET,
        DefaultNla::new(abi::A_RINGS_HEADER | NLA_F_NESTED, header),
    );
    let answers = match exchange(NETLINK_GENERIC, ask_rings, NLM_F_ACK) {
        // The driver has no rings to tell of at all.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            return Ok(DataSplit::None);
        }
        answers => answers?,
    };
    let split = answers.iter().find_map(|answer| answer.value(abi::A_RINGS_TCP_DATA_SPLIT));
    Ok(match split.as_deref() {
        Some([1]) => DataSplit::Off,
        Some([2]) => DataSplit::On,
        _ => DataSplit::None,
    })
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// Sends one request and collects its answers, up to the acknowledgement or the end of the dump.
fn exchange<M>(protocol: isize, message: M, flags: u16) -> io::Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable,
{
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let answer = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
            let advance = (answer.header.length as usize).next_multiple_of(4).max(4);
            match answer.payload {
                NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                // An error of 0 is the acknowledgement.
                NetlinkPayload::Error(_) => return Ok(answers),
                NetlinkPayload::InnerMessage(message) => answers.push(message),
                _ => {}
            }
            rest = rest.get(advance..).unwrap_or_default();
        }
    }
}

/// A generic netlink message whose attributes are not interpreted.
#[derive(Debug)]
struct Generic {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

const GENERIC_HEADER: usize = 4;

impl Generic {
    fn new(family: u16, command: u8, attribute: DefaultNla) -> Self {
        Self { family, command, attributes: vec![attribute] }
    }

    fn value(&self, kind: u16) -> Option<Vec<u8>> {
        use netlink_packet_core::Nla;
        let found = self.attributes.iter().find(|attribute| attribute.kind() == kind)?;
        let mut value = vec![0; found.value_len()];
        found.emit_value(&mut value);
        Some(value)
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        GENERIC_HEADER + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        // Command, version 1 of the family, two reserved bytes.
        buffer[..GENERIC_HEADER].copy_from_slice(&[self.command, 1, 0, 0]);
        self.attributes.as_slice().emit(&mut buffer[GENERIC_HEADER..]);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = io::Error;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> io::Result<Self> {
        let (head, rest) = payload
            .split_at_checked(GENERIC_HEADER)
            .ok_or_else(|| io::Error::other("a generic netlink message is cut off"))?;
        let attributes = NlasIterator::new(rest)
            .map(|attribute| {
                let attribute = attribute.map_err(io::Error::other)?;
                Ok(DefaultNla::new(attribute.kind(), attribute.value().to_vec()))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { family: header.message_type, command: head[0], attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generic_message_comes_back_as_it_went() {
        let sent = Generic::new(0x15, 7, DefaultNla::new(11, vec![2]));
        let mut bytes = vec![0; sent.buffer_len()];
        sent.serialize(&mut bytes);
        let mut header = NetlinkHeader::default();
        header.message_type = 0x15;
        let got = Generic::deserialize(&header, &bytes).expect("well formed");
        assert_eq!((got.family, got.command, got.value(11)), (0x15, 7, Some(vec![2])));
        assert!(Generic::deserialize(&header, &bytes[..3]).is_err());
    }

    #[test]
    fn loopback_is_among_the_links() {
        let names: Vec<_> = links()
            .expect("everybody may list links")
            .into_iter()
            .flat_map(|link| link.attributes)
            .filter_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            })
            .collect();
        assert!(names.contains(&"lo".to_owned()), "{names:?}");
    }
}
