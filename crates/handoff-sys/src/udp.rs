//! Limits of a UDP socket's datagrams.
//!
//! Kernel interface: `IP_MTU` and `IPV6_MTU` of a connected socket, `SO_NO_CHECK`, `UDP_NO_CHECK6_TX`
//! (Linux 3.16).

use std::io;
use std::os::fd::BorrowedFd;

use crate::sockopt;

const UDP_NO_CHECK6_TX: libc::c_int = 101;

/// The MTU of the path to the peer, as far as the kernel knows it.
///
/// # Errors
///
/// The kernel's: `ENOTCONN` where the socket has no peer.
pub fn path_mtu(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<usize> {
    let mtu = if ipv6 {
        sockopt::get(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        sockopt::get(socket, libc::IPPROTO_IP, libc::IP_MTU)
    };
    mtu.map(|mtu: i32| mtu.max(0) as usize)
}

/// Whether the socket sends datagrams without a checksum.
///
/// # Errors
///
/// The kernel's.
pub fn sends_without_checksum(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<bool> {
    // Each kind of socket has its own option.
    let (level, option) = if ipv6 {
        (libc::SOL_UDP, UDP_NO_CHECK6_TX)
    } else {
        (libc::SOL_SOCKET, libc::SO_NO_CHECK)
    };
    sockopt::get(socket, level, option).map(|set: i32| set != 0)
}
