//! ethtool: the old ioctl for what generic netlink lacks (rules) or got later, generic netlink for the
//! rest.
//!
//! Kernel interface: `include/uapi/linux/ethtool.h`, `include/uapi/linux/ethtool_netlink.h`.

use std::collections::BTreeSet;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

use crate::netlink::Attributes;

/// `ETHTOOL_GDRVINFO`: fills a [`DriverInfo`].
pub const GDRVINFO: u32 = 0x3;
/// `ETHTOOL_GTXCSUM`: fills a [`Value`] with whether transmit checksums are offloaded.
pub const GTXCSUM: u32 = 0x16;
/// `ETHTOOL_STXCSUM`: switches them by a [`Value`].
pub const STXCSUM: u32 = 0x17;
/// `ETHTOOL_GSG`: fills a [`Value`] with whether scatter-gather is on.
pub const GSG: u32 = 0x18;
/// `ETHTOOL_SSG`: switches it by a [`Value`].
pub const SSG: u32 = 0x19;
/// `ETHTOOL_GRXCLSRLCNT`: fills a [`Classification`] with the number of rules, and in `data` whether
/// the driver chooses locations ([`LOCATION_SPECIAL`]).
pub const GRXCLSRLCNT: u32 = 0x2e;
/// `ETHTOOL_GRXCLSRULE`: fills a [`Classification`] with the rule at a location.
pub const GRXCLSRULE: u32 = 0x2f;
/// `ETHTOOL_GRXCLSRLALL`: fills a [`RuleList`] with the locations of all rules, and in `data` the
/// size of the table.
pub const GRXCLSRLALL: u32 = 0x30;
/// `ETHTOOL_SRXCLSRLDEL`: removes the rule at a location.
pub const SRXCLSRLDEL: u32 = 0x31;
/// `ETHTOOL_SRXCLSRLINS`: adds a rule.
pub const SRXCLSRLINS: u32 = 0x32;

/// `RX_CLS_LOC_SPECIAL`: in an answer, that the driver knows [`LOCATION_ANY`].
pub const LOCATION_SPECIAL: u64 = 0x8000_0000;
/// `RX_CLS_LOC_ANY`: the driver chooses the location.
pub const LOCATION_ANY: u32 = 0xffff_ffff;
/// `TCP_V4_FLOW`.
pub const TCP_V4_FLOW: u32 = 0x01;
/// `TCP_V6_FLOW`.
pub const TCP_V6_FLOW: u32 = 0x05;
/// `FLOW_RSS`: the rule sends to an RSS context; the rule's queue number is added to the context's.
pub const FLOW_RSS: u32 = 0x2000_0000;
/// `RX_CLS_FLOW_WAKE`; this and the one above it (`RX_CLS_FLOW_DISC`) name no queue.
pub const FLOW_WAKE: u64 = u64::MAX - 1;

/// `struct ethtool_value`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Value {
    /// The command.
    pub cmd: u32,
    /// Its answer.
    pub data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DriverInfo {
    /// The command.
    pub cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

impl DriverInfo {
    /// An empty answer to be filled.
    pub const fn new() -> Self {
        Self { cmd: GDRVINFO, driver: [0; 32], rest: [0; 160] }
    }

    /// Name of the driver.
    pub fn driver(&self) -> String {
        let name = self.driver.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

impl Default for DriverInfo {
    fn default() -> Self {
        Self::new()
    }
}

/// The fields of `union ethtool_flow_union` and `struct ethtool_flow_ext`, as bytes: their meaning
/// depends on the type of flow. Numbers are in network order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFields {
    /// The union.
    pub fields: [u8; 52],
    /// Further fields to match.
    pub more: [u8; 20],
}

impl FlowFields {
    /// None.
    pub const NONE: Self = Self { fields: [0; 52], more: [0; 20] };
}

/// `struct ethtool_rx_flow_spec`: a rule.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FlowRule {
    /// Type of flow, and flags.
    pub flow_type: u32,
    /// The values to match.
    pub value: FlowFields,
    /// The bits that must match.
    pub mask: FlowFields,
    /// The queue, in the lower half.
    pub cookie: u64,
    /// Its place in the table; if several rules match, the first decides.
    pub location: u32,
}

/// `struct ethtool_rxnfc`, without locations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Classification {
    /// The command.
    pub cmd: u32,
    /// Type of flow, for commands about hashing.
    pub flow_type: u32,
    /// Depends on the command.
    pub data: u64,
    /// A rule.
    pub rule: FlowRule,
    /// Number of rules, or the RSS context of the rule.
    pub count: u32,
}

