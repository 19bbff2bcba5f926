//! The files and block devices that a device is made of.
//!
//! Contracts: a backing is ours alone for as long as it is open (a block device by O_EXCL, a file by
//! an flock that dies with the server); what is wrong with it is said before any device is made.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::life::Map;
use crate::{Error, Spec};

/// An open backing.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) file: OwnedFd,
    /// Bytes that can be used, a multiple of the block size.
    pub(crate) size: u64,
    /// Whether ranges of it can be given back.
    pub(crate) discards: bool,
    /// What memory that goes straight to it has to be aligned to.
    pub(crate) memory_alignment: u32,
    identity: (u64, u64),
}

/// A device that exists already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Existing {
    pub(crate) id: u32,
    pub(crate) map: Map,
}

/// Opens all that a device is made of. Of one that exists already, files may have shrunk, which their
/// requests will see, and nothing is wanted of a leg that is out.
pub(crate) fn open_all(spec: &Spec, existing: Option<&Existing>) -> Result<Vec<Backing>, Error> {
    let mut backings: Vec<Backing> = Vec::new();
    for (index, path) in spec.files.iter().enumerate() {
        let is_out = existing.is_some_and(|existing| existing.map.failed[index] != 0);
        backings.push(match open(path, spec, existing, &backings) {
            Err(_) if is_out => stand_in()?,
            opened => opened?,
        });
    }
    Ok(backings)
}

/// Keeps the place of a leg that is out.
fn stand_in() -> Result<Backing, Error> {
    let file = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::doing("/dev/null cannot be opened"))?;
    Ok(Backing { file, size: 0, discards: false, memory_alignment: 1, identity: (0, 0) })
}

fn open(
    path: &Path,
    spec: &Spec,
    existing: Option<&Existing>,
    others: &[Backing],
) -> Result<Backing, Error> {
    let name = path.display();
    let metadata = fs::metadata(path).map_err(|error| Error::usage(format!("{name}: {error}")))?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::usage(format!("{name} is neither a file nor a block device")));
    }
    let own = existing.and_then(|own| fs::metadata(format!("/dev/ublkb{}", own.id)).ok());
    if let Some(own) = own {
        let holds = if kind.is_file() { metadata.dev() } else { metadata.rdev() };
        if holds == own.rdev() {
            return Err(Error::usage(format!("{name} lies on the device that it is to carry")));
        }
    }
    let identity = match kind.is_file() {
        true => (metadata.dev(), metadata.ino()),
        false => (u64::MAX, metadata.rdev()),
    };
    if others.iter().any(|other| other.identity == identity) {
        return Err(Error::usage(format!("{name} is given twice")));
    }
    let mut flags = OFlags::CLOEXEC;
    flags |= if spec.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if spec.direct {
        flags |= OFlags::DIRECT;
    }
    if kind.is_block_device() {
        flags |= OFlags::EXCL;
    }
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::BUSY => Error::usage(format!("{name} is in use: unmount it, or end what holds it")),
        Errno::INVAL if spec.direct => Error::usage(format!(
            "{name} cannot be opened with O_DIRECT: its file system does not have it (--buffered)"
        )),
        error => Error::usage(format!("{name} cannot be opened: {error}")),
    })?;
    if kind.is_file() {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::usage(format!("{name} is in use by another device: remove that one first"))
        })?;
    }
    let (len, discards) = if kind.is_file() {
        (metadata.len(), punches(&file, metadata.len()))
    } else {
        block_device(&file, &metadata, spec)
            .map_err(|cause| Error::usage(format!("{name}{cause}")))?
    };
    let size = len - len % u64::from(spec.block_size);
    if size == 0 && existing.is_none() {
        return Err(Error::usage(format!(
            "{name} has {len} bytes, less than a block of {}",
            spec.block_size
        )));
    }
    let memory_alignment = if spec.direct { direct_alignment(&file, path, spec)? } else { 1 };
    Ok(Backing { file, size, discards: discards && !spec.read_only, memory_alignment, identity })
}

/// Whether a file system makes holes: tried behind the end of the file, where there is nothing.
fn punches(file: &OwnedFd, len: u64) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, len.next_multiple_of(4096), 4096).is_ok()
}

fn block_device(
    file: &OwnedFd,
    metadata: &fs::Metadata,
    spec: &Spec,
) -> Result<(u64, bool), String> {
    let refused = |error: Errno| format!(" does not tell its size: {error}");
    let len = rustix::fs::ioctl_blksszget(file)
        .map_err(refused)
        .and_then(|sector| {
            if sector > spec.block_size {
                return Err(format!(
                    " has blocks of {sector} bytes, more than the device's {}: use --block-size {sector}",
                    spec.block_size
                ));
            }
            rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).map_err(refused)
        })?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    // A partition's queue is its disk's.
    let discards = ["queue", "../queue"].iter().any(|queue| {
        fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes"))
            .is_ok_and(|most| most.trim() != "0")
    });
    Ok((len, discards))
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
