//! The network for measuring streams: software NICs, veth or virtio-net between two namespaces, or a NIC of
//! this host and another host; the sender or receiver at the unmeasured end, and the costs of the measured
//! end.

pub(crate) mod account;
mod addresses;
pub(crate) mod arrivals;
pub(crate) mod binding;
pub(crate) mod card;
pub(crate) mod descriptors;
pub(crate) mod drain;
pub(crate) mod far;
pub(crate) mod nic;
pub(crate) mod pattern;
pub(crate) mod placement;
pub(crate) mod program;
pub(crate) mod queues;
pub(crate) mod sender;
pub(crate) mod sending_host;
pub(crate) mod talk;
pub(crate) mod testbed;

use std::time::Duration;

/// After this time a connection counts as dead.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