impl Classification {
    /// A command with nothing filled in.
    pub const fn new(cmd: u32) -> Self {
        let rule = FlowRule {
            flow_type: 0,
            value: FlowFields::NONE,
            mask: FlowFields::NONE,
            cookie: 0,
            location: 0,
        };
        Self { cmd, flow_type: 0, data: 0, rule, count: 0 }
    }
}

/// How many locations a [`RuleList`] has room for; if there are more rules, drivers answer EMSGSIZE.
pub const RULE_LIST: usize = 16384;

/// `struct ethtool_rxnfc`, with room for locations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RuleList {
    head: [u8; offset_of!(Classification, count)],
    /// In: how many locations fit; out: how many there are.
    pub count: u32,
    /// The locations.
    pub locations: [u32; RULE_LIST],
}

impl RuleList {
    /// A list to be filled.
    pub fn new() -> Box<Self> {
        let mut list = Box::new(Self {
            head: [0; offset_of!(Classification, count)],
            count: RULE_LIST as u32,
            locations: [0; RULE_LIST],
        });
        list.head[..4].copy_from_slice(&GRXCLSRLALL.to_ne_bytes());
        list
    }

    /// `data` of the answer: the size of the table.
    pub fn table(&self) -> u64 {
        let data =
            self.head[offset_of!(Classification, data)..].first_chunk().expect("eight bytes");
        u64::from_ne_bytes(*data)
    }
}

const _: () = assert!(size_of::<Value>() == 8);
const _: () = assert!(size_of::<DriverInfo>() == 196);
const _: () = assert!(size_of::<FlowRule>() == 168);
const _: () = assert!(offset_of!(FlowRule, cookie) == 152);
const _: () = assert!(size_of::<Classification>() == 192);
const _: () = assert!(offset_of!(Classification, count) == 184);
const _: () = assert!(offset_of!(RuleList, locations) == 188);

/// Runs an ioctl command on the interface with this name in the socket's namespace.
///
/// # Errors
///
/// The kernel's refusals; EINVAL for a name that is too long.
///
/// # Safety
///
/// `argument` must be laid out as the command in its first word reads and writes it.
pub unsafe fn ioctl<T>(socket: impl AsFd, name: &str, argument: &mut T) -> io::Result<()> {
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
    // SAFETY: the request is an ifreq whose data points to a live structure, which the caller
    // vouches to be the one that the command works on.
    let status = unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `ETHTOOL_GENL_NAME`.
pub const GENL_NAME: &str = "ethtool";
/// `ETHTOOL_A_HEADER_DEV_INDEX`, in the first attribute of each message.
pub const A_HEADER_DEV_INDEX: u16 = 1;
/// `ETHTOOL_A_HEADER_DEV_NAME`, a string ended by a zero, in its stead.
pub const A_HEADER_DEV_NAME: u16 = 2;
/// `ETHTOOL_A_*_HEADER`, nested: the first attribute of each message says which device.
pub const A_HEADER: u16 = 1;

/// `ETHTOOL_MSG_FEATURES_GET`.
pub const MSG_FEATURES_GET: u8 = 11;
/// `ETHTOOL_MSG_FEATURES_SET`.
pub const MSG_FEATURES_SET: u8 = 12;
/// `ETHTOOL_A_FEATURES_HW`, a set of bits of all features: what can be switched.
pub const A_FEATURES_HW: u16 = 2;
/// `ETHTOOL_A_FEATURES_WANTED`, a set of bits.
pub const A_FEATURES_WANTED: u16 = 3;
/// `ETHTOOL_A_FEATURES_ACTIVE`, a set of bits: what is on.
pub const A_FEATURES_ACTIVE: u16 = 4;
/// `ETHTOOL_A_BITSET_NOMASK`, there if all bits that are listed are set.
pub const A_BITSET_NOMASK: u16 = 1;
/// `ETHTOOL_A_BITSET_BITS`, nested in a set of bits.
pub const A_BITSET_BITS: u16 = 3;
/// `ETHTOOL_A_BITSET_BITS_BIT`, nested in these.
pub const A_BITSET_BITS_BIT: u16 = 1;
/// `ETHTOOL_A_BITSET_BIT_NAME`, a string.
pub const A_BITSET_BIT_NAME: u16 = 2;
/// `ETHTOOL_A_BITSET_BIT_VALUE`, there if the bit is set.
pub const A_BITSET_BIT_VALUE: u16 = 3;

/// The features of an interface, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that are on.
    pub active: BTreeSet<String>,
    /// Those that were requested, granted or not.
    pub wanted: BTreeSet<String>,
    /// Those that can be switched.
    pub switchable: BTreeSet<String>,
}

