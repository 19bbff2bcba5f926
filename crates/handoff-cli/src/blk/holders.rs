//! Who holds a block device: file systems, swap, other devices, and processes that have it open; and its servers.
//!
//! Only the driver sees what the kernel itself holds for somebody (a descriptor on its way to another
//! process, or in a ring).

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx, sync, syncfs};

/// A holder of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// A file system, by its mount point.
    Mount(String),
    /// Swap.
    Swap,
    /// Another block device, by its name.
    Device(String),
    /// A btrfs file system whose mount is not seen, by its name in sysfs.
    Btrfs(String),
    /// A process that has it open.
    Process { pid: u32, name: String },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(point) => write!(f, "mounted at {point}"),
            Self::Swap => f.write_str("used as swap"),
            Self::Device(name) => write!(f, "part of {name}"),
            Self::Btrfs(name) => write!(f, "part of the btrfs file system {name}"),
            Self::Process { pid, name } => write!(f, "open in {name} (process {pid})"),
        }
    }
}

/// A device of ours with its partitions.
struct Disk {
    /// As in `/sys/class/block` and `/dev`.
    names: Vec<String>,
    /// Major and minor numbers, as in sysfs.
    numbers: Vec<String>,
}

impl Disk {
    fn of(id: u32) -> Self {
        let disk = format!("ublkb{id}");
        let inside = entries(Path::new("/sys/block").join(&disk));
        let partitions = inside.filter(|path| path.join("partition").exists());
        let names: Vec<_> =
            std::iter::once(disk.clone()).chain(partitions.filter_map(|it| name(&it))).collect();
        let number = |name: &String| read(format!("/sys/class/block/{name}/dev"));
        let numbers = names.iter().map(number).collect();
        Self { names, numbers }
    }

    fn is_node(&self, path: &str) -> bool {
        path.strip_prefix("/dev/").is_some_and(|name| self.names.iter().any(|own| own == name))
    }

    /// Devices that are made of it, and loop devices of it.
    fn uppers(&self) -> impl Iterator<Item = String> {
        let above = |name: &String| entries(format!("/sys/class/block/{name}/holders"));
        let made_of_it = self.names.iter().flat_map(above);
        let loops = entries("/sys/block")
            .filter(|disk| self.is_node(&read(disk.join("loop/backing_file"))));
        made_of_it.chain(loops).filter_map(|path| name(&path))
    }

    /// btrfs file systems of which it is a part: their names, and all their devices.
    fn btrfs(&self) -> Vec<(String, Vec<String>)> {
        let devices = |path: &Path| -> Vec<String> {
            entries(path.join("devices")).filter_map(|path| name(&path)).collect()
        };
        let all = entries("/sys/fs/btrfs").filter_map(|path| Some((name(&path)?, devices(&path))));
        all.filter(|(_, devices)| devices.iter().any(|name| self.names.contains(name))).collect()
    }
}

/// A mount of a file system, as a process sees it.
struct Mount {
    /// The mount's own device number: some file systems have numbers that no disk has.
    number: String,
    point: String,
    /// The path by which others reach the point.
    path: PathBuf,
    /// The one device of a btrfs file system that is named.
    btrfs: Option<String>,
}

/// The visible holders of a device or one of its partitions.
pub(super) fn of(id: u32) -> Vec<Holder> {
    let disk = Disk::of(id);
    let mut holders: Vec<_> = disk.uppers().map(Holder::Device).collect();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().filter_map(|line| line.split_whitespace().next()).any(|it| disk.is_node(it)) {
        holders.push(Holder::Swap);
    }
    let btrfs = disk.btrfs();
    let mut seen = Vec::new();
    for process in processes() {
        for mount in mounts(&process.path, &disk, &btrfs) {
            seen.extend(mount.btrfs);
            holders.push(Holder::Mount(mount.point));
        }
        if process.has_open(FileType::BlockDevice, &disk.numbers) {
            let name = read(process.path.join("comm"));
            holders.push(Holder::Process { pid: process.pid, name });
        }
    }
    let unseen = btrfs.into_iter().filter(|(_, all)| !all.iter().any(|name| seen.contains(name)));
    holders.extend(unseen.map(|(name, _)| Holder::Btrfs(name)));
    holders.sort();
    holders.dedup();
    holders
}

/// Processes that serve a device, or could: those that have its char device open.
pub(super) fn servers(id: u32) -> Vec<u32> {
    let number = read(format!("/sys/class/ublk-char/ublkc{id}/dev"));
    let all = processes()
        .filter(|it| it.has_open(FileType::CharacterDevice, std::slice::from_ref(&number)));
    all.map(|process| process.pid).collect()
}

