//! What tests and benches stand on.
//!
//! - [`Namespace`]s, the devices in them ([`Pair`], [`Discard`]) and what befalls their packets ([`Netem`]);
//! - block devices ([`Disk`]) of memory or files, and such as fail;
//! - [`running`] programs, and [`helpers`];
//! - [`skip!`]: how a test says that it cannot run here.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod child;
mod disk;
mod driver;
mod error;
pub mod helpers;
pub mod instructions;
pub mod running;
pub mod skip;
mod topology;

pub use child::die_with_us;
pub use disk::{Disk, Entry, Fault, Flaky, Joined, Logged, LoopDisk, NullDisk, RamDisk, Schedule};
pub use driver::load;
pub use error::TopologyError;
pub use topology::{
    Discard, DiscardKind, Namespace, NamespaceGuard, Netem, Pair, PairEnd, Side,
    enter_user_namespace, virtio_mac,
};
