//! The testbed that all rows share: a network, a certificate, and files of all sizes in a directory.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use handoff_command::Failure;
use rustix::thread::CpuSet;

use super::identity::Identity;
use crate::{
    network::{
        far::Network as _,
        pattern::Pattern,
        queues::OwnQueue,
        testbed::{self, Load},
    },
    peer::Placeholders,
    processor::Pinned,
};

/// The network's MTU in bytes.
pub(super) const MTU: u32 = 1_500;
/// A directory whose file system has a page cache and a disk behind it.
const DIRECTORY: &str = "/var/tmp";
/// Bytes of the file that pieces are taken from, and put into.
pub(super) const LENGTH: u64 = 4 << 20;

pub(super) struct Testbed {
    network: testbed::Testbed,
    pub(super) identity: Arc<Identity>,
    directory: tempfile::TempDir,
    /// The processor of measured ends.
    cpu: usize,
}

impl Testbed {
    /// Makes the network of software NICs, or of veth where there are none, with the measured end on this processor.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(super) fn new(sizes: &[u64], pinned: &Pinned) -> Result<Self, Failure> {
        let load = Load { mtu: MTU, gro: true };
        let mut network = testbed::Testbed::new(load, &Pattern::new(), pinned.others())?;
        network.receive_at_both_ends()?;
        let failed =
            |error: io::Error| Failure::Failed(format!("no files in {DIRECTORY}: {error}"));
        let directory = tempfile::tempdir_in(DIRECTORY).map_err(failed)?;
        let identity = Arc::new(Identity::new().map_err(Failure::Failed)?);
        let testbed = Self { network, identity, directory, cpu: pinned.cpu() };
        for &size in sizes.iter().chain([&LENGTH]) {
            fill(&testbed.path(size), size).map_err(failed)?;
        }
        Ok(testbed)
    }

    pub(super) fn network(&self) -> &testbed::Testbed {
        &self.network
    }

    pub(super) fn others(&self) -> CpuSet {
        self.network.others()
    }

    /// The directory with the files, where programs keep what else they need.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The file of `size` bytes, whose name is the number.
    pub(super) fn path(&self, size: u64) -> PathBuf {
        self.directory().join(size.to_string())
    }

    /// The placeholders of the command of a program at this port.
    pub(super) fn placeholders(&self, own: &OwnQueue<'_>, bytes: u64) -> Placeholders {
        let mut placeholders = self.network.placeholders(own, self.cpu);
        let (certificate, key) = self.identity.files();
        placeholders.0.extend([
            ("bytes", bytes.to_string()),
            ("root", self.directory().display().to_string()),
            ("certificate", certificate.display().to_string()),
            ("key", key.display().to_string()),
        ]);
        placeholders
    }
}

/// Makes a file on the disk and reads it into the page cache. Its pages are written back before anybody sends them.
fn fill(path: &Path, size: u64) -> io::Result<()> {
    let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
    let mut file = File::create(path)?;
    file.write_all(&content)?;
    file.sync_all()?;
    fs::read(path).map(drop)
}
