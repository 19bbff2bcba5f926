//! Who is at the other end of a Unix connection.
//!
//! Minimum kernel: any (`SO_PEERCRED`), 6.5 for a descriptor of the process (`SO_PEERPIDFD`). Capability: none.

use std::os::fd::{AsFd, OwnedFd};

use handoff_sys::unix;

use crate::error::{Error, Result};

/// Who connected to, or listened at, the other end of a Unix connection when that was made.
///
/// ```
/// # fn main() -> handoff::Result<()> {
/// use handoff::{Driver, UnixKind};
///
/// let (near, _far) = Driver::new()?.unix_pair(UnixKind::Stream)?;
/// assert_eq!(near.peer_credentials()?.pid, Some(std::process::id()));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process; `None` if our PID namespace has no number for it. The number may be another's by now: use
    /// [`Socket::peer_pidfd`](crate::Socket::peer_pidfd) to act on the process.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Those of a connection's peer.
pub(crate) fn credentials(connection: impl AsFd) -> Result<Credentials> {
    let told = unix::peer(connection.as_fd())
        .map_err(|error| Error::io("asking for the credentials of a peer", error))?;
    let pid = u32::try_from(told.pid).ok().filter(|pid| *pid > 0);
    Ok(Credentials { pid, uid: told.uid, gid: told.gid })
}

/// The process of a connection's peer.
pub(crate) fn pidfd(connection: impl AsFd) -> Result<OwnedFd> {
    unix::peer_pidfd(connection.as_fd()).map_err(|error| {
        Error::descriptor(
            "asking for the process of a peer (SO_PEERPIDFD, Linux 6.5)",
            error.raw_os_error().unwrap_or(libc::EIO),
        )
    })
}
