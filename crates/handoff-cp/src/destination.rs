//! The file that a copy makes: it appears under its name whole, or not at all, if this process is killed.
//!
//! Contracts:
//! - until [`Destination::commit`] the bytes are in a file without a name (`O_TMPFILE`), which the kernel
//!   frees however this process ends; if the file system has no such files, in a file of another name
//!   beside it, which a drop removes, and after kill -9 the next copy to the same path;
//! - an existing file is not touched without `force`; with it, it is replaced in one step, and the new one gets its
//!   mode, owner, ACL and extended attributes; its other names (hard links) keep the old file;
//! - what no other file can replace is written in place, and [`Destination::in_place`] says why: a block device, a file
//!   that is mounted, one whose directory takes no new file, one whose owner we cannot give;
//! - pipes and character devices are not replaced: they are written in order.
//!
//! Kernel interface: linkat(2), rename(2), statx(2) `STATX_ATTR_MOUNT_ROOT` (5.8).

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use handoff_command::Failure;
use rustix::fs::{AtFlags, CWD, OFlags, StatxAttributes, StatxFlags, linkat, statvfs, statx};
use rustix::io::Errno;

use crate::kept::{Legacy, Mode, Preserved};
use crate::unfinished;

/// Where a copy goes.
#[derive(Debug)]
pub(crate) enum Target {
    /// A file or block device, to write at offsets.
    File(Destination),
    /// A pipe, terminal or character device, to open and write in order.
    Stream(PathBuf),
}

/// The file that a copy comes from, if it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Device and inode.
    pub(crate) id: (u64, u64),
    /// Permission bits, if it is a regular file.
    pub(crate) mode: Option<u32>,
}

/// A file to write.
#[derive(Debug)]
pub(crate) struct Destination {
    /// Its path, also where it has none yet.
    path: PathBuf,
    file: File,
    method: Method,
}

#[derive(Debug)]
enum Method {
    /// A new file.
    New {
        force: bool,
        mode: Mode,
        /// Its name meanwhile, if the file system has no files without one.
        temporary: Option<PathBuf>,
    },
    /// The existing one.
    InPlace { is_device: bool, why: String },
}

/// What becomes of bytes that cannot be taken back.
pub(crate) const WRITTEN: &str = "what came is written already";

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
/// An existing file without `force`, the source itself, something that cannot be written, and errors of the file
/// system.
pub(crate) fn open(path: &Path, force: bool, source: Option<Source>) -> Result<Target, Failure> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return new(path, force, source).map(Target::File);
        }
        Err(error) => return Err(failed("looking at", path, error)),
    };
    let kind = there.file_type();
    if there.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a directory: name the file to make in it",
            path.display()
        )));
    }
    if kind.is_fifo() || kind.is_char_device() {
        return Ok(Target::Stream(path.to_owned()));
    }
    if kind.is_socket() {
        return Err(Failure::usage(format!("{} is a socket, not a file", path.display())));
    }
    if source.is_some_and(|source| source.id == (there.dev(), there.ino())) {
        return Err(Failure::failed(format!(
            "{} is the source itself, under this or another name",
            path.display()
        )));
    }
    if !force {
        return Err(match kind.is_block_device() {
            true => Failure::failed(format!(
                "{} is a block device: --force writes over what is on it",
                path.display()
            )),
            false => exists(path),
        });
    }
    // The target of a symbolic link is replaced, not the link.
    let path = fs::canonicalize(path).map_err(|error| failed("finding", path, error))?;
    replacing(path, &there).map(Target::File)
}

/// A file where there is none.
fn new(path: &Path, force: bool, source: Option<Source>) -> Result<Destination, Failure> {
    if path.file_name().is_none() {
        return Err(Failure::usage(format!("{} names no file", path.display())));
    }
    let shown = path.display();
    let names_directory = |end: &[u8]| path.as_os_str().as_bytes().ends_with(end);
    if names_directory(b"/") || names_directory(b"/.") {
        return Err(Failure::failed(format!("{shown} is no directory: a copy makes a file only")));
    }
    if path.is_symlink() {
        return Err(Failure::failed(format!(
            "{shown} is a symbolic link to nothing: remove it, or name the file"
        )));
    }
    // The umask, or the directory's default ACL, takes away from these.
    let mode = source.and_then(|source| source.mode).unwrap_or(0o666);
    let (file, temporary) = unnamed(path, mode)?;
    let kept = Mode::of(&file).map_err(|error| failed("looking at", path, error));
    let mode = dropping(temporary.as_deref(), kept)?;
    let method = Method::New { force, mode, temporary };
    Ok(Destination { path: path.to_owned(), file, method })
}

