//! What a copy reads: a file of known length that can be read anywhere, or a pipe.
//!
//! Contracts:
//! - it is opened, and found readable, before anything is made or connected on its account;
//! - the length of a file is what it was then: one that grows is copied up to there, one that
//!   shrinks is an error.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};

use crate::net::patience;
use crate::{Failure, Stop};

/// Where a copy comes from.
#[derive(Debug)]
pub(super) enum Origin {
    /// Bytes that come in order, to an end that is not known.
    Stream {
        /// The pipe, terminal, device or file.
        fd: OwnedFd,
        /// The permission bits, where it is a file.
        mode: Option<u32>,
    },
    /// A file or block device.
    File {
        /// Through the page cache.
        file: File,
        /// Bytes.
        len: u64,
        /// The permission bits, where it is a regular file.
        mode: Option<u32>,
    },
}

impl Origin {
    /// Standard input.
    ///
    /// # Errors
    ///
    /// When it is closed.
    pub(super) fn stdin() -> Result<Self, Failure> {
        let fd = io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Failure::failed(format!("standard input can't be used: {error}")))?;
        Ok(Self::Stream { fd, mode: None })
    }

    /// A path.
    ///
    /// # Errors
    ///
    /// What is not there, may not be read, or is a directory or a socket.
    pub(super) fn open(stop: &Stop, path: &Path) -> Result<Self, Failure> {
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
            let file = patience::open(stop, path, options)?;
            return Ok(Self::Stream { fd: file.into(), mode: None });
        }
        let mut file = File::open(path).map_err(failed)?;
        let status = file.metadata().map_err(failed)?;
        let mode = status.is_file().then(|| status.permissions().mode());
        let len = if status.is_file() {
            status.len()
        } else {
            file.seek(SeekFrom::End(0)).map_err(failed)?
        };
        match len {
            // A file of /proc has bytes and no length.
            0 => Ok(Self::Stream { fd: file.into(), mode }),
            len => {
                // Larger read-ahead; only advice.
                let _ = fadvise(&file, 0, None, Advice::Sequential);
                Ok(Self::File { file, len, mode })
            }
        }
    }

    /// Bytes, where that is known.
    pub(super) fn len(&self) -> Option<u64> {
        match self {
            Self::Stream { .. } => None,
            Self::File { len, .. } => Some(*len),
        }
    }

    /// The permission bits to give to a copy.
    pub(super) fn mode(&self) -> Option<u32> {
        match self {
            Self::Stream { mode, .. } | Self::File { mode, .. } => *mode,
        }
    }
}

/// The file at `path` once more, to be read past the page cache.
///
/// # Errors
///
/// When the file system does not do that.
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}
