//! The files and block devices behind a device.
//!
//! Contracts: a backing is exclusively ours as long as it is open (a block device by O_EXCL, a file by an
//! flock that dies with the server); errors in a backing are reported before any device is made. Everything
//! known about a backing is known of the open file, and a later server accepts no other.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl;

use crate::existing::Existing;
use crate::limits::{Limits, queue_limit};
use crate::ranges::Ranges;
use crate::state::Part;
use crate::{Error, Spec};

/// An open backing.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) file: OwnedFd,
    /// Its identity, with the usable bytes, a multiple of the block size.
    pub(crate) part: Part,
    /// What it does with whole ranges.
    pub(crate) ranges: Ranges,
    /// Whether it lies on a disk that rotates.
    pub(crate) rotates: bool,
    /// Its limits for memory that goes straight to it.
    pub(crate) limits: Limits,
}

/// Why something cannot be a backing.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// Whether somebody holds it, who may let go.
    pub(crate) is_held: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, is_held: false }
    }
}

impl Refused {
    fn held(cause: String) -> Self {
        Self { error: Error::usage(cause), is_held: true }
    }
}

/// Opens all backings of a device. A leg that is out may be anything; all others of an existing device must
/// be those that it was made of.
pub(crate) fn open_all(spec: &Spec, existing: Option<&Existing>) -> Result<Vec<Backing>, Refused> {
    let mut backings: Vec<Backing> = Vec::new();
    for (index, path) in spec.files.iter().enumerate() {
        let is_out = existing.is_some_and(|existing| existing.map.is_out(index));
        let known = existing.map(|existing| &existing.record.parts[index]);
        let opened = open(path, spec, existing.map(|existing| existing.id), &backings);
        let opened = opened.and_then(|backing| match known {
            Some(known) => same(path, backing, known).map_err(Refused::from),
            None => Ok(backing),
        });
        backings.push(match opened {
            Err(_) if is_out => stand_in()?,
            opened => opened?,
        });
    }
    Ok(backings)
}

/// Those that give ranges back by a command, by bit.
pub(crate) fn by_command(backings: &[Backing]) -> u32 {
    let each = (0..).zip(backings);
    each.fold(0, |all, (place, backing)| all | u32::from(backing.ranges.by_command) << place)
}

/// Keeps the place of a leg that is out.
fn stand_in() -> Result<Backing, Error> {
    let file = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::doing("/dev/null cannot be opened"))?;
    Ok(Backing {
        file,
        part: Part::default(),
        ranges: Ranges::default(),
        rotates: false,
        limits: Limits::NONE,
    })
}

/// The backing, if it is the known one.
fn same(path: &Path, backing: Backing, known: &Part) -> Result<Backing, Error> {
    let name = path.display();
    if !backing.part.is_same(known) {
        return Err(Error::usage(format!(
            "{name} is another file or disk than the one that the device was made of: put that back"
        )));
    }
    if backing.part.size < known.size {
        return Err(Error::usage(format!(
            "{name} has {} bytes, and had {} when the device was made of it: give it back its length",
            backing.part.size, known.size
        )));
    }
    Ok(backing)
}

