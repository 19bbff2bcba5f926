//! What the engines of a device have counted, in words.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::request::{Failure, OPS, Statistics};

/// Counters of a device's engines since it was made.
///
/// [`Directory::counters`](crate::state::Directory::counters) returns them.
#[derive(Clone, Debug, Serialize)]
pub struct Counters {
    /// Legs of a mirror that are out, by their place in the list of files.
    pub failed_legs: Vec<u32>,
    /// The requests that took them out.
    pub failures: Vec<LegFailure>,
    /// By queue.
    pub queues: Vec<QueueCounters>,
}

/// The request that took a leg of a mirror out.
#[derive(Clone, Debug, Serialize)]
pub struct LegFailure {
    /// The leg, by its place in the list of files.
    pub leg: u32,
    /// Its operation: `read`, `write`, `flush`, `discard` or `write_zeroes`; `recover` if a later server did not
    /// find the leg, or found another; `record` if the leg did not take what it has to say about the mirror.
    pub operation: &'static str,
    /// Its first byte on the device.
    pub position: u64,
    /// Its length; 0 for a flush.
    pub length: u32,
    /// The error number from the leg.
    pub error: i32,
}

impl LegFailure {
    pub(crate) fn of((leg, noted): (u32, Failure)) -> Self {
        let name = NAMES.get(noted.op as usize).copied().flatten();
        let operation = name.unwrap_or(match noted.op {
            RECOVER => "recover",
            RECORD => "record",
            _ => "unknown",
        });
        let Failure { position, length, error, .. } = noted;
        Self { leg, operation, position, length, error: error.saturating_neg() }
    }
}

impl fmt::Display for LegFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.error);
        if matches!(self.operation, "recover" | "record") {
            return write!(f, "{}: {error}", self.operation);
        }
        write!(f, "{} of {} bytes at {}: {error}", self.operation, self.length, self.position)
    }
}

/// The operation of a leg's note that no request has made.
pub(crate) const RECOVER: u32 = u32::MAX;
/// The note of a leg that did not take the mirror's record or bitmap.
pub(crate) const RECORD: u32 = u32::MAX - 1;

/// The names of operations.
const NAMES: [Option<&str>; OPS] =
    [Some("read"), Some("write"), Some("flush"), Some("discard"), None, Some("write_zeroes")];

/// The counters of one queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueCounters {
    /// Requests that failed.
    pub errors: u64,
    /// Submissions to the files.
    pub pieces: u64,
    /// Of these, continuations after a short result.
    pub continued: u64,
    /// Turns of the engine's loop.
    pub turns: u64,
    /// By operation.
    pub operations: Vec<Operation>,
}

/// One kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub name: &'static str,
    /// Answered without an error.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time from arrival to the first result of a file.
    pub first_result: Vec<Bucket>,
    /// Time from arrival to the answer.
    pub answer: Vec<Bucket>,
}

/// Requests that took so long.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bucket {
    /// At least, in nanoseconds; less than twice as long.
    pub from_ns: u64,
    /// How many.
    pub requests: u32,
}

impl From<&Statistics> for QueueCounters {
    fn from(statistics: &Statistics) -> Self {
        let buckets = |counts: &[u32]| {
            let filled = counts.iter().enumerate().filter(|(_, requests)| **requests > 0);
            filled
                .map(|(bucket, requests)| Bucket { from_ns: 1 << bucket, requests: *requests })
                .collect::<Vec<_>>()
        };
        let operations = NAMES.iter().enumerate().filter_map(|(op, name)| {
            let operation = Operation {
                name: (*name)?,
                requests: statistics.requests[op],
                bytes: statistics.bytes[op],
                first_result: buckets(&statistics.latency[0][op]),
                answer: buckets(&statistics.latency[1][op]),
            };
            (!operation.answer.is_empty()).then_some(operation)
        });
        Self {
            errors: statistics.errors,
            pieces: statistics.pieces,
            continued: statistics.continued,
            turns: statistics.turns,
            operations: operations.collect(),
        }
    }
}
