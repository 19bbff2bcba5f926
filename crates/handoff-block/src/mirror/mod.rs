//! A mirror that knows which leg is right: what its legs say about it, and what the user wants.
//! `docs/mirror-design.md` has the whole.
//!
//! Contracts:
//! - each leg carries a [`LegRecord`](leg_record::LegRecord) at its end. A leg whose data another leg lacks says so
//!   in its record before anybody relies on it, so [`decide`](start::decide) never guesses;
//! - the bit of a chunk is durable on every leg in use before a write to the chunk starts on any leg, and it is
//!   cleared only when all legs have the chunk durably ([`intent`]);
//! - a damaged bit counts as set, a damaged record as none.

pub(crate) mod assembly;
mod bitmap;
pub(crate) mod clerk;
mod create;
mod desk;
pub(crate) mod equal;
mod hints;
mod intent;
mod layout;
mod leg_record;
mod legs;
mod making;
mod page;
mod room;
mod signature;
#[cfg(test)]
mod simulation;
mod start;
