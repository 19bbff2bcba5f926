//! Reliable datagrams (RDS): messages between ports of hosts, ordered, at most once, sent without a
//! copy where the kernel can.
//!
//! - [`wire`]: what the peers put on a TCP connection.
//! - [`protocol`]: the state machine behind it, without I/O.
//! - [`own`]: our own engine, which drives it over TCP with io_uring.
//! - [`kernel`]: the kernel's sockets, with zero copy and completions in batches.

mod completion;
mod error;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
pub mod kernel;
pub mod own;
mod payload;
pub mod protocol;
mod received;
pub mod wire;

pub use completion::{Completion, Completions, End};
pub use error::{Error, Refused, Result};
pub use payload::Payload;
pub use received::Received;
