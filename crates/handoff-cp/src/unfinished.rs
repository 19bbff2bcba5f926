//! A file before it has its name.
//!
//! Contracts:
//! - it has no name (`O_TMPFILE`), or a hidden one where the file system has no such files;
//! - what killed copies have left under hidden names is removed by the next copy to the same path, but nothing that
//!   another copy uses.
//!
//! Kernel interface: open(2) `O_TMPFILE` (Linux 3.11), flock(2).

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::{random, wire};

/// A new file in the directory of `path`, without a name or with one of its own.
///
/// # Errors
///
/// The file system's, with the place where the file was to be.
pub(crate) fn make(
    path: &Path,
    mode: u32,
) -> Result<(File, Option<PathBuf>), (PathBuf, io::Error)> {
    // It is read again for verification.
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode);
    let flags = OFlags::TMPFILE.bits() as i32;
    let at = directory(path);
    match options.clone().custom_flags(flags).open(at) {
        Ok(file) => return Ok((file, None)),
        // EISDIR comes from file systems that do not know the flag.
        Err(error)
            if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL]
                .iter()
                .any(|known| error.raw_os_error() == Some(known.raw_os_error())) => {}
        Err(error) => return Err((at.to_owned(), error)),
    }
    make_named(path, &mut options).map_err(|error| (at.to_owned(), error))
}

/// A file of another name, which its lock marks as in use.
pub(crate) fn make_named(
    path: &Path,
    options: &mut OpenOptions,
) -> io::Result<(File, Option<PathBuf>)> {
    remove_left_behind(path);
    let temporary = beside(path);
    let file = options.create_new(true).open(&temporary)?;
    // Without locks on this file system nobody removes it.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok((file, Some(temporary)))
}

/// Removes what copies to `path` that were killed have left beside it.
fn remove_left_behind(path: &Path) {
    // What cannot be looked at stays.
    let Ok(entries) = fs::read_dir(directory(path)) else { return };
    let begin = begin_of_meanwhile(path);
    for entry in entries.flatten() {
        let name = entry.file_name();
        let rest = name.as_bytes().strip_prefix(begin.as_bytes());
        let is_ours = rest.is_some_and(|rest| rest.iter().all(u8::is_ascii_hexdigit));
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let is_unused = File::open(entry.path())
            .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
        if is_unused && let Err(error) = fs::remove_file(entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "an unfinished file is left behind");
        }
    }
}

/// An unused hidden name beside `path`.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = begin_of_meanwhile(path);
    name.push(format!("{:x}", random::bits() as u64));
    path.with_file_name(name)
}

/// How such a name begins.
fn begin_of_meanwhile(path: &Path) -> OsString {
    let mut name = OsString::from(".");
    // A name of almost the greatest length stays so.
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    name.push(wire::cut(&own, 200));
    name.push(".handoff-");
    name
}

/// The directory of a path.
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
