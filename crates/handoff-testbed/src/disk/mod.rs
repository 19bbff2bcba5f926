//! Disks that exist only in memory, or misbehave on purpose.
//!
//! Contracts:
//!
//! 1. A disk is there, under [`Disk::path`], when its constructor returns, and gone when it is dropped.
//!    After kill -9 a [`LoopDisk`] is gone too. The others stay, because the kernel cannot tie them to a
//!    process; use them in guests, which end with their test.
//! 2. Drivers are loaded by modprobe(8); one that this machine lacks, or forbids this user, is
//!    [`TopologyError::Unavailable`] with the reason.
//!
//! Capability: CAP_SYS_ADMIN, and CAP_SYS_MODULE where the driver is not loaded yet.

mod device_mapper;
mod flaky;
mod joined;
mod logged;
mod looped;
mod null;
mod ram;

use std::{fs::File, io::Seek as _, io::SeekFrom, path::Path};

pub use flaky::{Fault, Flaky, Schedule};
pub use joined::Joined;
pub use logged::{Entry, Logged};
pub use looped::LoopDisk;
pub use null::NullDisk;
pub use ram::RamDisk;

use crate::error::{TopologyError, asked};

/// A block device of one of the kinds here.
///
/// ```no_run
/// use std::path::Path;
/// use handoff_testbed::{Disk, Fault, Flaky, LoopDisk, Schedule, TopologyError};
///
/// # fn main() -> Result<(), TopologyError> {
/// let disk = LoopDisk::new(Path::new("/var/tmp"), 64 << 20, 512, true)?;
/// let flaky = Flaky::over(disk, Schedule { up: 5, down: 1, fault: Fault::ErrorReads })?;
/// println!("{}", flaky.path().display());
/// # Ok(())
/// # }
/// ```
pub trait Disk {
    /// Its device file.
    fn path(&self) -> &Path;

    /// How many bytes it has.
    ///
    /// # Errors
    ///
    /// The error of opening it.
    fn bytes(&self) -> Result<u64, TopologyError> {
        let wrong = || format!("find the size of {}", self.path().display());
        let mut device = File::open(self.path()).map_err(asked(wrong()))?;
        device.seek(SeekFrom::End(0)).map_err(asked(wrong()))
    }
}
