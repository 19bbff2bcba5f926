//! The file that a copy makes: it appears under its name whole, or not at all.
//!
//! Contracts:
//! - until [`Destination::commit`] the bytes are in a file without a name (`O_TMPFILE`), which the kernel
//!   frees however this process ends; if the file system has no such files, in a file of another name
//!   beside it, which a drop removes and kill -9 leaves behind;
//! - an existing file is not touched without `force`, and with it replaced in one step;
//! - pipes and character devices are not replaced: they are written in place.
//!
//! Kernel interface: open(2) `O_TMPFILE` (Linux 3.11), linkat(2), rename(2).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_OMIT, futimens, linkat, statvfs,
};
use rustix::io::Errno;

use super::wire::Attributes;
use crate::Failure;

/// Where a copy goes.
#[derive(Debug)]
pub(super) enum Target {
    /// A regular file to be made.
    File(Destination),
    /// A pipe, terminal or character device, to open and write in order.
    Stream(PathBuf),
}

/// A regular file before it has its name.
#[derive(Debug)]
pub(super) struct Destination {
    /// Its future path.
    path: PathBuf,
    file: File,
    force: bool,
    /// Its name meanwhile, if the file system has no files without one.
    temporary: Option<PathBuf>,
}

fn failed(action: &str, path: &Path, error: impl Into<io::Error>) -> Failure {
    Failure::failed(format!("{action} {}: {}", path.display(), error.into()))
}

/// An existing file stands in the way, unless it may be replaced.
fn exists(path: &Path) -> Failure {
    Failure::failed(format!("{} exists: --force replaces it", path.display()))
}

/// Opens `path` as the destination of a copy.
///
/// # Errors
///
/// An existing file without `force`, something that cannot be replaced, and errors of the file system.
pub(super) fn open(path: &Path, force: bool) -> Result<Target, Failure> {
    let mut path = path.to_owned();
    match fs::metadata(&path) {
        Ok(there) if there.is_dir() => {
            return Err(Failure::usage(format!(
                "{} is a directory: name the file to make in it",
                path.display()
            )));
        }
        Ok(there) if there.file_type().is_fifo() || there.file_type().is_char_device() => {
            return Ok(Target::Stream(path));
        }
        Ok(there) if !there.is_file() => {
            return Err(Failure::usage(format!(
                "{} is a block device or a socket, and is not written to",
                path.display()
            )));
        }
        Ok(_) if !force => return Err(exists(&path)),
        // The target of a symbolic link is replaced, not the link.
        Ok(_) => path = fs::canonicalize(&path).map_err(|error| failed("finding", &path, error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("looking at", &path, error)),
    }
    if path.file_name().is_none() {
        return Err(Failure::usage(format!("{} names no file", path.display())));
    }
    unnamed(&path)
        .map(|(file, temporary)| Target::File(Destination { path, file, force, temporary }))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file in the directory of `path`, without a name or with one of its own.
fn unnamed(path: &Path) -> Result<(File, Option<PathBuf>), Failure> {
    // It is read again for verification.
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let flags = OFlags::TMPFILE.bits() as i32;
    match options.clone().custom_flags(flags).open(directory(path)) {
        Ok(file) => return Ok((file, None)),
        // EISDIR comes from file systems that do not know the flag.
        Err(error)
            if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL]
                .iter()
                .any(|known| error.raw_os_error() == Some(known.raw_os_error())) => {}
        Err(error) => return Err(failed("making a file in", directory(path), error)),
    }
    let temporary = beside(path);
    match options.create_new(true).open(&temporary) {
        Ok(file) => Ok((file, Some(temporary))),
        Err(error) => Err(failed("making", &temporary, error)),
    }
}

/// An unused hidden name beside `path`.
fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    // A name of almost the greatest length stays so.
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    name.push(super::wire::cut(&own, 200));
    name.push(format!(".handoff-{:x}", super::random() as u64));
    path.with_file_name(name)
}

