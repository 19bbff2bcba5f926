//! Which bytes a file or disk has: the same ones may be reached by several names.
//!
//! A loop device has the bytes of its file, a file on overlayfs those of the file below. A partition, a disk of
//! device mapper or md, and a file have bytes within the disks that they lie on; two of these may lie side by
//! side.
//!
//! Kernel interface: `/sys/dev/block/MAJOR:MINOR` (`slaves`, `partition`, `loop`).

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::identity;
use crate::record::Part;

/// Disks lie on disks, but not for ever.
const DEEPEST: u32 = 16;

/// Something that has bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// By device and inode.
    File(u64, u64),
    /// By its number.
    Disk(u64),
}

/// The bytes of a file or disk.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    /// What has just these bytes.
    same: Vec<Holder>,
    /// What has these and others.
    around: Vec<Holder>,
}

impl Bytes {
    pub(crate) fn of(part: &Part) -> Self {
        let mut bytes = Self::default();
        match part.inode {
            0 => bytes.add_disk(part.device, true, 0),
            _ => bytes.add_file(part, true, 0),
        }
        bytes
    }

    /// Whether some bytes are among both.
    pub(crate) fn meet(&self, other: &Self) -> bool {
        let is_in =
            |places: &[Holder], others: &[Holder]| places.iter().any(|it| others.contains(it));
        is_in(&self.same, &other.same)
            || is_in(&self.same, &other.around)
            || is_in(&other.same, &self.around)
    }

    /// The loop device, not among these, that has the same file, and that anybody may write to.
    pub(crate) fn loop_device(&self, reads: bool) -> Option<String> {
        let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let mut loops = disks.map(|entry| entry.path()).filter(|disk| disk.join("loop").exists());
        let holds = |disk: &PathBuf| -> Option<bool> {
            let this = Holder::Disk(number(disk)?);
            let part = backing_file(disk)?;
            let is_ours = self.same.contains(&this) || self.around.contains(&this);
            let read_only = fs::read_to_string(disk.join("ro")).is_ok_and(|it| it.trim() == "1");
            let files = [Some((part.device, part.inode)), part.below].into_iter().flatten();
            let mut files = files.map(|(device, inode)| match inode {
                0 => Holder::Disk(device),
                _ => Holder::File(device, inode),
            });
            let counts = !is_ours && (!reads || !read_only);
            Some(counts && files.any(|file| self.same.contains(&file)))
        };
        let disk = loops.find(|disk| holds(disk) == Some(true))?;
        Some(format!("/dev/{}", disk.file_name()?.to_string_lossy()))
    }

    fn add(&mut self, place: Holder, is_same: bool) {
        let places = if is_same { &mut self.same } else { &mut self.around };
        places.push(place);
    }

    fn add_file(&mut self, part: &Part, is_same: bool, depth: u32) {
        self.add(Holder::File(part.device, part.inode), is_same);
        if let Some((device, inode)) = part.below {
            self.add(Holder::File(device, inode), is_same);
        }
        self.add_disk(part.below.map_or(part.device, |(device, _)| device), false, depth);
    }

    fn add_disk(&mut self, disk: u64, is_same: bool, depth: u32) {
        let (major, minor) = (rustix::fs::major(disk), rustix::fs::minor(disk));
        let about = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if depth > DEEPEST || !about.exists() {
            return;
        }
        self.add(Holder::Disk(disk), is_same);
        if about.join("partition").exists() {
            let whole = number(&about.join(".."));
            whole.into_iter().for_each(|whole| self.add_disk(whole, false, depth + 1));
        }
        if let Some(file) = backing_file(&about) {
            let starts = |name| fs::read_to_string(about.join("loop").join(name));
            let is_whole = ["offset", "sizelimit"]
                .iter()
                .all(|it| starts(it).is_ok_and(|it| it.trim() == "0"));
            match file.inode {
                0 => self.add_disk(file.device, is_same && is_whole, depth + 1),
                _ => self.add_file(&file, is_same && is_whole, depth + 1),
            }
        }
        let parts = fs::read_dir(about.join("slaves")).into_iter().flatten().flatten();
        for part in parts.filter_map(|part| number(&part.path())) {
            self.add_disk(part, false, depth + 1);
        }
    }
}

/// The number of a disk in sysfs.
fn number(disk: &Path) -> Option<u64> {
    let text = fs::read_to_string(disk.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The file of a loop device.
fn backing_file(disk: &Path) -> Option<Part> {
    let path = fs::read_to_string(disk.join("loop/backing_file")).ok()?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file =
        File::from(rustix::fs::open(path.trim_end_matches('\n'), flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok()?;
    match metadata.is_file() {
        true => Some(identity::of_file(&file, &metadata)),
        // A loop device of a disk.
        false => Some(Part { device: metadata.rdev(), ..Part::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(same: &[Holder], around: &[Holder]) -> Bytes {
        Bytes { same: same.to_vec(), around: around.to_vec() }
    }

    #[test]
    fn what_lies_side_by_side_does_not_meet() {
        let (file, upper) = (Holder::File(8, 11), Holder::File(44, 11));
        let (disk, loops) = (Holder::Disk(8), Holder::Disk(7 << 8));
        let volumes = [Holder::Disk(1), Holder::Disk(2)].map(|it| bytes(&[it], &[disk]));
        assert!(!volumes[0].meet(&volumes[1]));
        assert!(volumes[0].meet(&bytes(&[disk], &[])) && bytes(&[disk], &[]).meet(&volumes[0]));
        let plain = bytes(&[file], &[disk]);
        for other in [bytes(&[upper, file], &[]), bytes(&[loops, file], &[disk])] {
            assert!(plain.meet(&other) && other.meet(&plain));
        }
        assert!(!plain.meet(&bytes(&[Holder::File(8, 12)], &[disk])));
        // A file on a loop device of the file.
        assert!(bytes(&[Holder::File(9, 1)], &[loops, file]).meet(&plain));
    }
}
