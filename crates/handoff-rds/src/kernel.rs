//! The kernel's own sockets, `PF_RDS` over TCP.
//!
//! Contracts:
//! - each accepted message comes back by exactly one completion, with its payload; until then the
//!   payload cannot be touched. What was sent without a copy comes back once the kernel has let go of
//!   its pages, which it does when the peer's TCP has acknowledged the message; what was copied comes
//!   back at once ([`End::Taken`](crate::End::Taken));
//! - any number of threads may send, receive and take completions on one socket;
//! - a socket that is dropped while payloads are lent leaks them, because TCP may still read their
//!   pages. The kernel gives up, with the socket, all messages that peers have not acknowledged, copied
//!   ones too; [`Socket::close`] waits for the acknowledgements first;
//! - completions are read eight at a time, which is what the kernel gives for one system call; they
//!   are read when they are asked for, and along with received messages.
//!
//! **Peers on the same host.** Lent pages are not copied on their way to a receiver on the same host:
//! they stand in its receive queue when their completion arrives, and what is written to them from
//! then on is what it receives. For addresses of its own network namespace a socket therefore copies.
//! **Peers in other namespaces of the same host (containers) cannot be told from remote ones: name
//! their addresses to [`Socket::copy_to`], or leave completed payloads as they are.**
//!
//! Minimum kernel: 4.17; tried on 7.2. Module `rds_tcp`, which the kernel does not load by itself;
//! many systems keep it out. Capability: none. Set-up: `SO_ZEROCOPY`, which [`Socket::bind`] sets;
//! `RLIMIT_MEMLOCK` bounds what may be lent. Return signal: `RDS_CMSG_ZCOPY_COMPLETION`.

mod control;
mod information;
mod locality;
mod receiving;
mod sending;
mod slots;
mod socket;

pub use information::{Bound, Connection, Counter, Information, Queue, Queued};
pub use sending::Mode;
pub use socket::{Closed, Socket, Statistics};
