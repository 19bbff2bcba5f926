//! Atomics, locks and shared words: the standard library's, or loom's where its models run.
//!
//! Modules whose state threads share take these from here. Their models lie beside them, in `models.rs`;
//! docs/testing.md says how to run them. `Arc` is the standard library's everywhere: loom does not see what it orders,
//! so the models show that the modules need no order from it.

#[cfg(all(test, handoff_loom))]
mod modelled;
#[cfg(not(all(test, handoff_loom)))]
mod plain;

#[cfg(all(test, handoff_loom))]
pub(crate) use modelled::*;
#[cfg(not(all(test, handoff_loom)))]
pub(crate) use plain::*;
