//! Netlink: a request of any protocol and its answers, and generic messages with their attributes.
//!
//! Kernel interface: `include/uapi/linux/netlink.h`, `include/uapi/linux/genetlink.h`. Minimum kernel:
//! 4.12 for the text that explains a refusal.

use std::{fmt, io};

use netlink_packet_core::{
    DefaultNla, Emitable, ErrorMessage, NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_DUMP,
    NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// `GENL_ID_CTRL`: message type of the controller that knows the families' ids.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// The answer has only the header of the request.
const NLM_F_CAPPED: u16 = 0x100;
/// Attributes with more about the answer follow.
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const MESSAGE_HEADER: usize = 16;

/// The kernel's answer to a request that it refused.
#[derive(Debug)]
pub struct Refusal {
    /// The error code.
    pub error: io::Error,
    /// The kernel's or the driver's explanation, if any.
    pub message: Option<String>,
}

impl Refusal {
    /// Whether the error is this one.
    pub fn is(&self, code: i32) -> bool {
        self.error.raw_os_error() == Some(code)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => write!(f, "{message} ({})", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self { error, message: None }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

/// A socket to one protocol of the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// A socket to the network configuration.
    ///
    /// # Errors
    ///
    /// Those of opening and binding it.
    pub fn route() -> io::Result<Self> {
        Self::open(NETLINK_ROUTE)
    }

    /// A socket to the families of generic netlink.
    ///
    /// # Errors
    ///
    /// As [`route`](Self::route).
    pub fn generic() -> io::Result<Self> {
        Self::open(NETLINK_GENERIC)
    }

    fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Kernels that lack either option say less about a refusal.
        let _ = socket.set_ext_ack(true).and_then(|()| socket.set_cap_ack(true));
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and collects its answers, up to the acknowledgement or the end of the dump;
    /// `flags` must ask for one of the two.
    ///
    /// # Errors
    ///
    /// The kernel's refusals, and answers that cannot be read.
    pub fn ask<M>(&mut self, message: M, flags: u16) -> Result<Vec<M>, Refusal>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let ends = flags & NLM_F_ACK != 0 || flags & NLM_F_DUMP == NLM_F_DUMP;
        debug_assert!(ends, "this would wait for ever: {flags:#x}");
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<M>::deserialize(rest).map_err(io::Error::other)?;
                let advance = (answer.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(advance..).unwrap_or_default();
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(io::Error::from_raw_os_error(-done.code).into());
                    }
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(refusal(answer.header.flags, &error));
                    }
                    // An error of 0 is the acknowledgement.
                    NetlinkPayload::Error(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    _ => {}
                }
            }
        }
    }

    /// The id of a family of generic netlink.
    ///
    /// # Errors
    ///
    /// ENOENT for a family that the kernel lacks.
    pub fn family(&mut self, name: &str) -> Result<u16, Refusal> {
        let ask = Generic::new(
            GENL_ID_CTRL,
            CTRL_CMD_GETFAMILY,
            Attributes::new().text(CTRL_ATTR_FAMILY_NAME, name),
        );
        let answers = self.ask(ask, NLM_F_ACK)?;
        let id = answers.iter().find_map(|answer| answer.attributes.number(CTRL_ATTR_FAMILY_ID));
        id.and_then(|id| id.try_into().ok())
            .ok_or_else(|| io::Error::other(format!("the kernel gives {name} no id")).into())
    }

    /// The links of the namespace; the socket must be one of [`route`](Self::route).
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub fn links(&mut self) -> Result<Vec<LinkMessage>, Refusal> {
        let answers = self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        let links = answers.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        Ok(links.collect())
    }
}

fn refusal(flags: u16, error: &ErrorMessage) -> Refusal {
    let request = match error.header.first_chunk() {
        _ if flags & NLM_F_CAPPED != 0 => MESSAGE_HEADER,
        Some(length) => (u32::from_ne_bytes(*length) as usize).next_multiple_of(4),
        None => 0,
    };
    let more = error.header.get(request..).filter(|_| flags & NLM_F_ACK_TLVS != 0);
    let message = more
        .and_then(|more| Attributes::parse(more).ok())
        .and_then(|more| more.string(NLMSGERR_ATTR_MSG));
    Refusal { error: error.to_io(), message }
}

/// Attributes of a message, in the order in which they were added or arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    encoded: Vec<u8>,
}

