//! The kernel's own sockets, `PF_RDS` over TCP.
//!
//! Contracts:
//! - each accepted message comes back by exactly one completion, with its payload; until then nobody can
//!   touch the payload. A message sent without a copy comes back once the kernel has let go of its pages,
//!   that is when the peer's TCP has acknowledged it; a copied one comes back at once
//!   ([`End::Taken`](crate::End::Taken));
//! - any number of threads may send, receive and take completions on one socket;
//! - if a socket is dropped while payloads are on loan, they leak, because TCP may still read their pages.
//!   With the socket the kernel gives up all messages that peers have not acknowledged, copied ones too;
//!   [`Socket::close`] first waits for the acknowledgements;
//! - completions are read eight at a time, as many as the kernel gives per system call; they are read on
//!   request, and together with received messages.
//!
//! **Peers on the same host.** Lent pages are not copied on their way to a receiver on the same host: they
//! lie in its receive queue when their completion arrives, and it receives whatever you write to them
//! afterwards. So a socket copies to addresses of its own network namespace. **It cannot distinguish peers
//! in other namespaces of the same host (containers) from remote ones: name their addresses to
//! [`Socket::copy_to`], or do not change completed payloads.**
//!
//! Minimum kernel: 4.17; tried on 7.2. Module `rds_tcp`: [`Socket::bind`] makes the kernel load it, unless the
//! system keeps it out, as many do; from then on the kernel listens at TCP port 16385 in all network
//! namespaces. Capability: none. Set-up: `SO_ZEROCOPY`, which [`Socket::bind`] sets; `RLIMIT_MEMLOCK`
//! limits what may be lent. Return signal: `RDS_CMSG_ZCOPY_COMPLETION`.

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
