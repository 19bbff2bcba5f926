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
mod terms;

pub use answer::{Answer, Misuse};
pub use exports::{Export, Exports, Listed, Refused};
pub use negotiation::{Limits, Negotiation};
pub use requests::{Event, Expect, RequestViolation, Requests};
pub use terms::{Agreed, Policy, Step, Tls, Violation};
