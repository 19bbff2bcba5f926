//! The tables of figures of handoff: each bench is one run with its baselines beside it.
//!
//! Contracts:
//!
//! 1. A figure is never compared across runs: all rows of a table alternate in short slots within
//!    one process, and a ratio is the median of the ratios of slots of the same round.
//! 2. What is named a baseline is written here in plain system calls, as well as it can be.
//! 3. What could not be run is a row with the reason, never a missing row.
//! 4. A bench makes what it needs (namespaces, devices, memory) so that it ends with the process:
//!    there is nothing to clean up, however it ends. A NIC of the user's is put back, and after a kill
//!    `handoff nic restore` does it.

pub mod block;
pub mod calls;
pub mod command;
pub mod context;
pub mod disagreement;
pub mod http;
pub mod lab;
pub mod machine;
pub mod measure;
mod network;
pub mod peer;
pub mod processor;
pub mod processors;
pub mod quantity;
pub mod rds;
pub mod recv;
pub mod report;
pub mod run;
pub mod send;
pub mod splice;
pub mod statistics;
pub mod table;
mod tasks;
#[cfg(test)]
mod testing;
pub mod user_share;
pub mod witness;
