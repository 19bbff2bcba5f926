//! Network topologies over rtnetlink.
//!
//! Contracts:
//!
//! 1. A [`Namespace`] has no name: only file descriptors (and threads or children inside it) hold
//!    it, so it and every device that was made in it vanish with the process, also on kill -9. There is
//!    nothing to clean up, and two runs at once do not see each other. Devices of the machine that were
//!    moved into it go home ([`Pair::virtio`]).
//! 2. Every call is synchronous and returns after the kernel has acknowledged the change.
//! 3. What this kernel or this user cannot have is [`TopologyError::Unavailable`](crate::TopologyError::Unavailable) or
//!    [`TopologyError::NotPermitted`](crate::TopologyError::NotPermitted) with the reason. The kernel's own answer decides, never its
//!    version.
//!
//! Minimum kernel: 4.15 (64-bit netem delays). Capabilities: CAP_SYS_ADMIN and CAP_NET_ADMIN, or a
//! kernel that lets everyone make user namespaces ([`enter_user_namespace`]).
//!
//! Copies: on the way to a receiver on the same host (loopback, [`Pair::new`]) the kernel copies packets
//! that carry lent memory. Only a [`Discard`] sink takes them untouched.

mod discard;
mod namespace;
mod netem;
mod pair;
mod redirect;
mod rtnetlink;
#[cfg(test)]
mod tests;
mod virtio;

pub use discard::{Discard, DiscardKind};
pub use namespace::{Namespace, NamespaceGuard, enter_user_namespace};
pub use netem::Netem;
pub use pair::{Pair, PairEnd, Side};
pub use virtio::mac as virtio_mac;
