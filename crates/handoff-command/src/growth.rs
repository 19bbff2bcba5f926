//! How the memory of an rx queue grew, as reports tell it.

use handoff::RxQueue;
use serde::{Deserialize, Serialize};

/// A step in which a NIC got more memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Seconds since the queue was bound.
    pub after_s: f64,
    /// Chunks after this step.
    pub chunks: usize,
    /// What made it grow.
    pub cause: String,
}

impl Growth {
    /// Of a queue, step by step.
    pub fn of(queue: &RxQueue) -> Vec<Self> {
        let step = |step: handoff::RxGrowth| Self {
            after_s: step.after.as_secs_f64(),
            chunks: step.chunks,
            cause: step.cause.to_string(),
        };
        queue.growth().into_iter().map(step).collect()
    }
}
