//! The server's side of a connection.
//!
//! A connection begins with [`Negotiation`], which ends in [`Agreed`]. Then [`Requests`] reads headers, and an [`Answer`]
//! makes the headers of a reply.

mod answer;
mod exports;
mod haggling;
mod negotiation;
mod options;
mod requests;

pub use answer::{Answer, Misuse};
pub use exports::{Export, Exports, Listed, Refused};
pub use negotiation::{Agreed, Limits, Negotiation, Policy, Step, Tls, Violation};
pub use requests::{Event, Expect, RequestViolation, Requests};
