//! The testbed of a tour: two hosts, a volume with a file on one, an empty volume on the other.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop};
use handoff_testbed::{self, Pair, TopologyError};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::volume::{self, Joined, Volume};

/// The name of the file that is sent.
pub(super) const FILE: &str = "file";
/// The MTU of most networks in bytes: its payload fills no page.
const MTU: u32 = 1_500;

/// How the hosts are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joint {
    /// Software NICs with queues, whose DMA engine is a thread.
    Wire,
    /// A pair of veth devices, which copy lent memory.
    Veth,
}

impl Joint {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Veth => "veth",
        }
    }

    pub(super) fn has_queues(self) -> bool {
        self == Self::Wire
    }
}

/// Everything that is set up for a tour. It is removed when this value is dropped.
pub(super) struct Testbed {
    pub(super) near: Volume,
    pub(super) far: Volume,
    pub(super) pair: Pair,
    pub(super) joint: Joint,
    /// The directory is dropped after what lies in it.
    _directory: tempfile::TempDir,
}

/// Counts of bytes during a chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counts {
    /// Bytes read from the near block device.
    pub(super) read: u64,
    /// Bytes written to the far block device.
    pub(super) written: u64,
    /// Bytes moved by the DMA engine; `None` if there is none.
    pub(super) dma: Option<u64>,
}

impl Counts {
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            read: self.read - earlier.read,
            written: self.written - earlier.written,
            dma: self.dma.zip(earlier.dma).map(|(now, then)| now - then),
        }
    }
}

impl Testbed {
    /// Makes the testbed. `parts` are two for each device; without any, files are made in `directory`.
    /// Deviations from a complete tour go into `notes`.
    pub(super) fn new(
        directory: &Path,
        parts: &[PathBuf],
        bytes: u64,
        notes: &mut Vec<String>,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let made = tempfile::Builder::new().prefix("handoff-tour-").tempdir_in(directory);
        let made = made.failed(&format!("a directory in {}", directory.display()))?;
        let (near, far) = match parts {
            [one, two, three, four] => ([one.clone(), two.clone()], [three.clone(), four.clone()]),
            // A part has room for the file and for the file system's own needs.
            _ => {
                let part = bytes + (32 << 20);
                (
                    volume::parts(made.path(), "near", part)?,
                    volume::parts(made.path(), "far", part)?,
                )
            }
        };
        // Nobody else sees the mounts, which go with this process and those that it starts.
        // SAFETY: the flag does not unshare the file table, which is what makes unsharing unsound.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(|errno| {
            Failure::not_possible(format!("cannot make a mount namespace ({errno}); run as root"))
        })?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).failed("making mounts private")?;

        let volume =
            |name: &str, joined, parts| Volume::new(made.path().join(name), joined, parts, stop);
        let near = volume("near-host", Joined::Linear, &near)?;
        let far = volume("far-host", Joined::Stripe, &far)?;
        if let Err(reason) = near.device() {
            notes.push(format!("no block devices of ours, the files lie in a directory: {reason}"));
        }
        if let Err(error) = handoff_testbed::load("getbuf", &[]) {
            notes.push(format!("the page cache does not lend: {error}"));
        }
        if let Err(error) = handoff_testbed::load("rds_tcp", &[]) {
            notes.push(format!("datagrams go by our own engine, not by the kernel: {error}"));
        }
        let (pair, joint) = match Pair::wire(MTU) {
            Ok(pair) => (pair, Joint::Wire),
            Err(error @ TopologyError::Unavailable { .. }) => {
                notes.push(format!("veth copies what is lent, in place of software NICs: {error}"));
                (Pair::new(MTU).map_err(not_made)?, Joint::Veth)
            }
            Err(error) => return Err(not_made(error)),
        };
        let testbed = Self { near, far, pair, joint, _directory: made };
        testbed.fill(bytes, stop)?;
        Ok(testbed)
    }

    /// The counts since everything was set up.
    pub(super) fn counts(&self) -> Result<Counts, Failure> {
        let read = self.near.device().map_or(Ok(0), |device| device.traffic().map(|it| it.read));
        let written =
            self.far.device().map_or(Ok(0), |device| device.traffic().map(|it| it.written));
        let dma = match self.joint {
            Joint::Wire => Some(self.pair.right.dma_bytes().map_err(Failure::failed)?),
            Joint::Veth => None,
        };
        Ok(Counts { read: read?, written: written?, dma })
    }

    /// Writes random bytes into the file.
    fn fill(&self, bytes: u64, stop: &Stop) -> Result<(), Failure> {
        let path = self.near.file(FILE);
        let trying = format!("writing {}", path.display());
        let mut random = File::open("/dev/urandom").failed("/dev/urandom")?;
        let mut file = File::create_new(&path).failed(&trying)?;
        let mut piece = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            stop.check()?;
            let part = &mut piece[..left.min(1 << 20) as usize];
            random.read_exact(part).failed("/dev/urandom")?;
            file.write_all(part).failed(&trying)?;
            left -= part.len() as u64;
        }
        file.sync_all().failed(&trying)
    }
}

fn not_made(error: TopologyError) -> Failure {
    if error.is_unavailable() { Failure::not_possible(error) } else { Failure::failed(error) }
}