/// Writes what file systems and the page cache still keep for a device; it may take for ever.
pub(super) fn write_back(id: u32) {
    let disk = Disk::of(id);
    let is_plain = |holder: &Holder| matches!(holder, Holder::Mount(_) | Holder::Process { .. });
    let holders = of(id);
    if holders.is_empty() || !holders.iter().all(is_plain) {
        // What file systems keep that have no mount any more, and devices above it.
        sync();
    }
    let btrfs = disk.btrfs();
    let mut done = Vec::new();
    for process in processes() {
        for mount in mounts(&process.path, &disk, &btrfs) {
            if !done.contains(&mount.number)
                && File::open(&mount.path).is_ok_and(|it| syncfs(it).is_ok())
            {
                done.push(mount.number);
            }
        }
    }
    for name in &disk.names {
        let _ = File::open(format!("/dev/{name}")).and_then(|node| node.sync_all());
    }
}

struct Process {
    pid: u32,
    path: PathBuf,
}

impl Process {
    /// Whether it has a device of this kind open that has one of these numbers.
    fn has_open(&self, kind: FileType, numbers: &[String]) -> bool {
        entries(self.path.join("fd")).any(|file| {
            // What the kernel knows: asking a file system might take for ever.
            let known = statx(CWD, &file, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS);
            known.is_ok_and(|it| {
                FileType::from_raw_mode(it.stx_mode.into()) == kind
                    && numbers.contains(&format!("{}:{}", it.stx_rdev_major, it.stx_rdev_minor))
            })
        })
    }
}

fn processes() -> impl Iterator<Item = Process> {
    entries("/proc").filter_map(|path| Some(Process { pid: name(&path)?.parse().ok()?, path }))
}

/// Where file systems on the device are mounted, as a process sees it.
fn mounts(process: &Path, disk: &Disk, btrfs: &[(String, Vec<String>)]) -> Vec<Mount> {
    let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
    mounts_in(&text, &process.join("root"), disk, btrfs)
}

/// The same of the text, with paths below `root`.
fn mounts_in(text: &str, root: &Path, disk: &Disk, btrfs: &[(String, Vec<String>)]) -> Vec<Mount> {
    let of_device = |line: &str| -> Option<Mount> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (number, point) = (fields.next()?, plain(fields.nth(1)?));
        let mut fields = file_system.split(' ');
        let (kind, source, options) = (fields.next()?, plain(fields.next()?), fields.next()?);
        let device = (kind == "btrfs").then(|| fs::canonicalize(&source).ok()).flatten();
        let device = device.and_then(|path| name(&path));
        let with_others = |device: &String| btrfs.iter().any(|(_, all)| all.contains(device));
        // Some file systems have device numbers of their own, and some have several devices: all in the source, a log
        // in an option, or the others unnamed.
        let is = disk.numbers.iter().any(|own| own == number)
            || source.split(':').chain(options.split([',', '='])).any(|it| disk.is_node(it))
            || device.as_ref().is_some_and(with_others);
        let path = root.join(point.trim_start_matches('/'));
        is.then(|| Mount { number: number.to_owned(), point, path, btrfs: device })
    };
    text.lines().filter_map(of_device).collect()
}

/// A path as it is: mountinfo has octal numbers in the place of some characters.
fn plain(path: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")];
    codes.iter().fold(path.to_owned(), |path, (code, character)| path.replace(code, character))
}

fn entries(directory: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// The one line of a file of the kernel's; nothing if there is none.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_number_its_source_an_option_or_the_company_of_the_device() {
        let disk = Disk { names: vec!["ublkb1".to_owned()], numbers: vec!["259:1".to_owned()] };
        // One of several devices, and only another is named; nothing else has that name.
        let others = vec!["null".to_owned(), "ublkb1".to_owned()];
        let btrfs = [("4f3c".to_owned(), others)];
        let text = "\
            29 1 254:1 / / rw - ext4 /dev/vda rw\n\
            40 29 259:1 / /with\\040space rw shared:3 - ext4 /dev/disk/by-label/a rw\n\
            41 29 0:50 /sub /source rw - bcachefs /dev/vdb:/dev/ublkb1 rw\n\
            42 29 259:7 / /log rw - xfs /dev/vdc rw,logdev=/dev/ublkb1,noquota\n\
            43 29 0:51 / /company rw - btrfs /dev/null rw,space_cache=v2\n\
            44 29 0:52 / /other rw - btrfs /dev/zero rw\n\
            45 29 259:2 / /longer rw - ext4 /dev/ublkb10 rw\n";
        let found = mounts_in(text, Path::new("/proc/7/root"), &disk, &btrfs);
        let points: Vec<_> = found.iter().map(|mount| mount.point.as_str()).collect();
        assert_eq!(points, ["/with space", "/source", "/log", "/company"]);
        assert_eq!(found[0].path, Path::new("/proc/7/root/with space"));
        assert_eq!(found[3].btrfs.as_deref(), Some("null"));
    }
}
