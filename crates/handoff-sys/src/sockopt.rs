//! Socket options whose value is an int, where no crate sets them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;

/// Sets an option of this level and name, which takes an int.
pub(crate) fn set(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as it is told, which `value` has and which live through
    // the call; an option that takes more is refused.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
