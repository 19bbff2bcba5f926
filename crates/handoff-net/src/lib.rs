//! What commands that reach peers share.
//!
//! Contracts:
//! - nothing here waits longer than its caller allows, nor past the stop;
//! - a failure says which address it is about, and which option allows more.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

pub mod address;
pub mod arrived;
pub mod deadline;
pub mod listening;
pub mod nic;
pub mod path;
pub mod proxy;
pub mod rds;
pub mod reach;
