//! The network that streams are measured over: software NICs, veth or virtio-net between two namespaces,
//! what is sent and received at the end that is not measured, and what it costs at the end that is.

pub(crate) mod account;
pub(crate) mod arrivals;
pub(crate) mod bed;
pub(crate) mod drain;
pub(crate) mod nic;
pub(crate) mod pattern;
pub(crate) mod program;
pub(crate) mod sender;

use std::time::Duration;

/// After which a connection counts as dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
