//! The common bed of all rows: a network, and files of all sizes in a directory.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use super::Job;
use handoff_command::Failure;

use crate::{
    network::{
        bed::{self, Load},
        far::Network as _,
        pattern::Pattern,
        queues::OwnQueue,
    },
    peer::Placeholders,
    processor::Pinned,
};

/// Of the network.
pub(super) const MTU: u32 = 1_500;
/// That a server must serve at a time.
pub(super) const MOST_CONNECTIONS: u32 = 1_000;
/// A file system with a page cache and a disk behind it.
const DIRECTORY: &str = "/var/tmp";

pub(super) struct Bed {
    network: bed::Bed,
    directory: tempfile::TempDir,
    /// The servers' processor.
    cpu: usize,
}

impl Bed {
    /// Over software NICs, or veth without them, with servers on this processor and wrk on the others.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub(super) fn new(jobs: &[Job], pinned: &Pinned) -> Result<Self, Failure> {
        let load = Load { mtu: MTU, gro: true };
        let mut network = bed::Bed::new(load, &Pattern::new(), pinned.others())?;
        network.receive_at_both_ends()?;
        let failed =
            |error: io::Error| Failure::Failed(format!("no files in {DIRECTORY}: {error}"));
        let directory = tempfile::tempdir_in(DIRECTORY).map_err(failed)?;
        let bed = Self { network, directory, cpu: pinned.cpu() };
        for job in jobs {
            fill(&bed.path(job.size), job.size).map_err(failed)?;
        }
        Ok(bed)
    }

    pub(super) fn network(&self) -> &bed::Bed {
        &self.network
    }

    /// Where the files are, and what else servers need.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The file of so many bytes. Requests ask for its name.
    pub(super) fn path(&self, size: u64) -> PathBuf {
        self.directory().join(size.to_string())
    }

    /// What to tell a program that serves at this port.
    pub(super) fn placeholders(&self, port: &Port<'_>) -> Placeholders {
        let mut placeholders = self.network.placeholders(&port.own, self.cpu);
        placeholders.0.push(("root", self.directory().display().to_string()));
        placeholders
    }

    /// A port for one server only: the kernel frees the port of a killed server a while later.
    ///
    /// # Errors
    ///
    /// When all are taken, in one line.
    pub(super) fn port(&self) -> Result<Port<'_>, String> {
        Ok(Port { own: self.network.own_port()?, network: &self.network })
    }
}

/// The address of one server.
pub(super) struct Port<'a> {
    own: OwnQueue<'a>,
    network: &'a bed::Bed,
}

impl Port<'_> {
    pub(super) fn address(&self) -> (Ipv4Addr, u16) {
        self.network.far_address(self.own.number())
    }

    /// Listens there.
    ///
    /// # Errors
    ///
    /// What is wrong, in one line.
    pub(super) fn listen(&self) -> Result<TcpListener, String> {
        self.network.listen(self.own.number())
    }
}

/// On the disk, so that its pages are written back before anybody sends them, and in the page cache.
fn fill(path: &Path, size: u64) -> io::Result<()> {
    let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
    let mut file = File::create(path)?;
    file.write_all(&content)?;
    file.sync_all()?;
    fs::read(path).map(drop)
}
