//! What engines work on: the way into the kernel, the records of operations, and what waits to start.

mod budget;
mod deadlines;
mod lanes;
mod left;
mod lingering;
mod pipes;
mod resets;
mod state;
mod unclaimed;
mod waits;

pub use budget::LoanStats;
pub(crate) use budget::MOST as UNCLAIMED_LOANS;
pub(crate) use deadlines::{Deadline, Then};
pub(crate) use pipes::Pipe;
pub(crate) use state::Core;
