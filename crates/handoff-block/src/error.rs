//! Why there can be no device, each reason in one line with the cause and the remedy.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// An error of this crate.
///
/// ```
/// use handoff_block::{Error, ErrorKind};
///
/// fn worth_another_try(error: &Error) -> bool {
///     error.kind() == ErrorKind::Starved || matches!(error, Error::InUse { .. } | Error::HasServer { .. })
/// }
///
/// assert!(!worth_another_try(&Error::NoDevice { id: 7 }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call, or a command of the driver, failed.
    #[error("{action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// The kernel had no memory, descriptors or threads for it, and may have some later.
    #[error("{reason}")]
    Starved {
        /// What was being done, and the kernel's answer.
        reason: String,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A setting or an argument that makes no sense, with the reason.
    #[error("{0}")]
    Invalid(String),
    /// A file, a disk or an object that cannot be used.
    #[error("{reason}")]
    Unusable {
        /// Which one, and why.
        reason: String,
        /// What the kernel answered, if it refused it.
        #[source]
        source: Option<io::Error>,
    },
    /// Somebody uses a file or a disk.
    #[error("{reason}")]
    InUse {
        /// Its path.
        path: PathBuf,
        /// The path, and who uses it or how to end that.
        reason: String,
    },
    /// This machine, kernel or user cannot do it.
    #[error("{reason}")]
    NotPossible {
        /// Why, and what would help.
        reason: String,
        /// What the kernel answered, if it was asked.
        #[source]
        source: Option<io::Error>,
    },
    /// No device has this number.
    #[error("there is no device {id}")]
    NoDevice {
        /// The number.
        id: u32,
    },
    /// Another device has this number.
    #[error("there is a device {id} already: remove it, or take another number")]
    DeviceExists {
        /// The number.
        id: u32,
    },
    /// The device is not the one that was meant: its number may have another now.
    #[error("device {id} was removed, and perhaps made anew")]
    DeviceGone {
        /// The number.
        id: u32,
    },
    /// The device to take over has a server.
    #[error("device {id} has a server that lives")]
    HasServer {
        /// The device's number.
        id: u32,
    },
    /// Nobody answers for the device.
    #[error("device {id} has no server at the moment ({source}): try again")]
    NoServer {
        /// The device's number.
        id: u32,
        /// Why its server cannot be reached.
        #[source]
        source: io::Error,
    },
    /// The device's server ended, or took too long, before it answered.
    #[error(
        "the server of device {id} does not answer ({source}): `handoff blk show {id}` tells the policy that it has"
    )]
    NoAnswer {
        /// The device's number.
        id: u32,
        /// Why there is no answer.
        #[source]
        source: io::Error,
    },
    /// Another program made the device, or what this crate wrote about it is gone.
    #[error("what device {id} was made of is not known here: {source}")]
    UnknownDevice {
        /// The device's number.
        id: u32,
        /// Why its record cannot be read.
        #[source]
        source: io::Error,
    },
    /// What this crate wrote about the device is not whole.
    #[error("the state of device {id} {damage}")]
    Damaged {
        /// The device's number.
        id: u32,
        /// What is wrong with the state, and the way out.
        damage: String,
    },
    /// A queue ended while it served.
    #[error("queue {queue} of device {id} failed: {source}")]
    QueueFailed {
        /// The device's number.
        id: u32,
        /// The queue's number.
        queue: u16,
        /// Why it ended.
        #[source]
        source: io::Error,
    },
    /// A server that waited for the last one to end was asked to end itself.
    #[error("asked to end before it served: {waited_for}")]
    Stopped {
        /// What it waited for.
        #[source]
        waited_for: Box<Self>,
    },
    /// The device's server refused a request.
    #[error("{reason}")]
    Refused {
        /// The kind of the server's error.
        kind: ErrorKind,
        /// Its error in words.
        reason: String,
    },
}

/// What an error says about another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request makes no sense, here or now: change it.
    Usage,
    /// This machine, kernel or user cannot do it.
    NotPossible,
    /// The attempt failed.
    Failed,
    /// The kernel was short of something, and may have it later.
    Starved,
}

