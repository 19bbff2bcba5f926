//! The limits of a device's requests, chosen so that the disks that get their memory accept them.
//!
//! The block layer cuts requests, and refuses some, by the limits that a device announces. Lent memory goes to
//! the backings unchanged. A request that fits the device's limits, but not a backing's, would fail in the
//! server. So a device announces the strictest limits of its backings, except for the length of requests: the
//! block layer cuts requests that are too long for a backing, and does so more cheaply below the server than
//! above it.
//!
//! Kernel interface: `/sys/dev/block/MAJOR:MINOR/queue`, `struct ublk_params` (segments: Linux 6.15;
//! kernels that lend memory are newer).

use std::fs;

use handoff_sys::ublk::{self, Parameters};
use serde::{Deserialize, Serialize};

/// The limits of a device, a disk or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Alignment of memory, in bytes.
    pub memory_alignment: u32,
    /// Two pieces of memory may meet only where these bits are 0 in the end of the first and the start of
    /// the second.
    pub virt_boundary_mask: u64,
    /// Pieces of memory in a request.
    pub max_segments: u16,
    /// Bytes of such a piece.
    pub max_segment_size: u32,
}

impl Limits {
    /// Takes everything.
    pub(crate) const NONE: Self = Self {
        memory_alignment: 1,
        virt_boundary_mask: 0,
        max_segments: u16::MAX,
        max_segment_size: u32::MAX,
    };

    /// Of a file whose disk cannot be told: its file system has several (btrfs), lies on others (overlayfs), or has
    /// none. Those disks may want pieces of memory to meet at pages, as NVMe does; more is not known of any.
    pub(crate) const UNKNOWN: Self = Self { virt_boundary_mask: 4095, ..Self::NONE };

    /// What a disk announces, except the alignment of memory, which statx reports for files as well.
    pub(crate) fn of_disk(device: u64) -> Self {
        fn limit<T: TryFrom<u64>>(device: u64, name: &str) -> Option<T> {
            queue_limit(device, name).and_then(|limit| limit.try_into().ok())
        }
        let Some(virt_boundary_mask) = limit(device, "virt_boundary_mask") else {
            return Self::UNKNOWN;
        };
        Self {
            virt_boundary_mask,
            max_segments: limit(device, "max_segments").unwrap_or(u16::MAX),
            max_segment_size: limit(device, "max_segment_size").unwrap_or(u32::MAX),
            ..Self::NONE
        }
    }

    /// What both take.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            memory_alignment: self.memory_alignment.max(other.memory_alignment),
            virt_boundary_mask: self.virt_boundary_mask | other.virt_boundary_mask,
            max_segments: self.max_segments.min(other.max_segments),
            max_segment_size: self.max_segment_size.min(other.max_segment_size),
        }
    }

    /// Adds the limits to the parameters of a device that lends.
    pub(crate) fn announce(&self, parameters: &mut Parameters) {
        parameters.types |= ublk::PARAM_TYPE_DMA_ALIGN;
        parameters.dma_alignment = self.memory_alignment - 1;
        parameters.virt_boundary_mask = self.virt_boundary_mask;
        // Otherwise the driver's own are the widest.
        if self.max_segments < u16::MAX || self.max_segment_size < u32::MAX {
            parameters.types |= ublk::PARAM_TYPE_SEGMENT;
            parameters.seg_boundary_mask = ublk::WIDEST_SEGMENT_BOUNDARY;
            parameters.max_segment_size = self.max_segment_size;
            parameters.max_segments = self.max_segments;
        }
    }
}

/// A number of a disk's queue in sysfs. A partition uses its disk's queue.
pub(crate) fn queue_limit(device: u64, name: &str) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let told = ["queue", "../queue"].iter().find_map(|queue| {
        fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/{name}")).ok()
    });
    told?.trim().parse().ok()
}
