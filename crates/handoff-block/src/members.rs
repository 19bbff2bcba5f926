//! The disks behind a device, for the rules of udev that hide them (`packaging/udev`): a disk has the same signatures as
//! the device, and who looks for a file system, a volume or a RAID member must find the device only.
//!
//! Contracts:
//! - a device's directory has an empty file `disks/MAJOR:MINOR` for each of its disks, before the device is there; they
//!   go with the directory;
//! - when they have come or gone, udev looks at these disks again. Where there is no udev, nothing does.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Below a device's directory.
const DISKS: &str = "disks";

/// Writes the numbers of a device's disks down.
pub(crate) fn mark(directory: &Path, disks: impl Iterator<Item = u64>) -> io::Result<()> {
    let place = directory.join(DISKS);
    for disk in disks {
        let name = format!("{}:{}", major(disk), minor(disk));
        is_new(fs::create_dir(&place))?;
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(place.join(&name));
        if is_new(file.map(drop))? {
            look_again(&name);
        }
    }
    Ok(())
}

/// Whether something was made that was not there.
fn is_new(made: io::Result<()>) -> io::Result<bool> {
    match made {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// The disks written down.
pub(crate) fn marked(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory.join(DISKS)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Has udev look at a disk and its partitions.
pub(crate) fn look_again(disk: &str) {
    let disk = PathBuf::from("/sys/dev/block").join(disk);
    let entries = fs::read_dir(&disk).into_iter().flatten().flatten().map(|entry| entry.path());
    let partitions: Vec<_> = entries.filter(|path| path.join("partition").exists()).collect();
    for path in [disk].iter().chain(&partitions) {
        if let Err(error) = fs::write(path.join("uevent"), "change") {
            tracing::debug!("udev does not look at {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;
    use crate::state::DIRECTORY;

    const RULES: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/udev/61-handoff-blk.rules"
    ));

    #[test]
    fn disks_are_written_down_where_the_rules_look() {
        let place = tempfile::tempdir().expect("a directory");
        mark(place.path(), std::iter::empty()).expect("nothing to do");
        assert!(!place.path().join(DISKS).exists());
        // No disk has such numbers.
        let disks = [makedev(4000, 7), makedev(4000, 500)];
        for _ in 0..2 {
            mark(place.path(), disks.into_iter()).expect("written");
            let mut found = marked(place.path());
            found.sort();
            assert_eq!(found, ["4000:500", "4000:7"]);
        }
        let pattern = format!("ls -d {DIRECTORY}/*/{DISKS}/$major:$minor'");
        assert!(RULES.contains(&pattern), "{pattern} of {RULES}");
    }

    #[test]
    fn the_rules_hide_a_leg_before_anybody_serves_it() {
        let lines: Vec<_> = RULES.lines().filter(|line| !line.starts_with('#')).collect();
        let place = |part: &str| {
            let found = lines.iter().position(|line| line.contains(part));
            found.unwrap_or_else(|| panic!("{part} is not in {RULES}"))
        };
        let asks = place("IMPORT{program}=\"/usr/bin/handoff blk leg $devnode\"");
        let hides = place("ENV{HANDOFF_BLK_MIRROR}==\"?*\", ENV{HANDOFF_BLK_MEMBER}=\"1\"");
        assert!(asks < hides && hides < place("ENV{HANDOFF_BLK_MEMBER}!=\"1\", GOTO="));
    }
}
