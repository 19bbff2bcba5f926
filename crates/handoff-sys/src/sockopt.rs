//! Socket options that no crate sets or gets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;

/// Sets the option of this level and name to an int.
pub(crate) fn set(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    set_bytes(socket, level, name, &value.to_ne_bytes())
}

/// Sets the option of this level and name to bytes.
pub(crate) fn set_bytes(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the kernel reads the given number of bytes, which `value` has and which live through the
    // call; it refuses an option that takes more.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Numbers, and nothing else.
///
/// # Safety
///
/// Any bytes are a value of the type.
pub(crate) unsafe trait Plain: Default {}

// SAFETY: any bytes are an integer.
unsafe impl Plain for c_int {}
// SAFETY: any bytes are an integer.
unsafe impl Plain for u64 {}

/// The value of the option of this level and name, which the kernel gives as such a value.
pub(crate) fn get<T: Plain>(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most the given number of bytes, which `value` has, and any bytes are a value.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
