//! The kernel's own loop driver with direct I/O, over the same file or block device.
//!
//! The driver works partly in the calling thread and partly in workers that serve others too, so its cost shows
//! only together with the load's.

use std::path::{Path, PathBuf};

use handoff_testbed::{Disk as _, LoopDisk};

use super::served::Device;
use crate::tasks;

pub(super) struct KernelLoop(LoopDisk);

impl KernelLoop {
    pub(super) fn new(backing: &Path) -> Result<Self, String> {
        LoopDisk::over(backing, 512, true).map(Self).map_err(|error| error.to_string())
    }
}

impl Device for KernelLoop {
    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn threads(&self) -> Vec<PathBuf> {
        tasks::workers()
    }

    fn is_served_by_threads_alone(&self) -> bool {
        false
    }
}
