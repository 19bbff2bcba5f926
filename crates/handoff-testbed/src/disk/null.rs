//! A disk that ends every request at once and usually has no memory, by the driver null_blk: reads leave
//! the buffer as it is, writes go nowhere.
//!
//! Minimum kernel: 4.14 (made through configfs).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::mount::{MountFlags, mount};

use super::Disk;
use crate::driver::load;
use crate::error::{TopologyError, asked};

const CONFIGURATION: &str = "/sys/kernel/config/nullb";
const MIB: u64 = 1 << 20;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A disk without memory.
#[derive(Debug)]
pub struct NullDisk {
    configuration: PathBuf,
    path: PathBuf,
}

impl NullDisk {
    /// Makes one of `mib` MiB in blocks of `block` bytes (512 to 4,096), with `queues` hardware
    /// queues. Requests complete in the context that submits them.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if the driver or configfs is absent.
    pub fn new(mib: u64, block: u32, queues: u32) -> Result<Self, TopologyError> {
        Self::with(mib, block, &[("submit_queues", queues.into())])
    }

    /// Makes one that takes little: two pieces of a request's memory meet at the boundary of a page (a
    /// virtual boundary), and a request has at most `most` bytes.
    ///
    /// # Errors
    ///
    /// As of [`new`](Self::new).
    pub fn strict(mib: u64, block: u32, most: u64) -> Result<Self, TopologyError> {
        Self::with(mib, block, &[("virt_boundary", 1), ("max_sectors", most / 512)])
    }

    /// Makes one that has memory after all. It gives ranges back (discard), but does not write zeroes by itself,
    /// and two pieces of a request's memory meet at the boundary of a page.
    ///
    /// # Errors
    ///
    /// As of [`new`](Self::new).
    pub fn with_memory(mib: u64, block: u32) -> Result<Self, TopologyError> {
        Self::with(mib, block, &[("memory_backed", 1), ("discard", 1), ("virt_boundary", 1)])
    }

    fn with(mib: u64, block: u32, special: &[(&str, u64)]) -> Result<Self, TopologyError> {
        load("null_blk", &["nr_devices=0"])?;
        if !Path::new(CONFIGURATION).exists() {
            // At the usual place, where it stays.
            let none = MountFlags::empty();
            let mounted = mount("configfs", "/sys/kernel/config", "configfs", none, None);
            mounted.map_err(|error| TopologyError::Unavailable {
                what: "a disk of null_blk".into(),
                reason: format!("no {CONFIGURATION}, and configfs cannot be mounted: {error}"),
            })?;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("handoff-{}-{number}", std::process::id());
        let configuration = Path::new(CONFIGURATION).join(&name);
        fs::create_dir(&configuration).map_err(asked(format!("make {name}")))?;
        // From here on the drop removes it.
        let mut disk = Self { configuration, path: PathBuf::new() };
        for (attribute, value) in [
            ("memory_backed", 0),
            ("size", mib),
            ("blocksize", block.into()),
            ("queue_mode", 2),
            ("irqmode", 0),
            ("completion_nsec", 0),
        ]
        .iter()
        .chain(special)
        .chain(&[("power", 1)])
        {
            disk.set(attribute, *value)?;
        }
        let index = fs::read_to_string(disk.configuration.join("index"))
            .map_err(asked(format!("find {name}")))?;
        // Older kernels number their disks, newer ones name them as they are configured.
        let named = Path::new("/dev").join(&name);
        let numbered = PathBuf::from(format!("/dev/nullb{}", index.trim()));
        disk.path = if named.exists() { named } else { numbered };
        let bytes = disk.bytes()?;
        assert_eq!(bytes, mib * MIB, "{} is another disk", disk.path.display());
        Ok(disk)
    }

    fn set(&self, attribute: &str, value: u64) -> Result<(), TopologyError> {
        fs::write(self.configuration.join(attribute), value.to_string())
            .map_err(asked(format!("set {attribute} of a disk of null_blk to {value}")))
    }
}

impl Disk for NullDisk {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NullDisk {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.configuration) {
            tracing::warn!("{}: {error}", self.configuration.display());
        }
    }
}
