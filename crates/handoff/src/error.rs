//! All errors, each with its cause and the way out in one line.

use std::io;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// An error of this library.
///
/// ```
/// use handoff::Error;
///
/// fn worth_another_try(error: &Error) -> bool {
///     matches!(error, Error::Busy { .. } | Error::Memlock { .. } | Error::NoDescriptor { .. })
/// }
///
/// assert!(!worth_another_try(&Error::DriverGone));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call or request failed.
    #[error("{action}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A call about a path failed.
    #[error("{action} {path}: {source}{}{hint}", if hint.is_empty() { "" } else { "; " })]
    Path {
        /// What was being done.
        action: &'static str,
        /// The path as it was given; of two paths both, in words.
        path: String,
        /// What may be the cause, in words; empty where the kernel's answer says it.
        hint: &'static str,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// Locking the pages of a buffer would exceed `RLIMIT_MEMLOCK`.
    #[error(
        "{action} needs {need} more bytes of locked memory; this process has {locked}, other processes of this user \
         count too, and the limit (RLIMIT_MEMLOCK) is {limit} bytes: raise it (ulimit -l, LimitMEMLOCK= in systemd, \
         /etc/security/limits.conf), grant CAP_IPC_LOCK, or use fewer or smaller buffers or the copy engine"
    )]
    Memlock {
        /// What was being done.
        action: &'static str,
        /// Bytes to lock now, beside what is locked already.
        need: u64,
        /// Bytes that this process has locked already. Locks of the user's other processes count as well,
        /// and nobody reports how much they are.
        locked: u64,
        /// The soft limit in bytes.
        limit: u64,
    },
    /// The driver has as many operations under way as it was built for.
    #[error(
        "{limit} operations are under way, the most this driver was built for: wait for some of them, or \
         build it with more (DriverBuilder::in_flight)"
    )]
    Busy {
        /// The most operations under way at once.
        limit: usize,
    },
    /// Other threads have as many spans of the driver as it was built for.
    #[error(
        "{limit} spans are with other threads, the most this driver was built for: have them dropped, or build it with \
         more (DriverBuilder::send_spans)"
    )]
    SpansAway {
        /// The most at once.
        limit: usize,
    },
    /// A lane has as many buffers as it was made for.
    #[error(
        "the lane has {capacity} buffers, as many as it was made for: take back those that returned"
    )]
    LaneFull {
        /// The most buffers at once.
        capacity: usize,
    },
    /// No buffer of a pool came back in time.
    #[error(
        "no buffer came back to the pool in {waited:?}: of its {buffers} buffers of {len} bytes, {holders}"
    )]
    PoolEmpty {
        /// How long the wait was.
        waited: Duration,
        /// Buffers of the pool.
        buffers: usize,
        /// Bytes of each.
        len: usize,
        /// Who has how many, in words.
        holders: String,
    },
    /// A datagram larger than its protocol or device takes.
    #[error("a datagram of {size} bytes is too long: {limit}")]
    MessageTooLong {
        /// Bytes of the datagram, header included.
        size: usize,
        /// What limits it, in words.
        limit: String,
    },
    /// Somebody has the name that a Unix socket was to have, or something else is there.
    #[error("{name} is in use, {why}: choose another name, or end who has it")]
    NameInUse {
        /// The name, as `unix:...`.
        name: String,
        /// By whom or what, in words.
        why: &'static str,
    },
    /// A message had more descriptors than there was room for. All that came with it are closed; its bytes are in the
    /// buffer.
    #[error(
        "a message of {received} bytes came with more descriptors than there was room for, and all of them are closed: \
         ask for as many as the peer sends, and allow more open files (ulimit -n)"
    )]
    DescriptorsCut {
        /// Bytes of the message.
        received: usize,
    },
    /// An earlier send on the stream stopped midway, so nothing may follow it.
    #[error("the stream is broken: an earlier send on it ended after {sent} of {total} bytes")]
    StreamBroken {
        /// Bytes of the earlier send that the kernel took.
        sent: usize,
        /// Bytes that it had.
        total: usize,
    },
    /// A stream ended before all expected bytes came.
    #[error("the stream ended after {received} of {wanted} bytes")]
    StreamEnded {
        /// Bytes that came: they are at the buffer's beginning.
        received: usize,
        /// Bytes that the buffer was to have.
        wanted: usize,
    },
    /// A dropped receive had taken bytes of its stream, so the next bytes would be mistaken for them.
    #[error(
        "{bytes} bytes of the stream went to a receive that was dropped, and the rest makes no sense without \
         them: before you drop a receive, cancel it and take its buffer (Transfer::cancel)"
    )]
    ReceivedLost {
        /// Bytes that are lost.
        bytes: usize,
    },
    /// The process, or the machine, has reached its limit of open files.
    #[error(
        "{action}: no descriptor is free{}: close files, or allow more (ulimit -n, LimitNOFILE= in systemd; \
         fs.file-max for the machine)",
        limit.map(|limit| format!(", and this process may have {limit} (RLIMIT_NOFILE)")).unwrap_or_default()
    )]
    NoDescriptor {
        /// What was being done.
        action: &'static str,
        /// The process's limit, if that was reached.
        limit: Option<u64>,
    },
    /// The given time is over.
    #[error("not finished within {after:?}")]
    TimedOut {
        /// The time.
        after: Duration,
    },
    /// The operation was cancelled.
    #[error("cancelled after {done} bytes")]
    Canceled {
        /// Bytes done before.
        done: usize,
    },
    /// The requested engine does not work here.
    #[error("the {engine} engine is not possible here: {reason}")]
    EngineUnavailable {
        /// Name of the engine.
        engine: &'static str,
        /// Why.
        reason: String,
    },
    /// An operation needs a ring, and there is none.
    #[error("{action} needs io_uring, which is not available: {reason}")]
    NoRing {
        /// What was being done.
        action: &'static str,
        /// Why there is no ring.
        reason: String,
    },
    /// The driver was made by the process that this one was forked from, which goes on with it.
    #[error(
        "the driver was made by another process, and a child of fork(2) leaves it alone: fork before the first driver \
         is made (a daemon forks first), or make a driver here"
    )]
    OtherProcess,
    /// The last handle of the driver is gone, so nobody can turn it. What an operation lent and the kernel still has
    /// stays with the kernel, and its memory is freed when the kernel lets go of it.
    #[error(
        "the driver was dropped, and nothing goes on without it: keep a Driver for as long as its sockets, \
         files and futures are used"
    )]
    DriverGone,
    /// A driver thread has ended, so nothing on it works any more.
    #[error(
        "the driver thread has ended, and nothing goes on without it: its DriverThreads was dropped or shut \
         down, or its driver failed, as the log then says"
    )]
    ThreadGone,
    /// A TLS connection cannot be made, or cannot go on.
    #[error("TLS: {reason}")]
    Tls {
        /// Why, in words.
        reason: String,
    },
    /// An argument that cannot be used, with the reason.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(action: &'static str, source: io::Error) -> Self {
        Self::Io { action, source }
    }

    pub(crate) fn errno(action: &'static str, errno: i32) -> Self {
        Self::io(action, io::Error::from_raw_os_error(errno))
    }

    /// Error of a call that makes a descriptor.
    pub(crate) fn descriptor(action: &'static str, errno: i32) -> Self {
        match errno {
            libc::EMFILE => {
                Self::NoDescriptor { action, limit: getrlimit(Resource::Nofile).current }
            }
            libc::ENFILE => Self::NoDescriptor { action, limit: None },
            _ => Self::errno(action, errno),
        }
    }

    /// The kernel's error number, if the kernel gave one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Path { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io { source, .. } | Error::Path { source, .. } => source.kind(),
            Error::TimedOut { .. } => io::ErrorKind::TimedOut,
            Error::NoDescriptor { .. } | Error::Memlock { .. } => io::ErrorKind::OutOfMemory,
            Error::Busy { .. } | Error::LaneFull { .. } | Error::SpansAway { .. } => {
                io::ErrorKind::WouldBlock
            }
            Error::PoolEmpty { .. } => io::ErrorKind::TimedOut,
            Error::StreamBroken { .. } => io::ErrorKind::BrokenPipe,
            Error::StreamEnded { .. } => io::ErrorKind::UnexpectedEof,
            Error::ReceivedLost { .. } | Error::Tls { .. } => io::ErrorKind::InvalidData,
            Error::Canceled { .. } => io::ErrorKind::Interrupted,
            Error::NameInUse { .. } => io::ErrorKind::AddrInUse,
            Error::DescriptorsCut { .. } => io::ErrorKind::InvalidData,
            Error::OtherProcess | Error::DriverGone | Error::ThreadGone => {
                io::ErrorKind::NotConnected
            }
            Error::EngineUnavailable { .. } | Error::NoRing { .. } => io::ErrorKind::Unsupported,
            Error::MessageTooLong { .. } | Error::Invalid(_) => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