/// Opens a backing. Its facts come from the open file, even if the path changes.
fn open(
    path: &Path,
    spec: &Spec,
    own: Option<u32>,
    others: &[Backing],
) -> Result<Backing, Refused> {
    let name = path.display();
    // Does not open something that is neither a file nor a disk, since that can have effects.
    let found =
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            let error = io::Error::from(error);
            Error::usage(format!("{name}: {error}")).caused_by(&error)
        })?;
    let found = File::from(found);
    let metadata = found.metadata().map_err(|error| Error::usage(format!("{name}: {error}")))?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::usage(format!("{name} is neither a file nor a block device")).into());
    }
    let is_new = own.is_none();
    let own = own.and_then(|id| fs::metadata(format!("/dev/ublkb{id}")).ok());
    if let Some(own) = own {
        let holds = if kind.is_file() { metadata.dev() } else { metadata.rdev() };
        if holds == own.rdev() {
            return Err(
                Error::usage(format!("{name} lies on the device that it is to carry")).into()
            );
        }
    }
    let mut part = match kind.is_file() {
        true => Part { device: metadata.dev(), inode: metadata.ino(), ..Part::default() },
        false => Part { device: metadata.rdev(), ..Part::default() },
    };
    let mut flags = OFlags::CLOEXEC;
    flags |= if spec.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if spec.direct {
        flags |= OFlags::DIRECT;
    }
    if kind.is_block_device() {
        flags |= OFlags::EXCL;
    }
    if others.iter().any(|other| other.part.is_on_same(&part)) {
        return Err(Error::usage(format!("{name} is given twice")).into());
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let file = rustix::fs::open(again, flags, Mode::empty()).map_err(|error| match error {
        Errno::BUSY => Refused::held(format!("{name} is in use: unmount it, or end what holds it")),
        Errno::INVAL if spec.direct => Error::usage(format!(
            "{name} cannot be opened with O_DIRECT: its file system does not have it (--buffered)"
        ))
        .into(),
        error => Error::usage(format!("{name} cannot be opened: {error}"))
            .caused_by(&error.into())
            .into(),
    })?;
    if kind.is_file() {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Refused::held(format!("{name} is in use by another device: remove that one first"))
        })?;
    } else {
        part.sequence = sequence(part.device);
    }
    let (len, ranges) = if kind.is_file() {
        (metadata.len(), Ranges::of_file(&file, metadata.len()))
    } else {
        if is_new && !spec.read_only && is_read_only(&file)? {
            return Err(Error::usage(format!(
                "{name} is set to be only read: let it be written (blockdev --setrw), or make the device \
                 --read-only"
            ))
            .into());
        }
        let len =
            block_device(&file, spec).map_err(|cause| Error::usage(format!("{name}{cause}")))?;
        (len, Ranges::of_disk(&file, part.device))
    };
    part.size = len - len % u64::from(spec.block_size);
    if part.size == 0 {
        return Err(Error::usage(format!(
            "{name} has {len} bytes, less than a block of {}",
            spec.block_size
        ))
        .into());
    }
    // Of a file: of the disk below its file system.
    let rotates = queue_limit(part.device, "rotational") == Some(1);
    let mut limits = Limits::NONE;
    if spec.direct {
        limits = Limits::of_disk(part.device);
        limits.memory_alignment = direct_alignment(&file, path, spec)?;
    }
    Ok(Backing { file, part, ranges, rotates, limits })
}

/// The number that the kernel gave a disk when it appeared or got another medium; the kernel reuses device
/// numbers. (Linux 5.15)
fn sequence(device: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A partition has its disk's.
    let known = ["diskseq", "../diskseq"]
        .iter()
        .find_map(|name| fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{name}")).ok());
    known.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

/// Whether a disk, or all of the disk of a partition, may only be read. The kernel lets it be opened for writing,
/// and then refuses each write.
fn is_read_only(disk: &OwnedFd) -> Result<bool, Error> {
    const BLKROGET: ioctl::Opcode = ioctl::opcode::none(0x12, 94);
    // SAFETY: the kernel writes an int.
    let told = unsafe { ioctl::ioctl(disk, ioctl::Getter::<BLKROGET, std::ffi::c_int>::new()) };
    let told = told.map_err(io::Error::from);
    Ok(told.map_err(Error::doing("a disk does not tell whether it may be written"))? != 0)
}

/// The length of a disk.
fn block_device(file: &OwnedFd, spec: &Spec) -> Result<u64, String> {
    let refused = |error: Errno| format!(" does not tell its size: {error}");
    rustix::fs::ioctl_blksszget(file).map_err(refused).and_then(|sector| {
        if sector > spec.block_size {
            return Err(format!(
                " has blocks of {sector} bytes, more than the device's {}: use --block-size {sector}",
                spec.block_size
            ));
        }
        rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(refused)
    })
}

fn direct_alignment(file: &OwnedFd, path: &Path, spec: &Spec) -> Result<u32, Error> {
    let asked = StatxFlags::from_bits_retain(libc::STATX_DIOALIGN);
    let Ok(told) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked) else {
        return Ok(512);
    };
    if told.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(512);
    }
    if told.stx_dio_offset_align > spec.block_size || told.stx_dio_offset_align == 0 {
        return Err(Error::usage(format!(
            "{} takes O_DIRECT in blocks of {} bytes, not of {}: use --block-size 4096 or --buffered",
            path.display(),
            told.stx_dio_offset_align,
            spec.block_size
        )));
    }
    if told.stx_dio_mem_align > spec.block_size {
        return Err(Error::usage(format!(
            "{} takes O_DIRECT of memory aligned to {} bytes, more than a block of {}: use --block-size \
             4096 or --buffered",
            path.display(),
            told.stx_dio_mem_align,
            spec.block_size
        )));
    }
    Ok(told.stx_dio_mem_align.max(1))
}
