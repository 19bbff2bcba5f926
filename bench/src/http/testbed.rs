//! The testbed that all rows share: a network, and files of all sizes in a directory.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use handoff_command::Failure;

use super::Job;
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
/// The most connections of a row: each server must serve this many at a time.
pub(super) const MOST_CONNECTIONS: u32 = 1_000;
/// A directory whose file system has a page cache and a disk behind it.
const DIRECTORY: &str = "/var/tmp";

pub(super) struct Testbed {
    network: testbed::Testbed,
    directory: tempfile::TempDir,
    /// The processor that servers run on.
    cpu: usize,
}

impl Testbed {
    /// Makes the network of software NICs, or of veth where there are none, with servers on this processor and
    /// wrk on the others.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(super) fn new(jobs: &[Job], pinned: &Pinned) -> Result<Self, Failure> {
        let load = Load { mtu: MTU, gro: true };
        let mut network = testbed::Testbed::new(load, &Pattern::new(), pinned.others())?;
        network.receive_at_both_ends()?;
        let failed =
            |error: io::Error| Failure::Failed(format!("no files in {DIRECTORY}: {error}"));
        let directory = tempfile::tempdir_in(DIRECTORY).map_err(failed)?;
        let testbed = Self { network, directory, cpu: pinned.cpu() };
        for job in jobs {
            fill(&testbed.path(job.size), job.size).map_err(failed)?;
        }
        Ok(testbed)
    }

    pub(super) fn network(&self) -> &testbed::Testbed {
        &self.network
    }

    /// The directory with the files. Servers keep what else they need there.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The file of `size` bytes. Its name is the number, which requests ask for.
    pub(super) fn path(&self, size: u64) -> PathBuf {
        self.directory().join(size.to_string())
    }

    /// The placeholders of the command of a program that serves at this port.
    pub(super) fn placeholders(&self, port: &Port<'_>) -> Placeholders {
        let mut placeholders = self.network.placeholders(&port.own, self.cpu);
        placeholders.0.push(("root", self.directory().display().to_string()));
        placeholders
    }

    /// Takes a port for one server only: the kernel frees the port of a killed server a while later.
    ///
    /// # Errors
    ///
    /// One line that says that all ports are taken.
    pub(super) fn port(&self) -> Result<Port<'_>, String> {
        Ok(Port { own: self.network.own_port()?, network: &self.network })
    }
}

/// The address of one server.
pub(super) struct Port<'a> {
    own: OwnQueue<'a>,
    network: &'a testbed::Testbed,
}

impl Port<'_> {
    pub(super) fn address(&self) -> (Ipv4Addr, u16) {
        self.network.far_address(self.own.number())
    }

    /// Listens at the port.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn listen(&self) -> Result<TcpListener, String> {
        self.network.listen(self.own.number())
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
