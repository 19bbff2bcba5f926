//! The NBD protocol of both sides, as state machines without I/O.
//!
//! Contracts:
//! - nothing is read, written or waited for here: you feed bytes in pieces of any size, and get events, and bytes to send;
//! - payload never lies in a machine: it says how many of the stream's next bytes are payload, and whose. Feed them, and
//!   they are named; or receive them past the machine and say how many came;
//! - any bytes of a peer give events or a typed error, and never a panic. A length is compared with a limit before memory
//!   is set aside for it, and memory grows with what came, not with what was announced;
//! - after an error of a machine the connection is over: close it.
//!
//! The parts:
//! - [`wire`]: numbers, flags and headers, as they go over the connection (fixed newstyle, structured replies, and the
//!   extension with headers of 64 bits);
//! - [`target`] and [`request`]: what two sides have agreed on, and which requests that allows. Both sides ask it;
//! - [`server`]: negotiation, requests, answers;
//! - [`client`]: negotiation, requests, and replies, which must cover a request exactly;
//! - [`resend`]: which requests a client sends again, and when a flush must fail.
//!
//! The protocol is that of `doc/proto.md` in NetworkBlockDevice/nbd, on the branches `master` and `extension-ext-header`.

pub mod client;
pub mod request;
pub mod resend;
pub mod server;
pub mod target;
pub mod wire;
