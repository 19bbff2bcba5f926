//! Unix sockets.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};

use crate::sockopt;

/// Of `asm-generic/socket.h`.
const SO_PEERPIDFD: i32 = 77;

/// Who is at the other end of a connection (`struct ucred`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The process; 0 if our PID namespace has no number for it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

const _: () = assert!(size_of::<Credentials>() == size_of::<libc::ucred>());

// SAFETY: any bytes are three integers.
unsafe impl sockopt::Plain for Credentials {}

/// Who listened at, or connected to, the other end of a connection when it did (`SO_PEERCRED`).
///
/// # Errors
///
/// The kernel's.
pub fn peer(connection: BorrowedFd<'_>) -> io::Result<Credentials> {
    sockopt::get(connection, libc::SOL_SOCKET, libc::SO_PEERCRED)
}

/// The process of the same, as a descriptor that stays with it (`SO_PEERPIDFD`, Linux 6.5). The kernel closes it on exec.
///
/// # Errors
///
/// The kernel's; `ENOPROTOOPT` before 6.5.
pub fn peer_pidfd(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd: i32 = sockopt::get(connection, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: the kernel has made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_is_told() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let found = peer(one.as_fd()).expect("tells");
        assert_eq!(found.pid, std::process::id() as i32);
    }
}
