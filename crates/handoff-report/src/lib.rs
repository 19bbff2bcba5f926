//! `handoff report`: one page of what handoff does on a machine.
//!
//! Contracts:
//!
//! 1. A page is one file that loads nothing: no script, no font, no picture from elsewhere; the
//!    browser is told to refuse them. What is drawn is also there as JSON, from which the same page
//!    can be drawn again.
//! 2. What was measured natively and what under emulation stands apart, and the latter is marked by
//!    that word wherever a figure of it stands.
//! 3. What could not be measured is on the page with the reason.
//! 4. A page appears by rename, whole or not at all.

mod availability;
mod command;
mod copied;
mod curve;
mod earlier;
mod findings;
mod gather;
mod page;
mod plot;
mod rows;
mod seed_table;
mod seeds;

pub use availability::Mechanism;
pub use command::{ReportArgs, run};
pub use findings::{Availability, Findings, Place, Run};
pub use page::page;
