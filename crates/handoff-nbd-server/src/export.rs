//! An export: an open file or block device, which all threads share.
//!
//! Contracts:
//! - an export reads and writes past the page cache, or by it: what one way has written, the other might not see, and could
//!   write over. So a file that ends within a block goes by the page cache as a whole;
//! - once a sync has failed, all later ones fail.
//!
//! Kernel interface: `O_DIRECT`, `STATX_DIOALIGN` (Linux 6.1).

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use handoff::{Driver, RingUse};
use handoff_nbd::target::BlockSizes;
use handoff_nbd::wire::TransmissionFlags;

use crate::extents;
use crate::overlay::{self, Overlay};
use crate::pieces::Layout;
use crate::ranges::Ranges;

/// Which way bytes of an export go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Past the page cache if the export can be written, and the file allows that and consists of whole blocks; a read-only
    /// one by the page cache where that lends (the module `getbuf`), else past it.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`).
    Direct,
    /// By the page cache: reads are lent where the module `getbuf` is, writes are copied.
    Cache,
}

/// What is to be served.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name; the empty one is that of the default export.
    pub name: String,
    /// The file or block device.
    pub path: PathBuf,
    /// A text for people, which may be empty.
    pub description: String,
    /// Nothing can be written.
    pub read_only: bool,
    /// Writes go to a copy in this directory, which goes with the server.
    pub temporary: Option<PathBuf>,
    /// Which way its bytes go.
    pub io: Io,
    /// The smallest block that clients may use, a power of 2 of at most 64 KiB.
    pub minimum: u32,
    /// The most payload of a request.
    pub maximum: u32,
}

/// Why a file is not served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be opened, or not as wanted.
    #[error("can't open \"{path}\" {how}: {source}")]
    Open {
        /// The file.
        path: String,
        /// For what.
        how: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It is of a kind that has no blocks.
    #[error("\"{path}\" is {what}: give a file or a block device")]
    Kind {
        /// The file.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// It has no direct I/O.
    #[error(
        "\"{path}\" can't be read and written past the page cache: {why}; --io auto goes by it"
    )]
    NotDirect {
        /// The file.
        path: String,
        /// Why not.
        why: String,
    },
    /// Clients could not reach its end.
    #[error("\"{path}\" has {size} bytes, no multiple of --min-block {minimum}")]
    Size {
        /// The file.
        path: String,
        /// Its bytes.
        size: u64,
        /// The smallest block.
        minimum: u32,
    },
    /// The copy for what is written cannot be made.
    #[error("can't make a temporary copy in \"{directory}\": {source}")]
    Temporary {
        /// Where.
        directory: String,
        /// Why.
        source: io::Error,
    },
}

/// An export.
#[derive(Debug)]
pub struct Export {
    spec: Spec,
    size: u64,
    pub(crate) layout: Layout,
    preferred: u32,
    /// By the page cache.
    pub(crate) cached: OwnedFd,
    /// Past it.
    pub(crate) direct: Option<OwnedFd>,
    pub(crate) overlay: Option<Overlay>,
    pub(crate) ranges: Ranges,
    /// Who has it syncs.
    pub(crate) syncs: Ranges,
    is_device: bool,
    tells_extents: bool,
    /// A sync has failed.
    failed: AtomicBool,
    note: Option<String>,
}

/// The largest block that bytes are read and written in around smaller writes.
const MOST_GRAIN: u64 = 64 << 10;

