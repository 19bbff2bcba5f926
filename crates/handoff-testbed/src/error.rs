//! Why the kernel does not make what a test stands on.

use std::io;

/// Why a topology could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The kernel refuses this user.
    #[error(
        "no permission for network namespaces ({reason}): run as root, or allow unprivileged user namespaces"
    )]
    NotPermitted {
        /// What was tried, and the kernel's answer.
        reason: String,
    },
    /// The kernel lacks a device type, a queueing discipline or a driver.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// The device type, discipline or driver.
        what: String,
        /// The kernel's answer.
        reason: String,
    },
    /// Any other refusal.
    #[error("cannot {action}: {source}")]
    Kernel {
        /// What we asked of the kernel.
        action: String,
        /// Its answer.
        source: io::Error,
    },
}

impl TopologyError {
    /// True if the cause is this machine or this user, so a test should skip and not fail.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NotPermitted { .. } | Self::Unavailable { .. })
    }
}

/// Adds to a kernel error what we asked.
pub(crate) fn asked<E: Into<io::Error>>(
    action: impl Into<String>,
) -> impl FnOnce(E) -> TopologyError {
    |source| TopologyError::Kernel { action: action.into(), source: source.into() }
}
