//! `MSG_ZEROCOPY` completions on a socket's error queue.
//!
//! Kernel interface: `struct sock_extended_err` in `include/uapi/linux/errqueue.h` and
//! `Documentation/networking/msg_zerocopy.rst` (Linux 4.14 for TCP, 5.0 for UDP).

/// `SO_EE_ORIGIN_ZEROCOPY`: the entry tells a range of finished zero-copy sends.
pub const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`: the kernel copied the payload of this range after all.
pub const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

const _: () = assert!(size_of::<libc::sock_extended_err>() == 16);

/// A range of finished sends, both ends included; ids are counted per socket from 0 and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// First finished id.
    pub first: u32,
    /// Last finished id.
    pub last: u32,
    /// Whether the kernel copied the payload of the range.
    pub copied: bool,
}

impl Completion {
    /// Reads the range out of an extended error, if it is one about zero copy.
    pub fn from_extended_error(error: &libc::sock_extended_err) -> Option<Self> {
        (error.ee_errno == 0 && error.ee_origin == SO_EE_ORIGIN_ZEROCOPY).then_some(Self {
            first: error.ee_info,
            last: error.ee_data,
            copied: error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED != 0,
        })
    }
}
