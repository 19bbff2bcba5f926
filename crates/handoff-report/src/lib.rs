//! `handoff report`: one page that shows what handoff does on a machine.
//!
//! Contracts:
//!
//! 1. A page is one file that loads nothing: no script, no font, no picture from elsewhere; its policy
//!    makes the browser refuse them. It contains its data as JSON, from which the same page can be drawn
//!    again.
//! 2. Native and emulated figures are kept apart, and the latter always carry the word `emulated`.
//! 3. The page names what could not be measured, with the reason.
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

pub use command::{ReportArgs, run};
pub use findings::{Availability, Environment, Findings, Run};
pub use page::page;
