//! ethtool: the old ioctl where it needs no strings, generic netlink for the rings.
//!
//! Kernel interface: `include/uapi/linux/ethtool.h`, `include/uapi/linux/ethtool_netlink.h`,
//! `include/uapi/linux/genetlink.h`.

/// `SIOCETHTOOL`.
pub const SIOCETHTOOL: u64 = 0x8946;
/// `ETHTOOL_GDRVINFO`: fills a [`DriverInfo`].
pub const GDRVINFO: u32 = 0x3;
/// `ETHTOOL_GTXCSUM`: fills a [`Value`] with whether transmit checksums are offloaded.
pub const GTXCSUM: u32 = 0x16;
/// `ETHTOOL_GSG`: fills a [`Value`] with whether scatter-gather is on.
pub const GSG: u32 = 0x18;

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
    /// Name of the driver, ended by a zero.
    pub driver: [u8; 32],
    rest: [u8; 160],
}

impl DriverInfo {
    /// An empty answer to be filled.
    pub const fn new() -> Self {
        Self { cmd: GDRVINFO, driver: [0; 32], rest: [0; 160] }
    }
}

impl Default for DriverInfo {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(size_of::<Value>() == 8);
const _: () = assert!(size_of::<DriverInfo>() == 196);

/// `GENL_ID_CTRL`: message type of the controller that knows the families' ids.
pub const GENL_ID_CTRL: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
pub const CTRL_CMD_GETFAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, a u16.
pub const CTRL_ATTR_FAMILY_ID: u16 = 1;
/// `CTRL_ATTR_FAMILY_NAME`, a string ended by a zero.
pub const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// `ETHTOOL_GENL_NAME`.
pub const GENL_NAME: &str = "ethtool";
/// `ETHTOOL_MSG_RINGS_GET`.
pub const MSG_RINGS_GET: u8 = 15;
/// `ETHTOOL_A_RINGS_HEADER`, nested; says which device.
pub const A_RINGS_HEADER: u16 = 1;
/// `ETHTOOL_A_RINGS_TCP_DATA_SPLIT`, a u8: 0 unknown, 1 disabled, 2 enabled.
pub const A_RINGS_TCP_DATA_SPLIT: u16 = 11;
/// `ETHTOOL_A_HEADER_DEV_NAME`, a string ended by a zero.
pub const A_HEADER_DEV_NAME: u16 = 2;
