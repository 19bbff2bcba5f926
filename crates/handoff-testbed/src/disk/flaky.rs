//! A disk that fails by schedule: the device mapper's target flakey over another disk.
//!
//! Minimum kernel: 3.1; `ErrorReads` 6.5.

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

/// When the disk fails: it works for `up` seconds, then fails for `down`, and so on, from the moment the
/// schedule is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Seconds for which it works.
    pub up: u32,
    /// Seconds for which it fails.
    pub down: u32,
    /// What failing means.
    pub fault: Fault,
}

impl Schedule {
    /// No failure.
    pub const WORKS: Self = Self { up: 1, down: 0, fault: Fault::Everything };

    /// Failure from now on.
    pub fn fails(fault: Fault) -> Self {
        Self { up: 0, down: 1, fault }
    }
}

/// What a disk does when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every request ends with EIO.
    Everything,
    /// Reads end with EIO.
    ErrorReads,
    /// Writes end with EIO.
    ErrorWrites,
    /// Writes are reported as done and are not.
    DropWrites,
}

impl Fault {
    fn features(self) -> &'static str {
        match self {
            Self::Everything => "",
            Self::ErrorReads => " 1 error_reads",
            Self::ErrorWrites => " 1 error_writes",
            Self::DropWrites => " 1 drop_writes",
        }
    }
}

/// Another disk, with failures.
#[derive(Debug)]
pub struct Flaky<D> {
    // Dropped before the disk below it.
    mapped: Mapped,
    path: PathBuf,
    lower: D,
    bytes: u64,
}

impl<D: Disk> Flaky<D> {
    /// Puts failures in front of `lower`, which must not be in use.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if the target is absent.
    pub fn over(lower: D, schedule: Schedule) -> Result<Self, TopologyError> {
        load("dm_flakey", &[])?;
        let bytes = lower.bytes()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("handoff-flaky-{}-{number}", std::process::id());
        let mapped = Mapped::new(name).map_err(asked("make a device of the device mapper"))?;
        let path = PathBuf::from(format!("/dev/dm-{}", mapped.number));
        let disk = Self { mapped, path, lower, bytes };
        disk.set(schedule)?;
        Ok(disk)
    }

    /// Begins another schedule. Requests under way end first.
    ///
    /// # Errors
    ///
    /// The kernel's error, for instance for a fault that it does not know.
    pub fn set(&self, schedule: Schedule) -> Result<(), TopologyError> {
        let Schedule { up, down, fault } = schedule;
        let lower = self.lower.path().display();
        let parameters = format!("{lower} 0 {up} {down}{}", fault.features());
        self.mapped
            .set(&[Part { kind: "flakey", parameters: &parameters, bytes: self.bytes }])
            .map_err(asked(format!("give a disk the schedule {schedule:?}")))
    }

    /// The disk below.
    pub fn lower(&self) -> &D {
        &self.lower
    }

    /// The disk below, without failures.
    pub fn into_lower(self) -> D {
        self.lower
    }
}

impl<D: Disk> Disk for Flaky<D> {
    fn path(&self) -> &Path {
        &self.path
    }
}
