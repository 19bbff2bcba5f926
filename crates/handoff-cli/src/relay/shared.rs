//! What all connections of a thread share.

use std::time::Duration;

use handoff::{Driver, Intake, RouteEngine};
use handoff_command::descriptors::Reserve;
use handoff_net::proxy::Version;

use super::counters::Counters;
use super::target::Targets;

/// What they share.
pub(super) struct Relay {
    pub(super) driver: Driver,
    /// Connections at once on this thread.
    pub(super) most_open: u32,
    pub(super) engine: Option<RouteEngine>,
    /// What clients' payload is received from, where that is a NIC's queue.
    pub(super) intake: Option<Intake>,
    pub(super) target: Targets,
    /// The form of the head that the target gets.
    pub(super) proxy_protocol: Option<Version>,
    /// Whether clients come by a front, which says for whom.
    pub(super) accept_proxy: bool,
    pub(super) most_per_client: Option<u32>,
    pub(super) connect_timeout: Duration,
    pub(super) reserve: Reserve,
    /// What a connection takes of it.
    pub(super) beside_client: usize,
    /// `None` keeps idle connections.
    pub(super) idle: Option<Duration>,
    /// Bytes a second.
    pub(super) least_rate: u64,
    /// Between looks at a connection that may stand still.
    pub(super) look: Duration,
    pub(super) counters: Counters,
}
