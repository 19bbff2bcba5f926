//! A disk in memory, by the driver brd: you can read back what you wrote.
//!
//! Minimum kernel: any. The driver makes its disks when it is loaded, so only one can exist at a time.

use std::{
    ffi::CStr,
    path::{Path, PathBuf},
};

use rustix::system::delete_module;

use super::Disk;
use crate::driver::load;
use crate::error::TopologyError;

const DRIVER: &CStr = c"brd";
const DEVICE: &str = "/dev/ram0";

/// The machine's one disk in memory.
#[derive(Debug)]
pub struct RamDisk {
    path: PathBuf,
}

impl RamDisk {
    /// Makes it; `kib` is its size in KiB. Writes allocate the memory.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if the driver is absent, or in use already.
    pub fn new(kib: u64) -> Result<Self, TopologyError> {
        let path = PathBuf::from(DEVICE);
        if path.exists() {
            return Err(TopologyError::Unavailable {
                what: "a disk in memory".into(),
                reason: format!("{DEVICE} is there already; there is one at a time"),
            });
        }
        load("brd", &["rd_nr=1", &format!("rd_size={kib}"), "max_part=0"])?;
        Ok(Self { path })
    }
}

impl Disk for RamDisk {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RamDisk {
    fn drop(&mut self) {
        if let Err(error) = delete_module(DRIVER, libc::O_NONBLOCK) {
            tracing::warn!("the driver brd stays, somebody has its disk open: {error}");
        }
    }
}
