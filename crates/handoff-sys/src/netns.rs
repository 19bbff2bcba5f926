//! Network namespaces.
//!
//! Kernel interface: [include/uapi/asm-generic/socket.h](https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/include/uapi/asm-generic/socket.h),
//! Linux 5.14.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sockopt;

/// The number of the network namespace of a socket, which no other namespace gets until the machine boots again
/// (`SO_NETNS_COOKIE`). An inode may be that of a later one.
///
/// # Errors
///
/// `ENOPROTOOPT` before Linux 5.14.
pub fn cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    sockopt::get(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
}
