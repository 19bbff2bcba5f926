//! The files and block devices behind a device.
//!
//! Contracts: a backing is exclusively ours as long as it is open (a block device by O_EXCL, a file by locks of
//! the open file), and its bytes are in no other use that shows; errors in a backing are reported before any
//! device is made. Everything known about a backing is known of the open file. It is judged once, when the
//! device is made; a later server that must open it anew accepts no other.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl;
use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::existing::Existing;
use crate::limits::{Limits, queue_limit};
use crate::ranges::Ranges;
use crate::record::Part;
use crate::{Control, Error, Kind, Spec, claims, identity, image_lock};

/// An open backing.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) file: OwnedFd,
    pub(crate) facts: Facts,
}

impl Backing {
    #[cfg(test)]
    pub(crate) fn of_test(file: OwnedFd, part: Part) -> Self {
        Self::of_known(file, &part)
    }

    /// Of a device that exists: what its files can do was judged when it was made.
    fn of_known(file: OwnedFd, known: &Part) -> Self {
        let (ranges, rotates, limits) = (Ranges::default(), false, Limits::NONE);
        Self { file, facts: Facts { part: known.clone(), ranges, rotates, limits } }
    }
}

/// What is known of a backing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
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
    /// The error number for a leg's note.
    pub(crate) number: i32,
    /// Whether somebody holds it, who may let go.
    pub(crate) is_held: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, number: libc::ESTALE, is_held: false }
    }
}

impl Refused {
    fn by(errno: Errno, error: Error) -> Self {
        let error = error.caused_by(errno.into());
        Self { error, number: errno.raw_os_error(), is_held: errno == Errno::BUSY }
    }

    /// Whether nothing is there, or it does not answer.
    fn is_away(&self) -> bool {
        const AWAY: [i32; 6] =
            [libc::ENOENT, libc::ENXIO, libc::ENODEV, libc::EIO, libc::ENOMEDIUM, libc::ETIMEDOUT];
        AWAY.contains(&self.number)
    }
}

fn in_use(path: &Path, reason: String) -> Error {
    Error::InUse { path: path.to_owned(), reason }
}

/// Opens the backings of a new device. None has bytes of another.
pub(crate) fn open_new(spec: &Spec, control: &mut Control) -> Result<Vec<Backing>, Error> {
    let mut backings = Vec::new();
    for path in &spec.files {
        let opened = open_next(path, spec, control, &backings).map_err(|refused| refused.error)?;
        backings.push((path.as_path(), opened));
    }
    Ok(backings.into_iter().map(|(_, backing)| backing).collect())
}

/// Opens the named legs of a mirror. Those that are not there or do not answer are refused, each for itself.
pub(crate) fn open_legs(
    spec: &Spec,
    control: &mut Control,
) -> Result<Vec<Result<Backing, Refused>>, Error> {
    let (mut backings, mut refused) = (Vec::new(), Vec::new());
    for (place, path) in spec.files.iter().enumerate() {
        match open_next(path, spec, control, &backings) {
            Ok(backing) => backings.push((path.as_path(), backing)),
            Err(absent) if absent.is_away() => refused.push((place, absent)),
            Err(refused) => return Err(refused.error),
        }
    }
    let mut legs: Vec<_> = backings.into_iter().map(|(_, backing)| Ok(backing)).collect();
    refused.into_iter().for_each(|(place, absent)| legs.insert(place, Err(absent)));
    Ok(legs)
}

/// Opens another backing, which has no bytes of those before it.
fn open_next(
    path: &Path,
    spec: &Spec,
    control: &mut Control,
    before: &[(&Path, Backing)],
) -> Result<Backing, Refused> {
    let name = path.display();
    let found = find(path)?;
    let bytes = Bytes::of(&found.part);
    let other = before.iter().find(|(_, other)| Bytes::of(&other.facts.part).meet(&bytes));
    match other {
        Some((other, _)) if *other == path => {
            return Err(Error::invalid(format!("{name} is given twice")).into());
        }
        Some((other, _)) => {
            return Err(Error::invalid(format!(
                "{name} is given twice: it has bytes of {}, too",
                other.display()
            ))
            .into());
        }
        None => {}
    }
    let holder = claims::holder(control, &found.part);
    let backing = found.open(path, spec);
    // Who has it says more than that it is in use.
    let backing = match holder {
        Some(holder) => return Err(holder.refuses(path).into()),
        None => backing?,
    };
    if !found.is_disk {
        image_lock::take(&backing, spec.read_only)
            .map_err(|cause| in_use(path, format!("{name} is in use: {cause}; end that first")))?;
    }
    if let Some(disk) = bytes.loop_device(spec.read_only) {
        return Err(
            in_use(path, format!("{name} is in use by {disk}: losetup -d {disk} first")).into()
        );
    }
    if identity::is_veiled(backing.as_fd(), &found.part) {
        tracing::warn!(
            "which file below {name} has its bytes is not known here: use that for nothing else"
        );
    }
    Ok(found.judge(backing, path, spec)?)
}