/// What takes the place of the file at `path`, or that file.
fn replacing(path: PathBuf, there: &Metadata) -> Result<Destination, Failure> {
    let in_place = |why: String| {
        let is_device = there.file_type().is_block_device();
        let file = open_in_place(&path, is_device);
        let file = file.map_err(|error| failed("opening", &path, error))?;
        Ok(Destination { path: path.clone(), file, method: Method::InPlace { is_device, why } })
    };
    if there.file_type().is_block_device() {
        return in_place("it is a block device".to_owned());
    }
    let status = statx(CWD, &path, AtFlags::empty(), StatxFlags::TYPE);
    if status.is_ok_and(|it| it.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
        return in_place("it is mounted there".to_owned());
    }
    let (file, temporary) = match unfinished::make(&path, OURS) {
        Ok(made) => made,
        Err((_, error)) if takes_no_file(&error) => {
            return in_place(format!("its directory takes no new file: {error}"));
        }
        Err((at, error)) => return Err(failed("making a file in", &at, error)),
    };
    let given = Legacy::of(&path).and_then(|legacy| legacy.give_to(&file));
    match dropping(temporary.as_deref(), given) {
        Ok(mode) => {
            let method = Method::New { force: true, mode, temporary };
            Ok(Destination { path, file, method })
        }
        Err(error) => in_place(format!("a new file cannot get its owner and ACL: {error}")),
    }
}

/// For ourselves only.
const OURS: u32 = 0o600;

/// Removes a file that nobody will use, if this result is an error.
fn dropping<T, E>(temporary: Option<&Path>, result: Result<T, E>) -> Result<T, E> {
    if let (Some(temporary), true) = (temporary, result.is_err()) {
        // The error says more.
        let _ = fs::remove_file(temporary);
    }
    result
}

fn takes_no_file(error: &io::Error) -> bool {
    let refusals = [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::NOENT];
    refusals.iter().any(|known| error.raw_os_error() == Some(known.raw_os_error()))
}

/// The file at `path`, to read it again, too, if it allows that; a device that nobody uses.
fn open_in_place(path: &Path, is_device: bool) -> io::Result<File> {
    let flags = if is_device { OFlags::EXCL.bits() as i32 } else { 0 };
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags);
    options.clone().read(true).open(path).or_else(|_| options.open(path))
}

/// A file in the directory of `path`, without a name or with one of its own.
fn unnamed(path: &Path, mode: u32) -> Result<(File, Option<PathBuf>), Failure> {
    unfinished::make(path, mode).map_err(|(at, error)| failed("making a file in", &at, error))
}

impl Destination {
    /// The file itself.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Its path, also where it has none yet.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Why it is written in place, so that a copy that fails leaves a part; `None` if a new file takes the name.
    pub(crate) fn in_place(&self) -> Option<&str> {
        match &self.method {
            Method::InPlace { why, .. } => Some(why),
            Method::New { .. } => None,
        }
    }

