//! The files and disks behind the devices of the bench.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use handoff_command::Failure;
use handoff_testbed::{Disk as _, NullDisk, instructions};

use super::BlockArgs;
use crate::failure::of_testbed;

/// Bytes of each file by default.
const FILE: u64 = 256 << 20;
/// MiB of each disk without memory.
const DISK: u64 = 1 << 10;

/// What the devices are served from where instructions are counted.
const WITHOUT_MEMORY: &str = "two disks without memory (null_blk)";

/// Two files or block devices. What was made for the bench is removed on drop.
pub(super) struct Testbed {
    pub(super) paths: [PathBuf; 2],
    pub(super) kind: &'static str,
    _made: Made,
}

enum Made {
    Nothing,
    Files { _directory: tempfile::TempDir },
    Disks { _disks: [NullDisk; 2] },
}

impl Testbed {
    /// Takes what the user gave. By default the testbed makes disks without memory where instructions are counted,
    /// since a file system's work belongs to no engine, and files where time is measured.
    pub(super) fn new(args: &BlockArgs) -> Result<Self, Failure> {
        match <[PathBuf; 2]>::try_from(args.backing.clone()) {
            Ok(paths) => Ok(Self { paths, kind: "what was given", _made: Made::Nothing }),
            Err(given) if !given.is_empty() => {
                Err(Failure::Usage(format!("--backing is given twice, not {} times", given.len())))
            }
            Err(_) if instructions::counting() => Self::disks(),
            Err(_) => Self::files(&args.directory),
        }
    }

    fn disks() -> Result<Self, Failure> {
        let disk = || NullDisk::new(DISK, 512, 1).map_err(of_testbed);
        let disks = [disk()?, disk()?];
        let paths = [0, 1].map(|index: usize| disks[index].path().to_owned());
        Ok(Self { paths, kind: WITHOUT_MEMORY, _made: Made::Disks { _disks: disks } })
    }

    fn files(parent: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::Failed(format!("no files in {}: {error}", parent.display()))
        };
        let directory = tempfile::tempdir_in(parent).map_err(failed)?;
        let paths = ["one", "two"].map(|name| directory.path().join(name));
        for path in &paths {
            fill(path).map_err(failed)?;
        }
        Ok(Self { paths, kind: "two files", _made: Made::Files { _directory: directory } })
    }
}

/// Makes a file and writes all its blocks, so that the file system has nothing to look up.
fn fill(path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    let zeroes = vec![0; 1 << 20];
    for at in 0..FILE >> 20 {
        file.write_all_at(&zeroes, at << 20)?;
    }
    file.sync_all()
}
