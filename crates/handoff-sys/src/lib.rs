//! Kernel ABI that handoff stands on and that the `io-uring` and `libc` crates lack.
//!
//! Nothing here decides anything: constants, layouts checked at compile time, and the setters that
//! a submission entry needs beyond what its builder offers.

pub mod bpf;
pub mod ethtool;
pub mod getbuf;
pub mod hangup;
pub mod netdev;
pub mod netlink;
pub mod pagemap;
pub mod query;
pub mod rds;
pub mod region;
pub mod ring_fd;
pub mod ring_setup;
mod sockopt;
pub mod sqe;
pub mod tcp;
pub mod ublk;
pub mod zcrx;
pub mod zerocopy;