impl Export {
    /// Opens a file. `lends` says whether the page cache lends.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn open(spec: Spec, lends: bool) -> Result<Self, OpenError> {
        let path = spec.path.display().to_string();
        let writes = !spec.read_only && spec.temporary.is_none();
        let how = if writes { "for writing" } else { "for reading" };
        let failed = |source| OpenError::Open { path: path.clone(), how, source };
        // Before it is opened: that would wait for the other end of a FIFO, or wind a tape.
        let kind = fs::metadata(&spec.path).map_err(failed)?.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            let what = match kind {
                _ if kind.is_dir() => "a directory",
                _ if kind.is_fifo() => "a pipe",
                _ if kind.is_socket() => "a socket",
                _ => "a character device",
            };
            return Err(OpenError::Kind { path, what });
        }
        // Nobody has a device mounted to which this writes. Other programs see the locks.
        let excludes = if is_device && writes { libc::O_EXCL } else { 0 };
        let mut options = File::options();
        options.read(true).write(writes).custom_flags(libc::O_NONBLOCK | excludes);
        let mut cached = options.open(&spec.path).map_err(failed)?;
        let size = cached.seek(SeekFrom::End(0)).map_err(failed)?;
        let wants = match spec.io {
            Io::Direct => true,
            Io::Auto => spec.temporary.is_none() && (writes || !lends),
            Io::Cache => false,
        };
        let mut note = None;
        let direct = match wants.then(|| direct(&cached, writes, size)) {
            Some(Ok((_, grain))) if spec.temporary.is_some() && grain > overlay::BLOCK => {
                let why =
                    format!("its blocks have {grain} bytes, and those of a temporary copy 4096");
                return Err(OpenError::NotDirect { path, why });
            }
            Some(Ok(found)) => Some(found),
            Some(Err(why)) if spec.io == Io::Direct => {
                return Err(OpenError::NotDirect { path, why });
            }
            Some(Err(why)) => {
                note = Some(format!(
                    "\"{path}\" is read and written by the page cache, which copies: {why}"
                ));
                None
            }
            None => None,
        };
        if size % u64::from(spec.minimum.max(1)) != 0 {
            return Err(OpenError::Size { path, size, minimum: spec.minimum });
        }
        let overlay = match &spec.temporary {
            Some(directory) => {
                let failed = |source| {
                    let directory = directory.display().to_string();
                    OpenError::Temporary { directory, source }
                };
                Some(Overlay::new(directory, size).map_err(failed)?)
            }
            None => None,
        };
        let layout = match (&direct, &overlay) {
            (_, Some(_)) => Layout { grain: overlay::BLOCK, split: size },
            (Some((_, grain)), None) => Layout { grain: *grain, split: size },
            (None, None) => Layout { grain: 1, split: 0 },
        };
        let grain = u32::try_from(layout.grain).unwrap_or(4096);
        Ok(Self {
            size,
            layout,
            preferred: grain.max(spec.minimum).max(4096),
            tells_extents: extents::are_told(&cached, size),
            cached: cached.into(),
            direct: direct.map(|(file, _)| file.into()),
            overlay,
            ranges: Ranges::default(),
            syncs: Ranges::default(),
            is_device,
            failed: AtomicBool::new(false),
            note,
            spec,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The file or device.
    pub fn path(&self) -> &Path {
        &self.spec.path
    }

    /// Bytes of it.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether nothing can be written.
    pub fn is_read_only(&self) -> bool {
        self.spec.read_only
    }

    /// Whether what is written goes with the server.
    pub fn is_temporary(&self) -> bool {
        self.overlay.is_some()
    }

    /// Whether its bytes go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The open file, which its locks belong to.
    pub fn file(&self) -> &OwnedFd {
        &self.cached
    }

    /// What is not as it should be.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether the file has another length than when it was opened; it may have been in use by then.
    pub fn has_changed(&self) -> bool {
        let now = rustix::fs::fstat(&self.cached).map(|it| it.st_size.unsigned_abs());
        !self.is_device && now.is_ok_and(|now| now != self.size)
    }

    /// Whether it is a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    pub(crate) fn tells_extents(&self) -> bool {
        self.tells_extents
    }

    /// Whether all later syncs fail.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// A sync failed: the kernel tells that once, so it must be remembered for all.
    pub(crate) fn sync_failed(&self, why: &handoff::Error) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            let path = self.path().display();
            tracing::error!("syncing \"{path}\" failed, so all later syncs fail: {why}");
        }
    }

    /// How reads lie.
    pub(crate) fn read_layout(&self) -> Layout {
        match self.direct {
            Some(_) => self.layout,
            None => Layout { grain: 1, split: 0 },
        }
    }

    /// What clients learn of it.
    pub(crate) fn told(&self) -> handoff_nbd::server::Export {
        let mut flags = TransmissionFlags::CAN_MULTI_CONN;
        if self.spec.read_only {
            flags |= TransmissionFlags::READ_ONLY;
        } else {
            flags |= TransmissionFlags::SEND_FLUSH
                | TransmissionFlags::SEND_FUA
                | TransmissionFlags::SEND_TRIM
                | TransmissionFlags::SEND_WRITE_ZEROES
                | TransmissionFlags::SEND_FAST_ZERO;
        }
        if self.direct.is_none() {
            flags |= TransmissionFlags::SEND_CACHE;
        }
        let maximum = self.spec.maximum.max(self.preferred) & !(self.spec.minimum.max(1) - 1);
        handoff_nbd::server::Export {
            name: self.spec.name.clone(),
            description: self.spec.description.clone(),
            size: self.size,
            flags,
            block: BlockSizes { minimum: self.spec.minimum, preferred: self.preferred, maximum },
            needs_block_sizes: self.spec.minimum > 1,
            has_allocation: self.tells_extents,
        }
    }
}

/// The file past the page cache, and its blocks; or why there is no such way.
fn direct(cached: &File, writes: bool, size: u64) -> Result<(File, u64), String> {
    // Another file may have the name by now.
    let same = format!("/proc/self/fd/{}", cached.as_raw_fd());
    let flags = libc::O_NONBLOCK | libc::O_DIRECT;
    let file = File::options().read(true).write(writes).custom_flags(flags).open(same);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => "the file system refuses O_DIRECT".to_owned(),
        _ => error.to_string(),
    })?;
    let driver =
        Driver::builder().ring(RingUse::Avoid).build().map_err(|error| error.to_string())?;
    let clone = file.try_clone().map_err(|error| error.to_string())?;
    let asked = driver.file(clone).map_err(|error| error.to_string())?;
    if !asked.is_direct() {
        return Err("it lies in memory (tmpfs)".to_owned());
    }
    // Where the file system does not say, a page is enough for common devices.
    let grain = asked.alignment().map_or(4096, |it| it.blocks.max(it.memory).max(512)) as u64;
    if !grain.is_power_of_two() || grain > MOST_GRAIN {
        return Err(format!("its blocks have {grain} bytes"));
    }
    match size % grain {
        0 => Ok((file, grain)),
        _ => Err(format!(
            "its {size} bytes are no whole blocks of {grain} (truncate -s %{grain} adds what lacks)"
        )),
    }
}