/// Those that give ranges back by a command, by bit.
pub(crate) fn by_command(backings: &[Backing]) -> u32 {
    let each = (0..).zip(backings);
    each.fold(0, |all, (place, backing)| all | u32::from(backing.facts.ranges.by_command) << place)
}

/// A leg of a mirror that is taken out, and the error number.
pub(crate) type TakenOut = (usize, i32);

/// Opens the backings of an existing device by path, which must be those that it was made of. A leg that is out
/// may be anything. A leg of a mirror that is not there or another is to be taken out, if a good one is left; one
/// that somebody holds, if that is not to be waited for.
pub(crate) fn open_known(
    existing: &Existing,
    waits: bool,
) -> Result<(Vec<Backing>, Vec<TakenOut>), Refused> {
    let Existing { id, map, record } = existing;
    let spec = &record.spec;
    let (mut backings, mut taken_out, mut worst) = (Vec::new(), Vec::new(), None);
    for (leg, (path, known)) in spec.files.iter().zip(&record.parts).enumerate() {
        match find(path).and_then(|found| found.known(*id, path, spec, known, waits)) {
            Ok(backing) => backings.push(backing),
            Err(_) if map.is_out(leg) => backings.push(stand_in(known)?),
            Err(refused) => {
                let is_lack = matches!(refused.error, Error::Starved { .. });
                if spec.target != Kind::Mirror || is_lack || (refused.is_held && waits) {
                    return Err(refused);
                }
                backings.push(stand_in(known)?);
                taken_out.push((leg, refused.number));
                tracing::warn!("the leg is taken out of device {id}: {}", refused.error);
                worst = Some(refused);
            }
        }
    }
    let are_out = (0..backings.len()).filter(|leg| map.is_out(*leg)).count() + taken_out.len();
    match worst {
        Some(refused) if are_out == backings.len() => Err(refused),
        _ => Ok((backings, taken_out)),
    }
}

/// Keeps the place of a leg of a new device that is not there. It does not limit the others.
pub(crate) fn stand_in_of_new() -> Result<Backing, Error> {
    let mut backing = stand_in(&Part::default())?;
    backing.facts.ranges = Ranges { discards: true, by_command: false, zeroes: true };
    Ok(backing)
}

/// Keeps the place of a leg that is out.
fn stand_in(known: &Part) -> Result<Backing, Error> {
    let file = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(Error::doing("/dev/null cannot be opened"))?;
    Ok(Backing::of_known(file, known))
}

/// A file or disk, not yet open for use. Its facts come from this, even if the path changes.
struct Candidate {
    file: File,
    metadata: fs::Metadata,
    is_disk: bool,
    part: Part,
}

/// Does not open something that is neither a file nor a disk, since that can have effects.
fn find(path: &Path) -> Result<Candidate, Refused> {
    let name = path.display();
    let refused = |errno: Errno| Refused::by(errno, Error::unusable(format!("{name}: {errno}")));
    let file =
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(refused)?;
    let file = File::from(file);
    let metadata = file
        .metadata()
        .map_err(|error| Error::unusable(format!("{name}: {error}")).caused_by(error))?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::unusable(format!("{name} is neither a file nor a block device")).into());
    }
    let is_disk = kind.is_block_device();
    let part = match is_disk {
        false => identity::of_file(&file, &metadata),
        true => {
            Part { device: metadata.rdev(), sequence: sequence(metadata.rdev()), ..Part::default() }
        }
    };
    Ok(Candidate { file, metadata, is_disk, part })
}

