//! Sets rx queues of a network card aside for zero-copy receive, and puts everything back.
//!
//! ```no_run
//! use handoff_nic::{Directory, Flow, Ip, Plan, Prepared};
//!
//! # fn main() -> Result<(), handoff_nic::Error> {
//! let plan = Plan { flows: vec![(Flow::port(Ip::V4, 8000), 0)], ..Plan::default() };
//! let prepared = Prepared::new("eth0", &plan, &Directory::default())?;
//! println!("bind queue {} of eth0, then serve port 8000", prepared.queues()[0]);
//! # Ok(())
//! # }
//! ```
//!
//! Contracts:
//! - every step is recorded ([`Record`]) before it changes anything, and read back after it; it is
//!   undone, in reverse order, when a later step fails, when the guard is dropped, or by [`restore`];
//! - a queue is set aside only if nobody else has bound it and no rule or RSS context of others leads to
//!   it, and never queue 0; the step that takes it from the host's own traffic says so;
//! - putting back touches only settings that still are as they were left; what somebody else has set
//!   since stays, and is reported;
//! - a queue that a program still has bound is not given back to the host's traffic;
//! - queues can be leased to a program in another network namespace ([`Lease`]); a lease is undone before the
//!   rest.
//!
//! Minimum kernel: 6.15 for zero-copy receive itself, 6.17 to set the RSS table over netlink; tried on
//! 7.2; 7.1 for leases. Capability: CAP_NET_ADMIN to change settings, CAP_SYS_ADMIN and CAP_BPF to lease queues;
//! none to read settings.

mod change;
mod error;
mod fitness;
mod flow;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod kernel;
mod lease;
mod link;
mod namespace;
mod nic;
mod pair;
mod plan;
mod prepared;
mod queues;
mod redirect;
mod restore;
mod rules;
mod settings;
mod state;
mod undo;

pub use change::Change;
pub use error::{Error, ErrorKind};
pub use fitness::{Obstacle, Weight};
pub use flow::{Flow, Ip};
pub use lease::Lease;
pub use namespace::Namespace;
pub use nic::{Controller, Feature, Nic};
pub use pair::Pair;
pub use plan::{Plan, Step, Wanted};
pub use prepared::{Prepared, Steered};
pub use queues::{Bound, Queue};
pub use restore::{restore, restore_all};
pub use rules::{Rule, Rules, Target};
use settings::even;
pub use settings::{ChannelKind, Channels, Ring, Rings, Table};
pub use state::{Directory, Owner, Record};
pub use undo::Undone;
