//! Our own engine: the protocol in user space over TCP; payloads are sent in place.
//!
//! It talks to kernels and to engines like itself. An [`Engine`] is one address, a [`Socket`] one port of
//! it; all of it belongs to one thread's [`Driver`](handoff::Driver).
//!
//! Contracts:
//! - you must poll [`Engine::run`] for anything to happen, beside the code that uses the sockets;
//! - each accepted message comes back by exactly one completion, with its buffer, and only when the kernel
//!   has let go of its pages and the message's fate is known;
//! - short messages that wait together are copied into one send, unless you tell the engine to lend;
//! - a received message is read into memory of exactly its length; if its last bytes are many, they come
//!   straight from the socket. The kernel copies them, as the library has no receive without a copy into
//!   memory of one's choosing;
//! - [`Limits`](crate::protocol::Limits) bounds everything that is kept;
//! - an engine that ends closes its connections; messages not acknowledged then may be lost.
//!
//! An address has one engine, whatever port it listens on, since peers would take a second for a restart of the
//! first: [`Error::AddressInUse`](crate::Error::AddressInUse).
//!
//! Peers with a smaller address connect to TCP port 16385 here. If that port is taken, for example by the
//! kernel's own RDS, which listens in all network namespaces, the engine works only with peers of larger
//! addresses ([`Engine::not_listening`]), and keeps trying to listen for half a minute.
//!
//! Minimum kernel: 4.1 (`tcpi_bytes_acked`); tried on 6.18 and 7.2. Capability: none. Return signal: the
//! send's, and the peer's acknowledgement from `TCP_INFO`. The engine asks for that when something arrives
//! or returns, when the error queue reports the acknowledgement of a send of copies (a time stamp), and
//! otherwise every few milliseconds.

mod changes;
mod claim;
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
