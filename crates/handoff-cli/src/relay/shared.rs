//! What all connections of a thread share.

use std::time::Duration;

use handoff::{Driver, Intake, RouteEngine};
use handoff_command::descriptors::Reserve;
use handoff_net::listening::Target;

use super::counters::Counters;

/// What they share.
pub(super) struct Relay {
    pub(super) driver: Driver,
    /// Connections at once on this thread.
    pub(super) most_open: u32,
    pub(super) engine: Option<RouteEngine>,
    /// What clients' payload is received from, where that is a NIC's queue.
    pub(super) intake: Option<Intake>,
    /// The target's addresses, in the order in which they are tried.
    pub(super) target: Vec<Target>,
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