impl Attributes {
    /// No attributes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The attributes of an answer.
    ///
    /// # Errors
    ///
    /// If an attribute is cut off.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        for attribute in NlasIterator::new(bytes) {
            attribute.map_err(io::Error::other)?;
        }
        Ok(Self { encoded: bytes.to_vec() })
    }

    /// Adds one with these bytes.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let at = self.encoded.len();
        self.encoded.resize(at + attribute.buffer_len(), 0);
        attribute.emit(&mut self.encoded[at..]);
        self
    }

    /// Adds a string, ended by a zero.
    #[must_use]
    pub fn text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds one that contains others.
    #[must_use]
    pub fn nest(self, kind: u16, inner: &Self) -> Self {
        self.with(kind | NLA_F_NESTED, &inner.encoded)
    }

    /// The bytes of each attribute of this kind.
    pub fn all(&self, kind: u16) -> impl Iterator<Item = &[u8]> {
        NlasIterator::new(&self.encoded[..])
            .filter_map(Result::ok)
            .filter(move |attribute| attribute.kind() == kind)
            .map(|attribute| {
                let length = attribute.value_length();
                &attribute.into_inner()[NLA_HEADER_SIZE..][..length]
            })
    }

    /// The bytes of the first attribute of this kind.
    pub fn get(&self, kind: u16) -> Option<&[u8]> {
        self.all(kind).next()
    }

    /// A number of one, two or four bytes.
    pub fn number(&self, kind: u16) -> Option<u32> {
        let value = self.get(kind)?;
        match *value {
            [byte] => Some(byte.into()),
            [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
            _ => value.try_into().ok().map(u32::from_ne_bytes),
        }
    }

    /// A string, without the zero that ends it.
    pub fn string(&self, kind: u16) -> Option<String> {
        let value = self.get(kind)?;
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    }

    /// The attributes within the first one of this kind; empty if there is none.
    pub fn inner(&self, kind: u16) -> Self {
        self.get(kind).and_then(|bytes| Self::parse(bytes).ok()).unwrap_or_default()
    }
}

/// A generic netlink message whose attributes are not interpreted.
#[derive(Debug)]
pub struct Generic {
    family: u16,
    command: u8,
    /// What it says.
    pub attributes: Attributes,
}

const GENERIC_HEADER: usize = 4;

impl Generic {
    /// A command to a family.
    pub fn new(family: u16, command: u8, attributes: Attributes) -> Self {
        Self { family, command, attributes }
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        GENERIC_HEADER + self.attributes.encoded.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (head, rest) = buffer.split_at_mut(GENERIC_HEADER);
        // Command, version 1 of the family, two reserved bytes.
        head.copy_from_slice(&[self.command, 1, 0, 0]);
        rest[..self.attributes.encoded.len()].copy_from_slice(&self.attributes.encoded);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = io::Error;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> io::Result<Self> {
        let (head, rest) = payload
            .split_at_checked(GENERIC_HEADER)
            .ok_or_else(|| io::Error::other("a generic netlink message is cut off"))?;
        let attributes = Attributes::parse(rest)?;
        Ok(Self { family: header.message_type, command: head[0], attributes })
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkAttribute;

    use super::*;

    #[test]
    fn a_generic_message_comes_back_as_it_went() {
        let inner = Attributes::new().text(1, "eth0");
        let sent = Generic::new(0x15, 7, Attributes::new().with(11, &[2]).nest(3, &inner));
        let mut bytes = vec![0; sent.buffer_len()];
        sent.serialize(&mut bytes);
        let mut header = NetlinkHeader::default();
        header.message_type = 0x15;
        let got = Generic::deserialize(&header, &bytes).expect("well formed");
        assert_eq!((got.family, got.command), (0x15, 7));
        assert_eq!(got.attributes.number(11), Some(2));
        assert_eq!(got.attributes.inner(3).string(1).as_deref(), Some("eth0"));
        assert!(Generic::deserialize(&header, &bytes[..3]).is_err());
        assert!(Generic::deserialize(&header, &bytes[..bytes.len() - 5]).is_err());
    }

    #[test]
    fn numbers_have_the_width_that_they_arrive_with() {
        let attributes = Attributes::new().with(1, &[5]).with(2, &7_u16.to_ne_bytes());
        let attributes = attributes.with(3, &9_u32.to_ne_bytes()).with(4, &[1, 2, 3]);
        let numbers = [1, 2, 3, 4, 5].map(|kind| attributes.number(kind));
        assert_eq!(numbers, [Some(5), Some(7), Some(9), None, None]);
    }

    #[test]
    fn a_refusal_repeats_what_the_kernel_says() {
        let mut error = ErrorMessage::default();
        error.code = std::num::NonZeroI32::new(-libc::EBUSY);
        let words = Attributes::new().text(NLMSGERR_ATTR_MSG, "in use").encoded;
        error.header = [vec![0; MESSAGE_HEADER], words].concat();
        let refused = refusal(NLM_F_CAPPED | NLM_F_ACK_TLVS, &error);
        assert!(refused.is(libc::EBUSY));
        assert!(refused.to_string().starts_with("in use ("), "{refused}");
        assert_eq!(refusal(NLM_F_CAPPED, &error).message, None);
    }

    #[test]
    fn loopback_is_among_the_links() {
        let links = Netlink::route().expect("opens").links().expect("everybody may list links");
        let mut attributes = links.into_iter().flat_map(|link| link.attributes);
        assert!(attributes.any(|attribute| attribute == LinkAttribute::IfName("lo".into())));
    }

    #[test]
    fn a_family_that_is_not_there_is_said_so() {
        let mut generic = Netlink::generic().expect("opens");
        assert_eq!(generic.family("nlctrl").expect("always there"), GENL_ID_CTRL);
        assert!(generic.family("no-such-one").expect_err("unknown").is(libc::ENOENT));
    }
}
