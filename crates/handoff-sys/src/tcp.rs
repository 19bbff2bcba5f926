//! Socket options of TCP that the `libc` crate lacks.
//!
//! Kernel interface: `include/uapi/linux/tcp.h`.

/// `TCP_ZEROCOPY_RECEIVE` (Linux 4.18): maps received pages into a mapping of the socket.
pub const ZEROCOPY_RECEIVE: i32 = 35;

/// `struct tcp_zerocopy_receive`; older kernels know only a first part of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ZerocopyReceive {
    /// Start of the mapping of the socket.
    pub address: u64,
    /// In: bytes to map; out: bytes mapped.
    pub length: u32,
    /// Out: bytes that have to be read the usual way.
    pub recv_skip_hint: u32,
    /// Out: bytes in the receive queue.
    pub inq: u32,
    /// Out: error of the socket.
    pub err: i32,
    /// Where bytes that cannot be mapped are copied.
    pub copybuf_address: u64,
    /// In: size of that buffer; out: bytes copied.
    pub copybuf_len: i32,
    /// `TCP_RECEIVE_ZEROCOPY_FLAG_*`.
    pub flags: u32,
    /// Control data, as in `struct msghdr`.
    pub msg_control: u64,
    /// Its length.
    pub msg_controllen: u64,
    /// Flags of the message.
    pub msg_flags: u32,
    /// Must be zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<ZerocopyReceive>() == 64);
const _: () = assert!(std::mem::offset_of!(ZerocopyReceive, copybuf_address) == 24);
