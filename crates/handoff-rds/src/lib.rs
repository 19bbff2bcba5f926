//! Reliable datagrams (RDS): messages between ports of hosts, ordered, at most once, sent without a
//! copy where the kernel can.
//!
//! - [`wire`]: what the peers put on a TCP connection.
//! - [`protocol`]: the state machine behind it, without I/O.

mod completion;
mod error;
pub mod protocol;
pub mod wire;

pub use completion::{Completion, Completions, End};
pub use error::{Error, Refused, Result};
