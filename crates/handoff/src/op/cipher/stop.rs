//! Why a connection sends or receives nothing now, or never again.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::error::Error;

/// The alert that tells of a proper end.
pub(super) const CLOSE_NOTIFY: u8 = 0;

/// Bytes that are discarded at once, and how often.
const UNREAD: usize = 64 << 10;
const MOST_UNREAD: u32 = 4;

/// Why nothing was sent or received now.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The socket has no room, or nothing for us.
    Blocked,
    /// The kernel's error.
    Errno(i32),
    /// The connection cannot go on.
    Failed(String),
}

impl Stop {
    pub(crate) fn of_errno(errno: i32) -> Self {
        if errno == libc::EAGAIN { Self::Blocked } else { Self::Errno(errno) }
    }

    pub(crate) fn error(self, action: &'static str) -> Error {
        match self {
            Self::Blocked => Error::io(action, io::ErrorKind::WouldBlock.into()),
            Self::Errno(errno) => Error::errno(action, errno),
            Self::Failed(reason) => Error::Tls { reason },
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::of_errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustls::Error> for Stop {
    fn from(error: rustls::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) fn cut_off() -> Stop {
    Stop::Failed(
        "the connection ended without close-notify: what came may be cut off, by the peer's failure or by \
         somebody in between"
            .to_owned(),
    )
}

/// Takes what else has come on a connection that has failed: TCP resets one that is closed with something unread, and then a
/// peer that had more to say would not hear why.
pub(crate) fn discard(socket: &OwnedFd) {
    let mut unread = vec![0; UNREAD];
    let mut left = MOST_UNREAD;
    while left > 0 {
        match recv(socket, &mut unread[..], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => left -= 1,
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Notes why a connection failed, and returns the errno that stands for it.
pub(super) fn fail(stop: Stop, failure: &mut Option<String>) -> i32 {
    match stop {
        Stop::Blocked => -libc::EAGAIN,
        Stop::Errno(errno) => -errno,
        Stop::Failed(reason) => {
            failure.get_or_insert(reason);
            -libc::EPROTO
        }
    }
}
