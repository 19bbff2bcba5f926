//! The files and disks behind the devices of the bench.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use handoff_command::Failure;
use handoff_testbed::{Disk as _, Joined, NullDisk, instructions};

use super::BlockArgs;
use crate::failure::of_testbed;

/// MiB of each file by default.
const FILE: u64 = 256;
/// MiB of each disk without memory.
const DISK: u64 = 1 << 10;

/// MiB of a mirror's leg. All its chunks are written before a load begins.
const LEG: u64 = 16;
/// MiB of the end of such a leg where it is a disk without memory: the end has memory, for the record.
const END: u64 = 4;

/// What the devices are served from where instructions are counted.
const WITHOUT_MEMORY: &str = "disks without memory (null_blk)";

/// Two files or block devices, and more for mirrors. What was made for the bench is removed on drop.
pub(super) struct Testbed {
    pub(super) paths: [PathBuf; 2],
    /// The legs of a mirror with a record, and of one without; none beside what the user gave.
    pub(super) legs: Option<[[PathBuf; 2]; 2]>,
    pub(super) kind: &'static str,
    _made: Made,
}

enum Made {
    Nothing,
    Files { _directory: tempfile::TempDir },
    Disks { _disks: [NullDisk; 2], _legs: Box<[[Joined<NullDisk, NullDisk>; 2]; 2]> },
}

impl Testbed {
    /// Takes what the user gave. By default the testbed makes disks without memory where instructions are counted,
    /// since a file system's work belongs to no engine, and files where time is measured.
    pub(super) fn new(args: &BlockArgs) -> Result<Self, Failure> {
        match <[PathBuf; 2]>::try_from(args.backing.clone()) {
            Ok(paths) => {
                Ok(Self { paths, legs: None, kind: "what was given", _made: Made::Nothing })
            }
            Err(given) if !given.is_empty() => {
                Err(Failure::Usage(format!("--backing is given twice, not {} times", given.len())))
            }
            Err(_) if instructions::counting() => Self::disks(),
            Err(_) => Self::files(&args.directory),
        }
    }

    fn disks() -> Result<Self, Failure> {
        let disk = |mib| NullDisk::new(mib, 512, 1).map_err(of_testbed);
        let leg = || {
            let end = NullDisk::with_memory(END, 512).map_err(of_testbed)?;
            Joined::new(disk(LEG)?, end).map_err(of_testbed)
        };
        let disks = [disk(DISK)?, disk(DISK)?];
        let legs = Box::new([[leg()?, leg()?], [leg()?, leg()?]]);
        Ok(Self {
            paths: disks.each_ref().map(|disk| disk.path().to_owned()),
            legs: Some(legs.each_ref().map(|two| two.each_ref().map(|leg| leg.path().to_owned()))),
            kind: WITHOUT_MEMORY,
            _made: Made::Disks { _disks: disks, _legs: legs },
        })
    }

    fn files(parent: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::Failed(format!("no files in {}: {error}", parent.display()))
        };
        let directory = tempfile::tempdir_in(parent).map_err(failed)?;
        let make = |name: &str, mib| {
            let path = directory.path().join(name);
            fill(&path, mib).map(|()| path).map_err(failed)
        };
        Ok(Self {
            paths: [make("one", FILE)?, make("two", FILE)?],
            legs: Some([
                [make("leg1", LEG)?, make("leg2", LEG)?],
                [make("leg3", LEG)?, make("leg4", LEG)?],
            ]),
            kind: "files",
            _made: Made::Files { _directory: directory },
        })
    }
}

/// Makes a file and writes all its blocks, so that the file system has nothing to look up.
fn fill(path: &Path, mib: u64) -> io::Result<()> {
    let file = File::create(path)?;
    let zeroes = vec![0; 1 << 20];
    for at in 0..mib {
        file.write_all_at(&zeroes, at << 20)?;
    }
    file.sync_all()
}
