//! A row's work, which decides which rows compare.

use serde::{Deserialize, Serialize};

/// The operation of the splice bench that passes one page on.
pub(crate) const PASS: &str = "pass";

/// What a row had to do. Rows of the same `op`, `proto`, `bytes`, `mtu`, `target`, `depth`, `rate`,
/// `sockets`, `fan_out`, `segment`, `check`, `gro` and `placement` compare.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Payload bytes per operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The transport protocol: `udp` or `tcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto: Option<String>,
    /// Operations per system call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// True: one return to the caller per operation. False: one per group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<bool>,
    /// Whether the payload lies in buffers registered with the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<bool>,
    /// How sends are handed over: each as a message of its own (`message`), or into a lane (`bulk`). How
    /// received bytes are looked at: by a visitor (`visit`), or as owned spans (`spans`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// The device's MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Where the payload goes: the type of the network device, or how a block device's bytes lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Operations under way at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Sockets that take turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Rings, each in a thread of its own, that receive from one queue of the NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rings: Option<u32>,
    /// Sockets that get the same bytes, one message each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<u32>,
    /// Bytes of each datagram that a message goes as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u16>,
    /// The most payload bytes per second of the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Whether received bytes are compared with what was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<bool>,
    /// Whether frames arrive as the sender passed them on, not as packets of the MTU's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gro: Option<bool>,
    /// Where the receiving thread runs: on the processor of the software interrupts (`same`), on another
    /// one of its core (`sibling`), or on another core (`other`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Bytes of each piece of memory that the NIC puts payload into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u64>,
}

impl Config {
    /// Whether two rows did the same work, so that their speeds compare.
    pub fn same_work(&self, other: &Self) -> bool {
        // How the work was done does not count.
        let work = |config: &Self| Self {
            batch: None,
            flush: None,
            registered: None,
            api: None,
            rings: None,
            chunk: None,
            ..config.clone()
        };
        work(self) == work(other)
    }
}
