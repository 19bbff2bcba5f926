//! The client's side of a connection.
//!
//! A connection begins with [`Negotiation`], which ends in [`Agreed`]. Then [`Replies`] numbers requests, makes their
//! headers, and reads what comes back.

mod chunk;
mod coverage;
mod haggling;
mod negotiation;
mod replies;
mod table;
mod terms;

pub use chunk::ReplyViolation;
pub use negotiation::{Limits, Negotiation, abort};
pub use replies::{Event, Expect, IssueError, Replies};
pub use table::{Cookie, Failure};
pub use terms::{Agreed, Goal, Listed, NegotiationError, Step, Wish};