impl Destination {
    /// The file itself.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Its future path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same file opened again, for writing past the page cache.
    ///
    /// # Errors
    ///
    /// When the file system cannot do that.
    pub(super) fn open_direct(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Gives it the permission bits of its source.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(super) fn set_mode(&self, mode: u32) -> Result<(), Failure> {
        self.file
            .set_permissions(fs::Permissions::from_mode(mode & 0o777))
            .map_err(|error| failed("setting the permissions of", &self.path, error))
    }

    /// Gives it the permission bits and modification time of its source.
    ///
    /// # Errors
    ///
    /// The file system's error.
    fn preserve(&self, attributes: Attributes) -> Result<(), Failure> {
        self.set_mode(attributes.mode)?;
        let time = Timespec { tv_sec: attributes.seconds, tv_nsec: attributes.nanoseconds.into() };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        futimens(&self.file, &times)
            .map_err(|error| failed("setting the time of", &self.path, error))
    }

    /// Checks that `len` bytes have room, so that a full disk is reported before anything moves. This
    /// reserves nothing: the bytes themselves do.
    ///
    /// # Errors
    ///
    /// A disk without enough room.
    pub(super) fn check_room(&self, len: u64) -> Result<(), Failure> {
        let directory = directory(&self.path);
        // If nobody says so now, the writes will.
        let Ok(stat) = statvfs(directory) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if len <= free || stat.f_blocks == 0 {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "no room for {}: {len} bytes are needed in {}, and {free} are free",
            self.path.display(),
            directory.display(),
        )))
    }

    /// Puts the file of so many bytes under its name, with what it keeps of its source; `sync` first writes
    /// it to the disk.
    ///
    /// # Errors
    ///
    /// When the name was taken meanwhile, or the file system refuses.
    pub(super) fn commit(
        mut self,
        bytes: u64,
        attributes: Option<Attributes>,
        sync: bool,
    ) -> Result<(), Failure> {
        let long = self.file.metadata().map(|it| it.len() == bytes).unwrap_or(false);
        if !long {
            // It ends with a hole.
            self.file.set_len(bytes).map_err(|error| failed("ending", &self.path, error))?;
        }
        if let Some(attributes) = attributes {
            self.preserve(attributes)?;
        }
        if sync {
            self.file.sync_all().map_err(|error| failed("syncing", &self.path, error))?;
        }
        match self.temporary.take() {
            Some(temporary) => {
                // Kept for the drop until it has another name.
                self.temporary = Some(temporary.clone());
                self.name_from(&temporary)?;
                self.temporary = None;
            }
            None => self.name_unnamed()?,
        }
        if sync {
            File::open(directory(&self.path))
                .and_then(|directory| directory.sync_all())
                .map_err(|error| failed("syncing the directory of", &self.path, error))?;
        }
        Ok(())
    }

    /// Moves a named file to its final name.
    fn name_from(&self, temporary: &Path) -> Result<(), Failure> {
        let renamed = if self.force {
            rustix::fs::rename(temporary, &self.path)
        } else {
            // A hard link does not replace, on any file system that has them.
            linkat(CWD, temporary, CWD, &self.path, AtFlags::empty())
                .and_then(|()| rustix::fs::unlink(temporary))
                .or_else(|error| match error {
                    Errno::PERM | Errno::OPNOTSUPP => rustix::fs::renameat_with(
                        CWD,
                        temporary,
                        CWD,
                        &self.path,
                        rustix::fs::RenameFlags::NOREPLACE,
                    ),
                    error => Err(error),
                })
        };
        self.named(renamed)
    }

    /// Gives the file without a name its final name.
    fn name_unnamed(&self) -> Result<(), Failure> {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |to: &Path| linkat(CWD, own.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.path) {
            Err(Errno::EXIST) if self.force => {
                let temporary = beside(&self.path);
                self.named(link(&temporary))?;
                let renamed = rustix::fs::rename(&temporary, &self.path);
                if renamed.is_err() {
                    // Report the rename's own error.
                    let _ = fs::remove_file(&temporary);
                }
                self.named(renamed)
            }
            linked => self.named(linked),
        }
    }

    fn named(&self, result: Result<(), Errno>) -> Result<(), Failure> {
        result.map_err(|error| match error {
            Errno::EXIST => exists(&self.path),
            error => failed("naming", &self.path, error),
        })
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary
            && let Err(error) = fs::remove_file(temporary)
        {
            tracing::warn!(%error, path = %temporary.display(), "an unfinished file is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn destination(path: &Path, force: bool, named: bool) -> Destination {
        let Ok(Target::File(mut destination)) = open(path, force) else { panic!("a file") };
        if named {
            let temporary = beside(path);
            destination.file = File::create_new(&temporary).unwrap();
            destination.temporary = Some(temporary);
        }
        destination.file.write_all(b"new").unwrap();
        destination
    }

    #[test]
    fn appears_whole_or_not_at_all() {
        for named in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            drop(destination(&path, false, named));
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
            destination(&path, false, named).commit(3, None, true).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        }
    }

    #[test]
    fn replaces_only_when_told() {
        for named in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let early = destination(&path, false, named);
            fs::write(&path, "old").unwrap();
            assert!(matches!(open(&path, false), Err(Failure::Failed(_))));
            assert!(early.commit(3, None, false).is_err());
            assert_eq!(fs::read(&path).unwrap(), b"old");
            let link = directory.path().join("link");
            std::os::unix::fs::symlink("file", &link).unwrap();
            destination(&link, true, named).commit(3, None, false).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
        }
    }

    #[test]
    fn a_directory_is_no_destination_and_a_device_is_a_stream() {
        assert!(matches!(open(Path::new("/"), true), Err(Failure::Usage(_))));
        assert!(matches!(open(Path::new("/dev/null"), true), Ok(Target::Stream(_))));
        assert!(matches!(open(Path::new("/nowhere/file"), true), Err(Failure::Failed(_))));
    }
}
