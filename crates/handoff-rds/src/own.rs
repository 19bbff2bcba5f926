//! Our own engine: the protocol in user space over TCP, payloads sent from where they are.
//!
//! It talks to kernels and to its like. An [`Engine`] is one address, a [`Socket`] one port of it; all
//! of it belongs to one thread's [`Driver`](handoff::Driver).
//!
//! Contracts:
//! - [`Engine::run`] has to be polled for anything to happen, beside whatever uses the sockets;
//! - each accepted message comes back by exactly one completion, with its buffer, and only when the
//!   kernel has let go of its pages and the message's fate is known;
//! - short messages that wait together are copied into one send, unless the engine is told to lend;
//! - a received message is read into memory of just its length, whose last bytes come straight from
//!   the socket where they are many; the kernel copies them, as the library has no receive without a
//!   copy that could end in memory of one's choosing;
//! - what is kept is bounded by [`Limits`](crate::protocol::Limits);
//! - an engine that ends closes its connections; what was not acknowledged then may be lost.
//!
//! Peers with a smaller address connect to TCP port 16385 here. Where that port is taken, for one by
//! the kernel's own RDS, which listens in all network namespaces, the engine works with peers of larger
//! addresses only ([`Engine::not_listening`]), and tries for half a minute to listen after all.
//!
//! Minimum kernel: 4.1 (`tcpi_bytes_acked`); tried on 6.18 and 7.2. Capability: none. Return signal: the
//! send's, and the peer's acknowledgement as `TCP_INFO` tells it, which is asked for when something
//! arrives or returns, when the error queue tells of the acknowledgement of a send of copies (a time
//! stamp), and else every few milliseconds.

mod changes;
mod clock;
mod connecting;
mod engine;
mod link;
mod packing;
mod reading;
mod refusals;
mod socket;
mod writing;

pub use engine::Engine;
pub use socket::Socket;
