//! `MSG_ZEROCOPY` completions on a socket's error queue.
//!
//! Kernel interface: `struct sock_extended_err` in `include/uapi/linux/errqueue.h` and
//! `Documentation/networking/msg_zerocopy.rst` (Linux 4.14 for TCP, 5.0 for UDP).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sockopt;

/// `SO_EE_ORIGIN_ZEROCOPY`: the entry has a range of finished zero-copy sends.
pub const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`: the kernel copied the payload of this range after all.
pub const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

const _: () = assert!(size_of::<libc::sock_extended_err>() == 16);

/// A range of finished sends, both ends included; each socket counts its ids from 0, and they wrap.
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
    fn from_extended_error(error: &libc::sock_extended_err) -> Option<Self> {
        (error.ee_errno == 0 && error.ee_origin == SO_EE_ORIGIN_ZEROCOPY).then_some(Self {
            first: error.ee_info,
            last: error.ee_data,
            copied: error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED != 0,
        })
    }
}

/// Sets `SO_ZEROCOPY`; without it the kernel ignores `MSG_ZEROCOPY`.
///
/// # Errors
///
/// `ENOTSUPP` or `EOPNOTSUPP` where the protocol has no zero copy.
pub fn enable(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

/// Whether `SO_ZEROCOPY` is set.
///
/// # Errors
///
/// Those of `getsockopt`.
pub fn is_enabled(socket: BorrowedFd<'_>) -> io::Result<bool> {
    sockopt::get(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY).map(|value: i32| value != 0)
}

/// Clears `SO_ZEROCOPY`.
///
/// # Errors
///
/// Those of `setsockopt`.
pub fn disable(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0)
}

/// The meaning of a message on the error queue.
#[derive(Debug)]
pub enum Message {
    /// Sends are finished.
    Completion(Completion),
    /// Something else went wrong on the network.
    Other(io::Error),
}

/// Takes one message off the error queue, or nothing when it is empty. It never blocks.
///
/// # Errors
///
/// Those of `recvmsg`.
pub fn read_error_queue(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    // Room for the extended error, the address behind it, and time stamps if the socket has them on; u64
    // for the alignment of cmsghdr.
    let mut control = [0_u64; 32];
    // SAFETY: all-zero bytes are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message points to live, writable control space of the given length.
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    // SAFETY: the kernel filled in the control space and its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the macro gave a whole header within the control space.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        ) {
            // SAFETY: a message of this kind begins with an extended error, perhaps not aligned.
            let error: libc::sock_extended_err = unsafe {
                libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned()
            };
            return Ok(Some(match Completion::from_extended_error(&error) {
                Some(completion) => Message::Completion(completion),
                None => Message::Other(io::Error::from_raw_os_error(error.ee_errno.cast_signed())),
            }));
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(Some(Message::Other(io::Error::other("a message of an unknown kind on the error queue"))))
}
