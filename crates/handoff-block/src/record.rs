//! What is written down of a device, for whoever shows or recovers it.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::limits::Limits;
use crate::request::Recorded;
use crate::ring;
use crate::spec::{Engine, Kind, PassedOver, Spec};

/// The layout of records and states that this program writes. It reads all before it: 0 had no number, and 1 no
/// mirrors with records.
pub(crate) const VERSION: u32 = 2;

/// The record beside the state, for whoever shows or recovers the device.
///
/// [`Directory::read`](crate::state::Directory::read) and [`Server::record`](crate::Server::record) return it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The layout of this record.
    #[serde(default)]
    pub version: u32,
    /// What was asked for.
    pub spec: Spec,
    /// A number that no other device has, also not a later one with this one's number.
    pub made: u64,
    /// The engine in use.
    pub engine: Engine,
    /// Better engines that were not taken, with the reasons.
    pub passed_over: Vec<PassedOver>,
    /// Bytes of the device.
    pub size: u64,
    /// Bytes of memory that the server needs for it beside its code: buffers, rings and state.
    pub memory: u64,
    /// The limits of its requests.
    pub limits: Limits,
    /// Files that are disks which give ranges back by a command, by bit.
    #[serde(default)]
    pub by_command: u32,
    /// Its files when it was made, in order.
    pub parts: Vec<Part>,
    /// What all legs of a mirror say of it, if they have records. Files and parts are in the order of their numbers
    /// then; a leg that was not there at the start is an empty path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<RecordedMirror>,
}

/// A mirror whose legs have records; `docs/mirror-design.md` has their layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMirror {
    /// As text.
    pub uuid: String,
    /// Log2 of the bytes that a bit of the write-intent bitmap stands for.
    pub chunk_shift: u32,
    /// Where each leg ends, by number; 0 of a leg that was not there at the start.
    pub ends: Vec<u64>,
    /// What the user should know of the start, a line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Record {
    /// Reads a record of any layout up to [`VERSION`].
    pub(crate) fn parse(text: &[u8]) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Layout {
            #[serde(default)]
            version: u32,
        }
        let Layout { version } = serde_json::from_slice(text)?;
        check_version(version)?;
        let record = serde_json::from_slice(text)?;
        Ok(Self { version: VERSION, ..record })
    }

    /// Why serving takes memory for which the kernel may wait until the server has written; `None` if it takes
    /// none, on disks.
    pub fn takes_memory(&self) -> Option<String> {
        ring::takes_memory(self.engine, &self.spec, &self.limits)
    }

    /// How many chunks the write-intent bitmap of the mirror has; 0 of devices that need none.
    pub(crate) fn chunks(&self) -> usize {
        self.recorded().map_or(0, |recorded| recorded.chunks())
    }

    /// `None`: the legs have no records, or nobody may write to them.
    pub(crate) fn recorded(&self) -> Option<Recorded> {
        const CHUNK_SHIFTS: RangeInclusive<u32> = 20..=26;
        let mirror = self.mirror.as_ref().filter(|_| !self.spec.read_only)?;
        let digits: Vec<_> = mirror.uuid.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let mut uuid = [0; 16];
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (pair[0] << 4 | pair[1]) as u8;
        }
        let chunk_shift = mirror.chunk_shift;
        let is_one = CHUNK_SHIFTS.contains(&chunk_shift);
        is_one.then_some(Recorded { uuid, size: self.size, chunk_shift })
    }

    /// Files longer than the part that the device uses, with the bytes left over.
    pub fn unused(&self) -> impl Iterator<Item = (&Path, u64)> {
        let each = match self.spec.target {
            Kind::Mirror => self.size,
            Kind::Stripe => self.size / self.parts.len().max(1) as u64,
            _ => u64::MAX,
        };
        let files = self.spec.files.iter().map(PathBuf::as_path).zip(&self.parts);
        files
            .filter(move |(_, part)| part.size > each)
            .map(move |(file, part)| (file, part.size - each))
    }
}

/// Refuses a layout that this program does not know.
pub(crate) fn check_version(version: u32) -> io::Result<()> {
    if version <= VERSION {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "a newer handoff wrote it (layout {version}, and this one reads up to {VERSION}): use that one"
    )))
}

/// Identity of a file or disk behind a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The device that a file lies on, or the number of a disk.
    pub device: u64,
    /// Of a file; 0 of a disk.
    pub inode: u64,
    /// Of a disk: the kernel's number for its appearance or last medium; 0 of a file.
    pub sequence: u64,
    /// Usable bytes.
    pub size: u64,
    /// When a file was made, in seconds and nanoseconds, if its file system tells.
    #[serde(default)]
    pub birth: Option<(i64, u32)>,
    /// A file's handle, which tells a new file from an old one of the same inode, if its file system has any.
    #[serde(default)]
    pub handle: Option<String>,
    /// Of a file on overlayfs: device and inode of the file below, which has the bytes.
    #[serde(default)]
    pub below: Option<(u64, u64)>,
}

impl Part {
    /// Whether both are the same file or disk, of any length. What is not known of one of them tells nothing.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        fn agree<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
            one.zip(other).is_none_or(|(one, other)| one == other)
        }
        self.has_number(other)
            && self.sequence == other.sequence
            && agree(self.birth.as_ref(), other.birth.as_ref())
            && agree(self.handle.as_ref(), other.handle.as_ref())
    }

    /// Whether all that are there are files of one file system.
    pub(crate) fn have_one_store(all: &[Self]) -> bool {
        let mut there = all.iter().filter(|part| !part.is_nothing());
        let Some(first) = there.clone().next() else { return true };
        there.all(|part| part.inode != 0 && part.device == first.device)
    }

    /// Whether this is a leg of a mirror that was not there at the start.
    pub(crate) fn is_nothing(&self) -> bool {
        self.device == 0
    }

    /// Whether this may be there, when the other is: not if the other has got its number since.
    pub(crate) fn is_still(&self, other: &Self) -> bool {
        !self.has_number(other) || self.is_same(other)
    }

    fn has_number(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}
