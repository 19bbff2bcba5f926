//! The way into the kernel: one io_uring with its queues and tables, or epoll where there is none.

mod alarm;
mod backend;
pub(crate) mod endpoint;
mod epoll;
mod features;
mod instance;
mod keeper;
#[cfg(all(test, handoff_loom))]
mod models;
mod queues;
pub(crate) mod refill;
mod registering;
pub(crate) mod slots;
mod sq_poll;
pub(crate) mod teardown;
pub(crate) mod token;
mod unpark;
mod until;

pub(crate) use alarm::Alarm;
pub(crate) use backend::{Backend, Io};
pub(crate) use endpoint::{Endpoint, FileKind, Parked, Target};
pub(crate) use epoll::{Epoll, Ready};
pub(crate) use instance::{MAX_REQUEST, Ring};
pub(crate) use keeper::let_go_of_kept;
pub(crate) use queues::{BATCH, Batch, Completion, RawSpan, Shape};
pub(crate) use slots::memlock_or;
pub(crate) use sq_poll::SqPoll;
pub(crate) use token::{Key, Token};
pub(crate) use unpark::Unpark;
pub(crate) use until::Until;

/// Where there can be no ring.
#[cfg(test)]
pub(crate) mod skip {
    use std::io::{self, Write};

    /// `None`, with a line for the summary. `test` has its modules.
    pub(crate) fn told<T>(ring: io::Result<T>, test: &str) -> Option<T> {
        let line = |error: &io::Error| format!("\nHANDOFF-SKIP {test}: no ring: {error}\n");
        // Not captured by the test harness.
        let skipped = |error: &io::Error| io::stdout().write_all(line(error).as_bytes()).unwrap();
        ring.inspect_err(skipped).ok()
    }
}
