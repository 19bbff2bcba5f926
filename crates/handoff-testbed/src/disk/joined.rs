//! Two disks, one behind the other: the device mapper's target linear.
//!
//! Minimum kernel: any.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use super::{
    Disk,
    device_mapper::{Mapped, Part},
};
use crate::driver::load;
use crate::error::{TopologyError, asked};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A disk whose first bytes are those of one disk, and whose last bytes are those of another.
#[derive(Debug)]
pub struct Joined<A, B> {
    // Dropped before the disks below it.
    _mapped: Mapped,
    path: PathBuf,
    _first: A,
    _last: B,
}

impl<A: Disk, B: Disk> Joined<A, B> {
    /// Joins two disks that are not in use.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if the device mapper is absent.
    pub fn new(first: A, last: B) -> Result<Self, TopologyError> {
        load("dm_mod", &[])?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("handoff-joined-{}-{number}", std::process::id());
        let mapped = Mapped::new(name).map_err(asked("make a device of the device mapper"))?;
        let whole = |disk: &dyn Disk| Ok((format!("{} 0", disk.path().display()), disk.bytes()?));
        let [below, above] = [whole(&first)?, whole(&last)?];
        let parts = [&below, &above].map(|(parameters, bytes)| Part {
            kind: "linear",
            parameters,
            bytes: *bytes,
        });
        mapped.set(&parts).map_err(asked("join two disks"))?;
        let path = PathBuf::from(format!("/dev/dm-{}", mapped.number));
        Ok(Self { _mapped: mapped, path, _first: first, _last: last })
    }
}

impl<A: Disk, B: Disk> Disk for Joined<A, B> {
    fn path(&self) -> &Path {
        &self.path
    }
}