impl Candidate {
    /// Opens it for use, a disk for us alone.
    fn open(&self, path: &Path, spec: &Spec) -> Result<OwnedFd, Refused> {
        let name = path.display();
        let mut flags = OFlags::CLOEXEC;
        flags |= if spec.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        if spec.direct {
            flags |= OFlags::DIRECT;
        }
        if self.is_disk {
            flags |= OFlags::EXCL;
        }
        let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::open(again, flags, Mode::empty()).map_err(|errno| {
            let error = match errno {
                Errno::BUSY => {
                    in_use(path, format!("{name} is in use: unmount it, or end what holds it"))
                }
                Errno::INVAL if spec.direct => Error::unusable(format!(
                    "{name} cannot be opened with O_DIRECT: its file system does not have it (--buffered)"
                )),
                errno => Error::unusable(format!("{name} cannot be opened: {errno}")),
            };
            Refused::by(errno, error)
        })
    }

    /// The backing of a new device.
    fn judge(self, file: OwnedFd, path: &Path, spec: &Spec) -> Result<Backing, Error> {
        let name = path.display();
        let Self { metadata, is_disk, mut part, .. } = self;
        let (len, ranges) = if is_disk {
            if !spec.read_only && is_read_only(&file)? {
                return Err(Error::unusable(format!(
                    "{name} is set to be only read: let it be written (blockdev --setrw), or make the device \
                     --read-only"
                )));
            }
            let len = block_device(&file, spec)
                .map_err(|cause| Error::unusable(format!("{name}{cause}")))?;
            (len, Ranges::of_disk(&file, part.device))
        } else {
            (metadata.len(), Ranges::of_file(&file, metadata.len()))
        };
        part.size = len - len % u64::from(spec.block_size);
        if part.size == 0 {
            return Err(Error::unusable(format!(
                "{name} has {len} bytes, less than a block of {}",
                spec.block_size
            )));
        }
        // Of a file: of the disk below its file system.
        let rotates = queue_limit(part.device, "rotational") == Some(1);
        let mut limits = Limits::NONE;
        if spec.direct {
            limits = Limits::of_disk(part.device);
            limits.memory_alignment = direct_alignment(&file, path, spec)?;
        }
        let facts = Facts { part, ranges, rotates, limits };
        Ok(Backing { file, facts })
    }

    /// The known backing of an existing device, or why this is not it. What it can do was judged before.
    fn known(
        self,
        id: u32,
        path: &Path,
        spec: &Spec,
        known: &Part,
        waits: bool,
    ) -> Result<Backing, Refused> {
        let name = path.display();
        let own = fs::metadata(format!("/dev/ublkb{id}")).ok();
        if own.is_some_and(|own| own.rdev() == self.part.device) {
            return Err(
                Error::unusable(format!("{name} lies on the device that it is to carry")).into()
            );
        }
        if !self.part.is_same(known) {
            return Err(Error::unusable(format!(
                "{name} is another file or disk than the one that the device was made of: put that back"
            ))
            .into());
        }
        let file = self.open(path, spec)?;
        if !self.is_disk
            && let Err(cause) = image_lock::take(&file, spec.read_only)
        {
            if waits {
                let error = in_use(path, format!("{name} is in use: {cause}"));
                return Err(Refused::by(Errno::BUSY, error));
            }
            // Whoever may read it can lock it.
            tracing::warn!("device {id} goes on with {name}, though {cause}");
        }
        let len = match self.is_disk {
            true => rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|errno| {
                Refused::by(
                    errno,
                    Error::unusable(format!("{name} does not tell its size: {errno}")),
                )
            })?,
            false => self.metadata.len(),
        };
        if len < known.size {
            return Err(Error::unusable(format!(
                "{name} has {len} bytes, and had {} when the device was made of it: give it back its length",
                known.size
            ))
            .into());
        }
        Ok(Backing::of_known(file, known))
    }
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
        return Err(Error::unusable(format!(
            "{} takes O_DIRECT in blocks of {} bytes, not of {}: use --block-size 4096 or --buffered",
            path.display(),
            told.stx_dio_offset_align,
            spec.block_size
        )));
    }
    if told.stx_dio_mem_align > spec.block_size {
        return Err(Error::unusable(format!(
            "{} takes O_DIRECT of memory aligned to {} bytes, more than a block of {}: use --block-size \
             4096 or --buffered",
            path.display(),
            told.stx_dio_mem_align,
            spec.block_size
        )));
    }
    Ok(told.stx_dio_mem_align.max(1))
}
