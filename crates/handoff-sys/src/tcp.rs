//! Socket options of TCP that the `libc` crate lacks.
//!
//! Kernel interface: `include/uapi/linux/tcp.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sockopt;

/// `TCP_ZEROCOPY_RECEIVE` (Linux 4.18): maps received pages into a mapping of the socket.
pub const ZEROCOPY_RECEIVE: i32 = 35;

/// `struct tcp_zerocopy_receive`; older kernels know only its first part.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ZerocopyReceive {
    /// Start of the mapping of the socket.
    pub address: u64,
    /// In: bytes to map; out: bytes mapped.
    pub length: u32,
    /// Out: bytes to read the usual way.
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

/// What [`bytes_acked`] needs of `struct tcp_info` (Linux 4.1).
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    /// State, options, times, windows, counters and rates, which we do not need.
    others: [u64; 15],
    bytes_acked: u64,
}

const _: () = assert!(std::mem::offset_of!(Info, bytes_acked) == 120);

/// The number of bytes that the peer's TCP has acknowledged, from `TCP_INFO`; works after the
/// connection's end too. If this side made the connection, its set-up counts as one byte.
///
/// # Errors
///
/// The kernel's, and `EOPNOTSUPP` if it does not have this number.
pub fn bytes_acked(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = Info { others: [0; 15], bytes_acked: 0 };
    let mut len = size_of::<Info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which the structure has, and any bytes are valid.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < size_of::<Info>() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    Ok(info.bytes_acked)
}

/// Command of a ring's request (`IORING_OP_URING_CMD`, Linux 6.7) that is answered with [`unacknowledged`].
pub const UNACKNOWLEDGED: u32 = 1;

/// The number of bytes that the program has given to the kernel and the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
///
/// The kernel's.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes an int, which is there.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(bytes as u64) }
}

/// Makes a socket readable only from so many bytes on, or when its peer sends no more (`SO_RCVLOWAT`).
///
/// # Errors
///
/// The kernel's.
pub fn set_readable_from(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = bytes.min(i32::MAX as usize) as libc::c_int;
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Whether the kernel will put a message on the error queue when the peer has acknowledged the last byte
/// of a send (`SOF_TIMESTAMPING_TX_ACK` and `_OPT_TSONLY`, Linux 4.0). Poll reports such a message as an
/// error.
///
/// # Errors
///
/// The kernel's.
pub fn set_told_of_acknowledgements(socket: BorrowedFd<'_>, told: bool) -> io::Result<()> {
    let all = libc::SOF_TIMESTAMPING_TX_ACK
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let what = if told { all as libc::c_int } else { 0 };
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, what)
}

/// A bind to an address without a port chooses none: connect(2) does, when it knows the peer (`IP_BIND_ADDRESS_NO_PORT`,
/// Linux 4.2). For both families.
///
/// # Errors
///
/// The kernel's.
pub fn bind_address_no_port(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set(socket, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}
