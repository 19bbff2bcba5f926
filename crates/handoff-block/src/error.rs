//! Why there can be no device, each reason in one line with the cause and the remedy.

use std::io;

use serde::{Deserialize, Serialize};

/// Error of this crate; the kinds are the exit codes of the command.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// This machine, kernel or user cannot do it.
    #[error("{0}")]
    NotPossible(String),
    /// The attempt failed.
    #[error("{0}")]
    Failed(String),
    /// The kernel had no memory, descriptors or threads for it, and may have some later.
    #[error("{0}")]
    Starved(String),
}

impl Error {
    pub(crate) fn usage(cause: impl Into<String>) -> Self {
        Self::Usage(cause.into())
    }

    pub(crate) fn failed(cause: impl Into<String>) -> Self {
        Self::Failed(cause.into())
    }

    /// For `map_err`: what was being done, and the kernel's answer.
    pub(crate) fn doing<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |error| {
            let error = error.into();
            Self::Failed(format!("{what}: {error}")).caused_by(&error)
        }
    }

    /// The same with its cause; a shortage that may end makes it [`Error::Starved`].
    pub(crate) fn caused_by(self, cause: &io::Error) -> Self {
        if is_lack(cause) { Self::Starved(self.to_string()) } else { self }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_may_have_later_is_told_from_what_it_refuses() {
        let starved = |number| {
            let cause = io::Error::from_raw_os_error(number);
            let usage = matches!(Error::usage("it").caused_by(&cause), Error::Starved(_));
            let failed = matches!(Error::doing("it")(cause), Error::Starved(_));
            assert_eq!(usage, failed, "{number}");
            failed
        };
        for number in [libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            assert!(starved(number), "{number}");
        }
        for number in [libc::ENOENT, libc::EAGAIN, libc::EPERM] {
            assert!(!starved(number), "{number}");
        }
    }
}
