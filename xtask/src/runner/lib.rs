//! Runs the workspace's test programs on the host and in guests, and counts the results.
//!
//! Contracts:
//! - the modules in a test's path say what it needs: `native` (root, namespaces, a recent kernel),
//!   `guest` (the lab's kernel), `linux73` (Linux 7.3), `lab` (boots guests itself), `soak` (hours),
//!   `fixture` (is the subject of another test, which runs it); a test with none of them is hermetic;
//! - a test passes, fails or skips; a test that cannot run in its place says so with
//!   [`skip!`](macro@handoff_testbed::skip), and counts as skipped with its reason, never as passed;
//! - a skip that the declaration ([`MaySkip`]) does not foresee is a failure;
//! - each test is a process of its own, on the host too: a kernel report, a hang, a crash or something
//!   left behind counts for the test that caused it, and the others still run; when a guest dies, the
//!   next test gets a new one;
//! - a run that was interrupted goes on: tests whose results it is given do not run again;
//! - for a test that failed, one file keeps its output, the guest's console, and where the guest's tasks
//!   stood.

pub mod command;
mod in_guest;
mod keep;
mod libtest;
mod may_skip;
mod on_host;
mod plan;
mod report;
mod selection;
mod workers;

pub use libtest::{Output, Sums};
pub use may_skip::MaySkip;
pub use plan::Plan;
pub use report::{Report, TestResult, Verdict};
pub use selection::{Part, Program, Stage, programs_from_cargo};
pub use workers::run;
