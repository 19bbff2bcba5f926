//! What the kernel says about a file (`statx`).

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Statx, StatxFlags, StatxTimestamp};

/// The alignment of direct I/O on a file, in bytes: see [`File::alignment`](crate::File::alignment).
///
/// ```no_run
/// # fn example(file: &handoff::File) {
/// if let Some(handoff::Alignment { memory, blocks }) = file.alignment() {
///     println!("pieces of memory at multiples of {memory}, which fill blocks of {blocks}");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// For address and length of each piece of memory: what the device's DMA asks for.
    pub memory: usize,
    /// For the offset in the file, and the length of all pieces of a read or write together.
    pub blocks: usize,
}

/// What the kernel says about a file, by [`File::metadata`](crate::File::metadata) or
/// [`Directory::metadata`](crate::Directory::metadata).
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
/// let metadata = driver.working_directory()?.metadata("disk.img")?.await?;
/// println!("{} bytes, of which {} take room", metadata.len(), metadata.allocated());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Metadata(pub(crate) Box<Statx>);

impl Metadata {
    /// Bytes of the file.
    #[allow(clippy::len_without_is_empty, reason = "as std has it")]
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// Bytes that it takes on its device: less than [`len`](Self::len) if it has holes, more if room was reserved.
    pub fn allocated(&self) -> u64 {
        self.0.stx_blocks * 512
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode())
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Whether it is a symbolic link, of which [`Directory::symlink_metadata`](crate::Directory::symlink_metadata) tells.
    pub fn is_symlink(&self) -> bool {
        self.kind() == FileType::Symlink
    }

    /// Kind and permissions, as `st_mode` has them.
    pub fn mode(&self) -> u32 {
        self.0.stx_mode.into()
    }

    /// User and group that own it.
    pub fn owner(&self) -> (u32, u32) {
        (self.0.stx_uid, self.0.stx_gid)
    }

    /// How many names it has; 0 for a file without one.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Major and minor number of the device, and the number of the file there: no other file has the same now.
    pub fn identity(&self) -> ((u32, u32), u64) {
        ((self.0.stx_dev_major, self.0.stx_dev_minor), self.0.stx_ino)
    }

    /// When its bytes were written last.
    pub fn modified(&self) -> SystemTime {
        time(self.0.stx_mtime)
    }

    /// When it was made; `None` if the file system does not keep that.
    pub fn created(&self) -> Option<SystemTime> {
        self.has(StatxFlags::BTIME.bits()).then(|| time(self.0.stx_btime))
    }

    /// The alignment of direct I/O; `None` where the file system does not say (`STATX_DIOALIGN`, Linux 6.1).
    pub fn alignment(&self) -> Option<Alignment> {
        let (memory, blocks) = (self.0.stx_dio_mem_align, self.0.stx_dio_offset_align);
        let is_told = self.has(libc::STATX_DIOALIGN) && memory > 0 && blocks > 0;
        is_told.then_some(Alignment { memory: memory as usize, blocks: blocks as usize })
    }

    /// The lengths of writes with [`RwFlags::ATOMIC`](crate::RwFlags::ATOMIC), powers of two; `None` if there are none
    /// (`STATX_WRITE_ATOMIC`, Linux 6.11).
    pub fn atomic_write(&self) -> Option<RangeInclusive<usize>> {
        let (min, max) = (self.0.stx_atomic_write_unit_min, self.0.stx_atomic_write_unit_max);
        let is_told = self.has(libc::STATX_WRITE_ATOMIC) && max > 0;
        is_told.then_some(min as usize..=max as usize)
    }

    fn has(&self, told: u32) -> bool {
        self.0.stx_mask & told != 0
    }
}

fn time(told: StatxTimestamp) -> SystemTime {
    let whole = Duration::from_secs(told.tv_sec.unsigned_abs());
    let begin = if told.tv_sec < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    begin + Duration::from_nanos(told.tv_nsec.into())
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("len", &self.len())
            .field("mode", &format_args!("{:o}", self.mode()))
            .field("identity", &self.identity())
            .finish_non_exhaustive()
    }
}
