//! The kernel ABI that handoff uses and that the `io-uring` and `libc` crates lack.
//!
//! This crate decides nothing: it has constants, layouts checked at compile time, setters for
//! submission entries beyond those of the builder, bare calls, with that of modprobe(8), and where this project's programs
//! are.

pub mod bpf;
pub mod clone_buffers;
pub mod companion;
pub mod dma_buf;
pub mod ethtool;
pub mod getbuf;
pub mod hangup;
pub mod inherited;
pub mod kernel_module;
pub mod ktls;
pub mod netdev;
pub mod netlink;
pub mod netns;
pub mod pagemap;
pub mod process;
pub mod query;
pub mod rds;
pub mod region;
pub mod ring_fd;
pub mod ring_setup;
mod sockopt;
pub mod sqe;
pub mod tcp;
pub mod ublk;
pub mod udp;
pub mod unix;
pub mod workers;
pub mod zcrx;
pub mod zerocopy;
