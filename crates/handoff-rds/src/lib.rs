//! Reliable datagrams (RDS): messages between ports of hosts, ordered, at most once, sent without a
//! copy where the kernel can.
//!
//! - [`wire`]: what the peers put on a TCP connection.
//! - [`protocol`]: the state machine behind it, without I/O.
//! - [`kernel`]: the kernel's sockets, with zero copy and completions in batches.

mod completion;
mod error;
pub mod kernel;
mod payload;
pub mod protocol;
pub mod wire;

pub use completion::{Completion, Completions, End};
pub use error::{Error, Refused, Result};
pub use payload::Payload;
