//! What a process behind a device is to do, and what it answers.

use std::io;

use handoff_block::state::Record;
use handoff_block::{Inherited, Spec};
use handoff_command::Failure;
use serde::{Deserialize, Serialize};

/// A server's task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::blk) struct Task {
    pub(in crate::blk) spec: Spec,
    /// The device to take over, instead of making one.
    pub(in crate::blk) recover: Option<u32>,
    /// Says that the last server of the same device ([`Record::made`]) is gone, or will be when this one is
    /// called.
    pub(super) follows: Option<u64>,
    /// Whether to prepare and then wait for a line on stdin.
    pub(super) waits: bool,
    /// What the supervisor holds for the device; `None` for the supervisor itself.
    pub(super) files: Option<Inherited>,
}

impl Task {
    /// A task to make a device, or to take one over if its server is gone.
    pub(in crate::blk) fn new(spec: Spec, recover: Option<u32>) -> Self {
        Self { spec, recover, follows: None, waits: false, files: None }
    }

    /// A task to take over a device whose server is gone.
    pub(super) fn following(record: &Record, id: u32, files: Inherited) -> Self {
        let new = Self::new(record.spec.clone(), Some(id));
        Self { follows: Some(record.made), files: Some(files), ..new }
    }

    /// A new device of which nobody hears must go. One that is taken over has its users.
    pub(in crate::blk) fn heard(&self, told: Result<(), Failure>) -> Result<(), Failure> {
        match told {
            Err(Failure::ReaderGone) if self.recover.is_some() => Ok(()),
            told => told,
        }
    }
}

/// A line on stdout; all but the last one tell how far it is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Legs of a mirror are being compared or made equal: bytes done, and of all.
    Starting { done: u64, all: u64 },
    /// The device is there.
    Serving { id: u32 },
    /// It is not; the text of a [`Failure`].
    Refused { usage: bool, possible: bool, starved: bool, line: String },
}

/// Why there is no server.
#[derive(Debug)]
pub(super) struct NoServer {
    pub(super) failure: Failure,
    /// Whether memory, processes, threads or descriptors were short.
    pub(super) starved: bool,
}

impl From<Failure> for NoServer {
    fn from(failure: Failure) -> Self {
        Self { failure, starved: false }
    }
}

impl From<NoServer> for Failure {
    fn from(none: NoServer) -> Self {
        none.failure
    }
}

pub(super) fn no_thread(error: io::Error) -> NoServer {
    let failure = Failure::failed(format!("a thread cannot be started: {error}"));
    NoServer { failure, starved: true }
}
