//! Network topologies over rtnetlink, and disks, for tests and benches.
//!
//! Contracts (of disks: see [`Disk`]):
//!
//! 1. A [`Namespace`] has no name: only file descriptors (and threads or children inside it) hold
//!    it, so it and every device that was made in it vanish with the process, also on kill -9. There is
//!    nothing to clean up, and two runs at once do not see each other. Devices of the machine that were
//!    moved into it go home ([`Pair::virtio`]).
//! 2. Every call is synchronous and returns after the kernel has acknowledged the change.
//! 3. What this kernel or this user cannot have is [`TopologyError::Unavailable`] or
//!    [`TopologyError::NotPermitted`] with the reason. The kernel's own answer decides, never its
//!    version.
//!
//! Minimum kernel: 4.15 (64-bit netem delays). Capabilities: CAP_SYS_ADMIN and CAP_NET_ADMIN, or a
//! kernel that lets everyone make user namespaces ([`enter_user_namespace`]).
//!
//! Copies: on the way to a receiver on the same host (loopback, [`Pair::new`]) the kernel copies packets
//! that carry lent memory. Only a [`Discard`] sink takes them untouched.

mod discard;
mod disk;
mod namespace;
mod netem;
mod pair;
mod redirect;
mod rtnetlink;
#[cfg(test)]
mod tests;
mod virtio;

pub use discard::{Discard, DiscardKind};
pub use disk::{Disk, Fault, Flaky, LoopDisk, NullDisk, RamDisk, Schedule, load};
pub use namespace::{Namespace, NamespaceGuard, enter_user_namespace};
pub use netem::Netem;
pub use pair::{Pair, PairEnd, Side};
pub(crate) use virtio::mac as virtio_mac;

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
fn asked<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> TopologyError {
    |source| TopologyError::Kernel { action: action.into(), source: source.into() }
}

/// Unwraps a topology, or skips the current test if this machine cannot have it.
///
/// # Panics
///
/// On any error but permission or availability.
#[macro_export]
macro_rules! topology_or_skip {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(error) if error.is_unavailable() => $crate::skip!("{error}"),
            Err(error) => panic!("{error}"),
        }
    };
}