    /// What becomes of a copy that fails.
    pub(crate) fn fate(&self) -> &'static str {
        if self.in_place().is_none() { "nothing of it is kept" } else { WRITTEN }
    }

    /// Whether bytes that are not written are 0.
    pub(crate) fn has_holes(&self) -> bool {
        !matches!(self.method, Method::InPlace { is_device: true, .. })
    }

    /// The same file opened again, for writing past the page cache.
    ///
    /// # Errors
    ///
    /// When the file system cannot do that.
    pub(crate) fn open_direct(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Checks that `len` bytes have room, so that a full disk is reported before anything moves. This
    /// reserves nothing: the bytes themselves do.
    ///
    /// # Errors
    ///
    /// A disk without enough room.
    pub(crate) fn check_room(&self, len: u64) -> Result<(), Failure> {
        let mut reused = 0;
        if let Method::InPlace { is_device, .. } = self.method {
            let looking = |error| failed("looking at", &self.path, error);
            if is_device {
                let size = (&self.file).seek(SeekFrom::End(0)).map_err(looking)?;
                return match len > size {
                    true => Err(Failure::failed(format!(
                        "no room for {len} bytes: {} has {size}",
                        self.path.display()
                    ))),
                    false => Ok(()),
                };
            }
            reused = self.file.metadata().map_err(looking)?.blocks() * 512;
        }
        let directory = unfinished::directory(&self.path);
        // If nobody says so now, the writes will.
        let Ok(stat) = statvfs(directory) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize).saturating_add(reused);
        if len <= free || stat.f_blocks == 0 {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "no room for {}: {len} bytes are needed in {}, and {free} are free",
            self.path.display(),
            directory.display(),
        )))
    }

    /// The first byte is about to come: a file in place loses its own.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        match self.method {
            Method::InPlace { is_device: false, .. } => {
                self.file.set_len(0).map_err(|error| failed("emptying", &self.path, error))
            }
            _ => Ok(()),
        }
    }

    /// All of so many bytes are written: where they end with a hole, the file gets its length.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn end(&self, bytes: u64) -> Result<(), Failure> {
        let is_short = self.file.metadata().is_ok_and(|it| it.is_file() && it.len() < bytes);
        match is_short {
            true => self.file.set_len(bytes).map_err(|error| failed("ending", &self.path, error)),
            false => Ok(()),
        }
    }

    /// Puts the file of so many bytes under its name, with what it keeps of its source; `sync` first writes
    /// it to the disk.
    ///
    /// # Errors
    ///
    /// When the name was taken meanwhile, or the file system refuses.
    pub(crate) fn commit(
        mut self,
        bytes: u64,
        preserved: Option<Preserved>,
        sync: bool,
    ) -> Result<(), Failure> {
        self.end(bytes)?;
        let given = match (&preserved, &self.method) {
            (Some(preserved), _) => preserved.give_to(&self.file),
            (None, Method::New { mode, .. }) => mode.give_to(&self.file),
            (None, Method::InPlace { .. }) => Ok(()),
        };
        given.map_err(|error| failed("setting mode, time and attributes of", &self.path, error))?;
        if sync {
            self.file.sync_all().map_err(|error| failed("syncing", &self.path, error))?;
        }
        let Method::New { force, temporary, .. } = &self.method else { return Ok(()) };
        match temporary {
            Some(temporary) => self.name_from(temporary, *force)?,
            None => self.name_unnamed(*force)?,
        }
        if let Method::New { temporary, .. } = &mut self.method {
            // It has another name: nothing is left for the drop.
            *temporary = None;
        }
        if sync {
            File::open(unfinished::directory(&self.path))
                .and_then(|directory| directory.sync_all())
                .map_err(|error| failed("syncing the directory of", &self.path, error))?;
        }
        Ok(())
    }

    /// Moves a named file to its final name.
    fn name_from(&self, temporary: &Path, force: bool) -> Result<(), Failure> {
        let renamed = if force {
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
    fn name_unnamed(&self, force: bool) -> Result<(), Failure> {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |to: &Path| linkat(CWD, own.as_str(), CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(&self.path) {
            Err(Errno::EXIST) if force => {
                let temporary = unfinished::beside(&self.path);
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
        if let Method::New { temporary: Some(temporary), .. } = &self.method
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
        let Ok(Target::File(mut destination)) = open(path, force, None) else { panic!("a file") };
        if let (true, Method::New { temporary, .. }) = (named, &mut destination.method) {
            let mut options = OpenOptions::new();
            (destination.file, *temporary) =
                unfinished::make_named(path, options.read(true).write(true)).unwrap();
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
            assert!(matches!(open(&path, false, None), Err(Failure::Failed(_))));
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
    fn the_next_copy_removes_what_a_killed_one_has_left_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let left = directory.path().join(".file.handoff-1f");
        let others = [".file.handoff-1f.txt", ".files.handoff-1f"];
        for name in others {
            fs::write(directory.path().join(name), "mine").unwrap();
        }
        fs::write(&left, "a part").unwrap();
        let in_use = destination(&path, false, true);
        assert!(!left.exists());
        drop(destination(&path, false, true));
        in_use.commit(3, None, false).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1 + others.len());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_directory_is_no_destination_and_a_device_is_a_stream() {
        assert!(matches!(open(Path::new("/"), true, None), Err(Failure::Usage(_))));
        assert!(matches!(open(Path::new("/dev/null"), true, None), Ok(Target::Stream(_))));
        assert!(matches!(open(Path::new("/nowhere/file"), true, None), Err(Failure::Failed(_))));
    }
}
