//! The tables of figures of handoff: each bench is one run with its baselines beside it.
//!
//! Contracts:
//!
//! 1. A figure is never compared across runs: all rows of a table alternate in short slots within
//!    one process, and a ratio is the median of the ratios of slots of the same round.
//! 2. Baselines are written here in plain system calls, as well as possible.
//! 3. A row that could not run gives the reason; it is never missing.
//! 4. What a bench makes (namespaces, devices, memory) ends with the process: there is nothing to clean up,
//!    however the bench ends. A user's NIC is put back, after a kill by `handoff nic restore`.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

pub mod block;
pub mod calls;
pub mod command;
pub mod disagreement;
pub mod failure;
mod functions;
pub mod http;
pub mod lab;
pub mod machine;
pub mod measure;
mod network;
pub mod peer;
pub mod processor;
pub mod processors;
pub mod rds;
pub mod recv;
pub mod report;
pub mod run;
mod samples;
pub mod send;
pub mod splice;
pub mod statistics;
pub mod table;
mod tasks;
mod tcp_table;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod user_share;
pub mod witness;