impl Features {
    /// The features in an answer to [`MSG_FEATURES_GET`].
    pub fn of(answer: &Attributes) -> Self {
        Self {
            active: names(&answer.inner(A_FEATURES_ACTIVE)),
            wanted: names(&answer.inner(A_FEATURES_WANTED)),
            switchable: names(&answer.inner(A_FEATURES_HW)),
        }
    }
}

/// Names of the bits that are set.
fn names(bits: &Attributes) -> BTreeSet<String> {
    let all = bits.get(A_BITSET_NOMASK).is_some();
    let bits = bits.inner(A_BITSET_BITS);
    bits.all(A_BITSET_BITS_BIT)
        .filter_map(|bit| Attributes::parse(bit).ok())
        .filter(|bit| all || bit.get(A_BITSET_BIT_VALUE).is_some())
        .filter_map(|bit| bit.string(A_BITSET_BIT_NAME))
        .collect()
}

/// `ETHTOOL_MSG_RINGS_GET`.
pub const MSG_RINGS_GET: u8 = 15;
/// `ETHTOOL_MSG_RINGS_SET`.
pub const MSG_RINGS_SET: u8 = 16;
/// `ETHTOOL_A_RINGS_RX_MAX`.
pub const A_RINGS_RX_MAX: u16 = 2;
/// `ETHTOOL_A_RINGS_RX`.
pub const A_RINGS_RX: u16 = 6;
/// `ETHTOOL_A_RINGS_RX_BUF_LEN`.
pub const A_RINGS_RX_BUF_LEN: u16 = 10;
/// `ETHTOOL_A_RINGS_TCP_DATA_SPLIT`, a u8: 0 unknown, 1 disabled, 2 enabled.
pub const A_RINGS_TCP_DATA_SPLIT: u16 = 11;
/// `ETHTOOL_A_RINGS_HDS_THRESH`.
pub const A_RINGS_HDS_THRESH: u16 = 17;

/// `ETHTOOL_MSG_CHANNELS_GET`.
pub const MSG_CHANNELS_GET: u8 = 17;
/// `ETHTOOL_MSG_CHANNELS_SET`.
pub const MSG_CHANNELS_SET: u8 = 18;
/// `ETHTOOL_A_CHANNELS_RX_MAX`.
pub const A_CHANNELS_RX_MAX: u16 = 2;
/// `ETHTOOL_A_CHANNELS_COMBINED_MAX`.
pub const A_CHANNELS_COMBINED_MAX: u16 = 5;
/// `ETHTOOL_A_CHANNELS_RX_COUNT`.
pub const A_CHANNELS_RX_COUNT: u16 = 6;
/// `ETHTOOL_A_CHANNELS_COMBINED_COUNT`.
pub const A_CHANNELS_COMBINED_COUNT: u16 = 9;

/// `ETHTOOL_MSG_RSS_GET`.
pub const MSG_RSS_GET: u8 = 38;
/// `ETHTOOL_MSG_RSS_SET`.
pub const MSG_RSS_SET: u8 = 48;
/// `ETHTOOL_MSG_RSS_CREATE_ACT` (Linux 6.17).
pub const MSG_RSS_CREATE: u8 = 49;
/// `ETHTOOL_MSG_RSS_DELETE_ACT` (Linux 6.17).
pub const MSG_RSS_DELETE: u8 = 50;
/// `ETHTOOL_A_RSS_CONTEXT`; the default one has none.
pub const A_RSS_CONTEXT: u16 = 2;
/// `ETHTOOL_A_RSS_INDIR`, an array of u32: queues. An empty one sets the driver's own.
pub const A_RSS_INDIR: u16 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_set_where_nothing_else_is_and_needs_its_flag_elsewhere() {
        let bit = |name: &str| Attributes::new().text(A_BITSET_BIT_NAME, name);
        let (on, off) = (bit("on").with(A_BITSET_BIT_VALUE, &[]), bit("off"));
        let bits = Attributes::new().nest(A_BITSET_BITS_BIT, &on).nest(A_BITSET_BITS_BIT, &off);
        let (some, all) = (Attributes::new(), Attributes::new().with(A_BITSET_NOMASK, &[]));
        let (some, all) = (some.nest(A_BITSET_BITS, &bits), all.nest(A_BITSET_BITS, &bits));
        let answer = Attributes::new().nest(A_FEATURES_HW, &some).nest(A_FEATURES_WANTED, &all);
        let features = Features::of(&answer);
        assert_eq!(features.switchable, ["on".to_owned()].into());
        assert_eq!(features.wanted, ["on".to_owned(), "off".to_owned()].into());
        assert_eq!(features.active, BTreeSet::new());
    }
}
