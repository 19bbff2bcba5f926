//! Files into a guest and out of it.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result, Trying};
use crate::guest::Guest;
use crate::job::{Job, Stream};
use crate::machine::Machine;

impl Guest {
    /// Copies the files of the machine's description into the guest.
    pub(crate) fn unpack(&mut self, machine: &Machine) -> Result<()> {
        if machine.puts.is_empty() {
            return Ok(());
        }
        let disk = "/dev/disk/by-id/virtio-payload";
        let job =
            Job::new(["tar", "--extract", "--no-same-owner", "--directory=/", "--file", disk]);
        let (outcome, _, errors) = self.run_captured(&job)?;
        if outcome.success() {
            return Ok(());
        }
        let why = match outcome.fault {
            Some(fault) => format!("the kernel reported: {fault}"),
            None => String::from_utf8_lossy(&errors).trim().to_owned(),
        };
        Err(Error::Failed(format!(
            "files could not be put into the guest (its disk holds 4 GiB): {why}"
        )))
    }

    /// Copies a file or directory of the guest to the host. A `target` that is a directory gets
    /// it under its own name.
    ///
    /// # Errors
    ///
    /// If the guest has no such file, or the host cannot store it.
    pub fn get(&mut self, source: &Path, target: &Path) -> Result<()> {
        let what = source.display();
        let name = source
            .file_name()
            .ok_or_else(|| Error::Usage(format!("{what}: not a file or directory of the guest")))?;
        let target = if target.is_dir() { target.join(name) } else { target.to_owned() };
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent_of_source = source.parent().unwrap_or(Path::new("/"));
        let job = Job::new([
            b"tar".as_slice(),
            b"--create",
            b"--directory",
            parent_of_source.as_os_str().as_bytes(),
            b"--file=-",
            b"--",
            name.as_bytes(),
        ]);
        let mut packed = tempfile::tempfile_in(parent).trying(parent.display())?;
        let mut errors = Vec::new();
        let outcome = self.run(&job, |stream, bytes| match stream {
            Stream::Output => packed.write_all(bytes),
            Stream::Error => errors.write_all(bytes),
        })?;
        if !outcome.success() {
            let errors = String::from_utf8_lossy(&errors);
            return Err(Error::Failed(format!("{what} of the guest: {}", errors.trim())));
        }
        io::Seek::rewind(&mut packed).trying(what)?;
        // Unpacked beside the target, so that the rename is one step.
        let place = tempfile::tempdir_in(parent).trying(parent.display())?;
        let mut archive = tar::Archive::new(packed);
        archive.set_preserve_permissions(true);
        archive.unpack(place.path()).trying(target.display())?;
        std::fs::rename(place.path().join(name), &target).trying(target.display())
    }
}
