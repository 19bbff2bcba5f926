//! Who holds a block device: file systems, swap, other devices, and processes that have it open.
//!
//! Only the driver sees what the kernel itself holds for somebody (a descriptor on its way to another
//! process, or in a ring).

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A holder of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// A file system, by its mount point.
    Mount(String),
    /// Swap.
    Swap,
    /// Another block device, by its name.
    Device(String),
    /// A process that has it open.
    Process { pid: u32, name: String },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(point) => write!(f, "mounted at {point}"),
            Self::Swap => f.write_str("used as swap"),
            Self::Device(name) => write!(f, "part of {name}"),
            Self::Process { pid, name } => write!(f, "open in {name} (process {pid})"),
        }
    }
}

/// The visible holders of a device or one of its partitions.
pub(super) fn of(id: u32) -> Vec<Holder> {
    let sysfs = PathBuf::from(format!("/sys/block/ublkb{id}"));
    let mut disks = vec![sysfs.clone()];
    let partitions = fs::read_dir(&sysfs).into_iter().flatten().flatten();
    disks.extend(
        partitions.map(|entry| entry.path()).filter(|path| path.join("partition").exists()),
    );
    let mut holders = Vec::new();
    let (mut numbers, mut nodes) = (Vec::new(), Vec::new());
    for disk in &disks {
        let uppers = fs::read_dir(disk.join("holders")).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        holders.extend(uppers.map(|entry| Holder::Device(name(entry))));
        let number = fs::read_to_string(disk.join("dev")).unwrap_or_default();
        numbers.push(number.trim().to_owned());
        nodes.push(format!("/dev/{}", disk.file_name().unwrap_or_default().to_string_lossy()));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|line| nodes.iter().any(|node| first_word(line) == node)) {
        holders.push(Holder::Swap);
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        holders.extend(mounts(&process.path(), &numbers, &nodes));
        if has_open(&process.path(), &numbers) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            holders.push(Holder::Process { pid, name: name.trim().to_owned() });
        }
    }
    holders.sort();
    holders.dedup();
    holders
}

fn first_word(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

/// Where file systems on the device are mounted, as a process sees it.
fn mounts(process: &Path, numbers: &[String], nodes: &[String]) -> Vec<Holder> {
    let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    let of_device = |line: &str| -> Option<Holder> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (number, point) = (fields.next()?, fields.nth(1)?);
        let source = file_system.split(' ').nth(1)?;
        // Some file systems have device numbers of their own.
        let is = numbers.iter().any(|own| own == number) || nodes.iter().any(|node| node == source);
        is.then(|| Holder::Mount(point.to_owned()))
    };
    text.lines().filter_map(of_device).collect()
}

fn has_open(process: &Path, numbers: &[String]) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| {
        fs::metadata(file.path()).is_ok_and(|opened| {
            let (major, minor) =
                (rustix::fs::major(opened.rdev()), rustix::fs::minor(opened.rdev()));
            opened.file_type().is_block_device() && numbers.contains(&format!("{major}:{minor}"))
        })
    })
}
