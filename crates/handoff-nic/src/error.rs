//! Why an interface cannot be prepared: one line each, with the cause and the remedy.

use std::io;

use handoff_sys::netlink::Refusal;

/// Error of this crate; the kinds are the exit codes of the command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// This machine, interface or user cannot do it.
    #[error("{0}")]
    NotPossible(String),
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn usage(cause: impl Into<String>) -> Self {
        Self::Usage(cause.into())
    }

    pub(crate) fn not_possible(cause: impl Into<String>) -> Self {
        Self::NotPossible(cause.into())
    }

    pub(crate) fn failed(cause: impl Into<String>) -> Self {
        Self::Failed(cause.into())
    }

    /// For `map_err`: what was being done, and the kernel's answer.
    pub(crate) fn doing<E: Into<Refusal>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |refusal| {
            let refusal = refusal.into();
            if refusal.is(rustix::io::Errno::PERM.raw_os_error()) {
                return Self::NotPossible(format!("{what} takes CAP_NET_ADMIN: run as root"));
            }
            Self::Failed(format!("{what}: {refusal}"))
        }
    }

    /// The same error, with more words.
    pub(crate) fn and(self, more: &str) -> Self {
        match self {
            Self::Usage(cause) => Self::Usage(cause + more),
            Self::NotPossible(cause) => Self::NotPossible(cause + more),
            Self::Failed(cause) => Self::Failed(cause + more),
        }
    }
}

/// For `map_err` about files: what was being done, and the answer.
pub(crate) fn file<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
    let what = what.into();
    move |error| match error.into() {
        error if error.kind() == io::ErrorKind::PermissionDenied => {
            Error::NotPossible(format!("{what}: {error}: run as root"))
        }
        error => Error::Failed(format!("{what}: {error}")),
    }
}
