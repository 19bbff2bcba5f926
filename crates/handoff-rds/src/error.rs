//! All errors, each with its cause and the way out in one line.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{action}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// This machine, kernel or user cannot do it.
    #[error("{0}")]
    NotPossible(String),
    /// Longer than a message may be.
    #[error("a message of {len} bytes is too long, the limit is {limit} bytes: {cause}")]
    MessageTooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes of the longest.
        limit: usize,
        /// What limits it, and what may raise it.
        cause: &'static str,
    },
    /// The receiving port has more queued than it reads. Other ports of the same peer still receive.
    #[error("{0} is congested: send again when it has read what it holds")]
    Congested(SocketAddr),
    /// Too much is under way already.
    #[error("no more can be queued for {to}: {cause}")]
    Full {
        /// Where to.
        to: SocketAddr,
        /// What is full, and what makes room.
        cause: &'static str,
    },
    /// Locking the pages of a buffer would exceed `RLIMIT_MEMLOCK`.
    #[error(
        "sending without a copy needs {need} more bytes of locked memory, and the limit (RLIMIT_MEMLOCK) is {limit}: \
         this process has {locked}, and what sockets lend and the user's other processes lock counts as well. Raise \
         the limit (ulimit -l, LimitMEMLOCK= in systemd, /etc/security/limits.conf), grant CAP_IPC_LOCK, wait for \
         completions, or send with a copy"
    )]
    Memlock {
        /// Bytes of the message.
        need: usize,
        /// Bytes that this process has locked already, as registered buffers. What sockets lend and locks of
        /// the user's other processes count as well, and nobody reports how much they are.
        locked: u64,
        /// The soft limit in bytes.
        limit: u64,
    },
    /// There is no way to the address.
    #[error("no way to {to}: {source}")]
    Unreachable {
        /// Where to.
        to: SocketAddr,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// More peers than the host may remember, none of them idle.
    #[error("{peer} would be one peer more than the limit of {limit}, and none is idle")]
    TooManyPeers {
        /// The new one.
        peer: IpAddr,
        /// The limit.
        limit: usize,
    },
    /// Another engine is at the address: peers would take the second for a restart of the first.
    #[error(
        "an engine is at {address} already, that of {holder}: use another of this host's addresses, or wait until it \
         ends"
    )]
    AddressInUse {
        /// The address.
        address: IpAddr,
        /// The process that has the engine.
        holder: String,
    },
    /// The port has a socket.
    #[error("port {0} is bound already")]
    PortInUse(u16),
    /// The port has no socket.
    #[error("port {0} is not bound")]
    NotBound(u16),
    /// The socket's payloads are not all back.
    #[error(
        "{0} messages of the port are still under way: cancel them, and take their completions"
    )]
    UnderWay(usize),
    /// An argument that cannot be used, with the reason.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err`: what was being done.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// Whether the same call may succeed later without any change.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Congested(_) | Self::Full { .. })
    }
}

/// A refused message; its payload comes back with the reason.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<B> {
    /// The payload, untouched.
    pub payload: B,
    /// The reason.
    #[source]
    pub error: Error,
}

impl<B> fmt::Debug for Refused<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}
