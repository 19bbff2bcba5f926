//! The network that streams are measured over: software NICs, veth or virtio-net between two namespaces,
//! or a NIC of this host and another host; what is sent and received at the end that is not measured, and
//! what it costs at the end that is.

pub(crate) mod account;
mod addresses;
pub(crate) mod arrivals;
pub(crate) mod bed;
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

use std::time::Duration;

/// After which a connection counts as dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
