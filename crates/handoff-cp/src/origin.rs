//! The source of a copy: a file of known length that can be read anywhere, or a pipe.
//!
//! Contracts:
//! - it is opened, and found readable, before anything is made or connected because of it;
//! - the length of a file is that at its opening: a growing file is copied up to there, a shrinking one is
//!   an error; a file that has no byte where its length says so, as in /proc and /sys, is read to its end.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use handoff_command::{Failure, Stop, standard};
use rustix::fs::{Advice, FileType, OFlags, fadvise};

use crate::destination::Source;
use crate::extents::Extents;
use crate::kept::Preserved;
use crate::stream;
use crate::wire::Attributes;

/// Where a copy comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Bytes that come in order, to an unknown end.
    Stream {
        /// The pipe, terminal, device or file.
        fd: OwnedFd,
        /// Its metadata, if it is a file.
        attributes: Option<Attributes>,
    },
    /// A file or block device.
    File {
        /// Through the page cache.
        file: File,
        /// Bytes.
        len: u64,
        /// Its metadata, if it is a regular file.
        attributes: Option<Attributes>,
    },
}

impl Origin {
    /// Standard input.
    ///
    /// # Errors
    ///
    /// When it is closed.
    pub(crate) fn stdin() -> Result<Self, Failure> {
        Ok(Self::Stream { fd: standard::input()?, attributes: None })
    }

    /// A path.
    ///
    /// # Errors
    ///
    /// A missing or unreadable file, a directory or a socket.
    pub(crate) fn open(stop: &Stop, path: &Path) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::failed(format!("reading {}: {error}", path.display()));
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(Failure::usage(format!(
                "{} is a directory: a copy takes one file (pack it: tar c {0} | handoff cp - ...)",
                path.display()
            )));
        }
        if kind.is_socket() {
            return Err(Failure::usage(format!("{} is a socket, not a file", path.display())));
        }
        if kind.is_fifo() || kind.is_char_device() {
            let mut options = OpenOptions::new();
            options.read(true);
            let file = stream::open(stop, path, options)?;
            return Ok(Self::Stream { fd: file.into(), attributes: None });
        }
        let mut file = File::open(path).map_err(failed)?;
        let status = file.metadata().map_err(failed)?;
        let attributes = status.is_file().then(|| Attributes {
            seconds: status.mtime(),
            nanoseconds: status.mtime_nsec() as u32,
            mode: status.mode() & 0o777,
        });
        let len = if status.is_file() {
            status.len()
        } else {
            file.seek(SeekFrom::End(0)).map_err(failed)?
        };
        if status.is_file() && !has_its_length(&file, len) {
            return Ok(Self::Stream { fd: file.into(), attributes });
        }
        // Larger read-ahead; only advice.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        Ok(Self::File { file, len, attributes })
    }

    /// Length in bytes, if known.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Self::Stream { .. } => None,
            Self::File { len, .. } => Some(*len),
        }
    }

    /// Its metadata.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        match self {
            Self::Stream { attributes, .. } | Self::File { attributes, .. } => *attributes,
        }
    }

    /// What it is to the file that is made of it.
    pub(crate) fn source(&self) -> Option<Source> {
        let status = rustix::fs::fstat(self.fd()).ok()?;
        let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        let mode = is_file.then_some(status.st_mode & 0o777);
        Some(Source { id: (status.st_dev, status.st_ino), mode })
    }

    /// What a copy is to keep of it; `None` if it is no file.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) fn preserved(&self) -> Result<Option<Preserved>, Failure> {
        let preserved = self.attributes().map(|attributes| Preserved::of(self.fd(), attributes));
        preserved
            .transpose()
            .map_err(|error| Failure::failed(format!("reading the source's attributes: {error}")))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stream { fd, .. } => fd.as_fd(),
            Self::File { file, .. } => file.as_fd(),
        }
    }

    /// Where a file has bytes; `None` if it is not a file.
    ///
    /// # Errors
    ///
    /// When no descriptors are left.
    pub(crate) fn extents(&self) -> Result<Option<Extents>, Failure> {
        let Self::File { file, len, .. } = self else { return Ok(None) };
        let same = file.try_clone().map_err(|error| {
            Failure::failed(format!("looking for holes in the source: {error}"))
        })?;
        Ok(Some(Extents::new(same, *len)))
    }

    /// Its kind, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::File { .. } | Self::Stream { attributes: Some(_), .. } => "file",
            Self::Stream { fd, .. } => match rustix::fs::fstat(fd) {
                Ok(status) => match FileType::from_raw_mode(status.st_mode) {
                    FileType::CharacterDevice => "device",
                    FileType::RegularFile => "file",
                    FileType::Socket => "socket",
                    _ => "pipe",
                },
                Err(_) => "pipe",
            },
        }
    }
}

/// Whether there is a last byte: files of /proc have bytes and no length, those of /sys a length and fewer bytes.
fn has_its_length(file: &File, len: u64) -> bool {
    let is_short = len == 0 || file.read_at(&mut [0], len - 1).is_ok_and(|got| got == 0);
    // It may have been cut just now.
    !is_short || file.metadata().is_ok_and(|now| now.len() != len)
}

/// The file at `path` opened again, for reading past the page cache.
///
/// # Errors
///
/// When the file system cannot do that.
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}
