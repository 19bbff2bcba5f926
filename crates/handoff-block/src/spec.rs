//! What a device is to be.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// How the bytes of a device lie in its files; each is described in its module of
/// [`target`](crate::target).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Nowhere.
    Null,
    /// In one file.
    Loop,
    /// In one file after the other.
    Linear,
    /// Chunk by chunk in each file in turn.
    Stripe,
    /// In each file.
    Mirror,
    /// As the user's own mapping says.
    Policy,
}

/// A device as it was asked for. It is kept beside the device, for whoever has to serve it next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The mapping.
    pub target: Kind,
    /// Files or block devices, in the order of the mapping.
    pub files: Vec<PathBuf>,
    /// Bytes of a device whose files do not say it: one without files, or with a policy; those of all
    /// its files, if not given.
    pub size: Option<u64>,
    /// The object that has the policy.
    pub policy: Option<PathBuf>,
    /// To how many places a policy's device writes.
    pub copies: u32,
    /// The number; the driver's choice if not given.
    pub id: Option<u32>,
    /// Logical block size in bytes, 512 or 4096.
    pub block_size: u32,
    /// Bytes of a stripe's chunk, and of the region that a mirror reads from one leg.
    pub chunk: u64,
    /// Whether the files are opened with O_DIRECT. Without, data is copied into and out of the page
    /// cache.
    pub direct: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Queues, each with a thread.
    pub queues: u16,
    /// Requests under way in each queue.
    pub depth: u16,
    /// Bytes of the largest request.
    pub max_request: u32,
    /// The engine; the best one possible if not given.
    pub engine: Option<Engine>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            target: Kind::Null,
            files: Vec::new(),
            size: None,
            policy: None,
            copies: 1,
            id: None,
            block_size: 512,
            chunk: 64 << 10,
            direct: false,
            read_only: false,
            queues: 1,
            depth: 64,
            max_request: 512 << 10,
            engine: None,
        }
    }
}
