//! Where a file lies: a file system on our own block device, which is made of two files or disks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop};
use handoff_testbed::load;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Deserialize;

use super::running::Running;

/// How the two parts of a device are joined.
#[derive(Debug, Clone, Copy)]
pub(super) enum Joined {
    /// The second part follows the first.
    Linear,
    /// The parts take turns.
    Stripe,
}

impl Joined {
    fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Stripe => "stripe",
        }
    }
}

/// A directory on a device of its own, or, if this machine can have none, just a directory.
pub(super) struct Volume {
    directory: PathBuf,
    /// The mount and the device, in the order in which they are dropped; or why there is no device.
    on: Result<(Mounted, Device), String>,
}

impl Volume {
    /// Makes a device of `parts` and a file system on it, and mounts that at `directory`, which is made. The
    /// content of the parts is lost.
    pub(super) fn new(
        directory: PathBuf,
        joined: Joined,
        parts: &[PathBuf; 2],
        stop: &Stop,
    ) -> Result<Self, Failure> {
        fs::create_dir(&directory).failed(&format!("making {}", directory.display()))?;
        let device = match Device::add(joined, parts, stop) {
            Err(Failure::NotPossible(reason)) => {
                return Ok(Self { directory, on: Err(reason) });
            }
            added => added?,
        };
        let mounted = Mounted::new(&device.path, &directory)?;
        Ok(Self { directory, on: Ok((mounted, device)) })
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The device, or why there is none.
    pub(super) fn device(&self) -> Result<&Device, &str> {
        self.on.as_ref().map(|(_, device)| device).map_err(String::as_str)
    }
}

/// A block device that a run of `handoff blk add` serves. Dropping this value, or killing this process, removes
/// the device.
pub(super) struct Device {
    _supervisor: Running,
    path: PathBuf,
    pub(super) engine: String,
    pub(super) joined: &'static str,
}

/// What `handoff blk add` prints.
#[derive(Deserialize)]
struct Added {
    device: PathBuf,
    engine: String,
}

/// Bytes that went through a device since it exists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) read: u64,
    pub(super) written: u64,
}

impl Device {
    fn add(joined: Joined, parts: &[PathBuf; 2], stop: &Stop) -> Result<Self, Failure> {
        load("ublk_drv", &[]).map_err(Failure::not_possible)?;
        let parts = parts.each_ref().map(|part| part.to_string_lossy());
        let joined = joined.name();
        let arguments = ["blk", "add", joined, &parts[0], &parts[1], "--foreground"];
        let mut supervisor = Running::start(None, &arguments)?;
        let Added { device, engine } = supervisor.result(stop)?;
        Ok(Self { _supervisor: supervisor, path: device, engine, joined })
    }

    /// The bytes that went through the device so far.
    ///
    /// Kernel interface: `/sys/block/*/stat`, in sectors of 512 bytes.
    pub(super) fn traffic(&self) -> Result<Traffic, Failure> {
        let name = self.path.file_name().unwrap_or_default();
        let path = Path::new("/sys/block").join(name).join("stat");
        let text = fs::read_to_string(&path).failed(&format!("reading {}", path.display()))?;
        let bytes = |field: usize| {
            let sectors = text.split_whitespace().nth(field)?.parse::<u64>().ok()?;
            sectors.checked_mul(512)
        };
        match (bytes(2), bytes(6)) {
            (Some(read), Some(written)) => Ok(Traffic { read, written }),
            _ => Err(Failure::failed(format!("{} has no sectors: {text}", path.display()))),
        }
    }
}

/// Options of mkfs.ext4 with which only the file itself causes writes.
const LAZY: &str = "lazy_itable_init=0,lazy_journal_init=0";

/// A mounted file system. It is unmounted when this value is dropped.
struct Mounted {
    directory: PathBuf,
}

impl Mounted {
    fn new(device: &Path, directory: &Path) -> Result<Self, Failure> {
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-E", LAZY])
            .arg(device)
            .stdin(Stdio::null())
            .output();
        let output = made.map_err(|error| {
            Failure::not_possible(format!(
                "mkfs.ext4 cannot be run ({error}); remedy: apt-get install e2fsprogs"
            ))
        })?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::failed(format!("mkfs.ext4 {}: {told}", device.display())));
        }
        mount(device, directory, c"ext4", MountFlags::empty(), None)
            .failed(&format!("mounting {}", device.display()))?;
        Ok(Self { directory: directory.to_owned() })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.directory, UnmountFlags::empty()) {
            tracing::warn!("unmounting {}: {error}", self.directory.display());
        }
    }
}

/// Makes two files of `bytes` in `directory`.
pub(super) fn parts(directory: &Path, name: &str, bytes: u64) -> Result<[PathBuf; 2], Failure> {
    let part = |number: u32| -> Result<PathBuf, Failure> {
        let path = directory.join(format!("{name}-{number}"));
        let made = File::create_new(&path).and_then(|file| file.set_len(bytes));
        made.failed(&format!("making {}", path.display()))?;
        Ok(path)
    };
    Ok([part(1)?, part(2)?])
}
