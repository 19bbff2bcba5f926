//! What the commands of handoff share.
//!
//! Contracts:
//! - results go to stdout, with `--json` exactly one JSON value; messages, progress and logs go to stderr;
//! - a failure is one line that says the cause and what to do; [`failure`] has its exit code;
//! - every wait looks at [`Stop`], so that SIGINT, SIGTERM and SIGHUP unwind through the drops that put things back;
//! - what strangers cause as often as they like is said once a second at most.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

pub mod access_log;
pub mod allow_list;
pub mod certificates;
pub mod clock;
pub mod completions;
pub mod context;
pub mod descriptors;
pub mod failure;
pub mod growth;
pub mod logging;
pub mod man;
pub mod named;
pub mod output;
pub mod program;
pub mod progress;
pub mod quantity;
pub mod rate_limit;
pub mod service;
pub mod standard;
pub mod stop;
pub mod threads;

pub use context::Context;
pub use failure::Failure;
pub use stop::Stop;