impl Error {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(reason.into())
    }

    /// A file, a disk or an object is not what it should be.
    pub(crate) fn unusable(reason: impl Into<String>) -> Self {
        Self::Unusable { reason: reason.into(), source: None }
    }

    pub(crate) fn not_possible(reason: impl Into<String>) -> Self {
        Self::NotPossible { reason: reason.into(), source: None }
    }

    /// For `map_err`: what was being done, and the kernel's answer.
    pub(crate) fn doing<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = what.into();
        move |error| {
            let source = error.into();
            if is_lack(&source) {
                return Self::Starved { reason: format!("{action}: {source}"), source };
            }
            Self::Io { action, source }
        }
    }

    /// Why the record of a device cannot be read.
    pub(crate) fn unknown_device(id: u32, source: io::Error) -> Self {
        if is_lack(&source) {
            return Self::doing(format!("what device {id} was made of is not known here"))(source);
        }
        Self::UnknownDevice { id, source }
    }

    /// The same with its cause; a shortage that may end makes it [`Error::Starved`].
    pub(crate) fn caused_by(mut self, cause: io::Error) -> Self {
        if is_lack(&cause) {
            return Self::Starved { reason: self.to_string(), source: cause };
        }
        if let Self::Unusable { source, .. } | Self::NotPossible { source, .. } = &mut self {
            *source = Some(cause);
        }
        self
    }

    /// What the error says about another try; the command has an exit code for each kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_)
            | Self::Unusable { .. }
            | Self::InUse { .. }
            | Self::NoDevice { .. }
            | Self::DeviceExists { .. }
            | Self::DeviceGone { .. }
            | Self::HasServer { .. }
            | Self::UnknownDevice { .. } => ErrorKind::Usage,
            Self::NotPossible { .. } => ErrorKind::NotPossible,
            Self::Io { .. }
            | Self::NoServer { .. }
            | Self::NoAnswer { .. }
            | Self::Damaged { .. }
            | Self::QueueFailed { .. }
            | Self::Stopped { .. } => ErrorKind::Failed,
            Self::Starved { .. } => ErrorKind::Starved,
            Self::Refused { kind, .. } => *kind,
        }
    }
}

/// Whether the kernel may later have what it lacked.
pub(crate) fn is_lack(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::OutOfMemory
        || matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// An error in words that may be a shortage.
pub(crate) fn worded(words: String, is_lack: bool) -> io::Error {
    let kind = if is_lack { io::ErrorKind::OutOfMemory } else { io::ErrorKind::Other };
    io::Error::new(kind, words)
}

/// How a thread ended. What it panicked with, the hook has printed.
pub(crate) fn end_of(serve: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // What it used goes with it.
    catch_unwind(AssertUnwindSafe(serve))
        .unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn what_the_kernel_may_have_later_is_told_from_what_it_refuses() {
        let starved = |number| {
            let cause = || io::Error::from_raw_os_error(number);
            let errors = [
                Error::unusable("it").caused_by(cause()),
                Error::not_possible("it").caused_by(cause()),
                Error::doing("it")(cause()),
            ];
            let kept = |error: &Error| {
                let source = error.source().and_then(|it| it.downcast_ref::<io::Error>());
                source.and_then(io::Error::raw_os_error) == Some(number)
            };
            assert!(errors.iter().all(kept), "{errors:?}");
            let [one, others @ ..] = errors.map(|error| error.kind() == ErrorKind::Starved);
            assert_eq!(others, [one; 2], "{number}");
            one
        };
        for number in [libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            assert!(starved(number), "{number}");
        }
        for number in [libc::ENOENT, libc::EAGAIN, libc::EPERM] {
            assert!(!starved(number), "{number}");
        }
    }

    #[test]
    fn a_panic_is_an_end() {
        assert!(end_of(|| Ok(())).is_ok());
        let ended = end_of(|| panic!("on purpose"));
        assert_eq!(ended.expect_err("no end").to_string(), "its thread panicked");
    }
}
