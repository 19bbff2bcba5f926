//! A disk whose writes and flushes are recorded, so that its content at a power cut can be made: the device mapper's
//! target log-writes over another disk.
//!
//! Minimum kernel: 4.1.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use super::{
    Disk, LoopDisk,
    device_mapper::{Mapped, Part},
};
use crate::driver::load;
use crate::error::{TopologyError, asked};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// `LOG_FLUSH_FLAG` and so on, of drivers/md/dm-log-writes.c.
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
const MAGIC: u64 = 0x006a_7366_7773_6872;

/// Something that happened to the disk. Writes come in the order in which they ended, each before the first flush that
/// made it durable: so those before a mark were durable then, and those that had ended come first behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Bytes were written.
    Write {
        /// Where.
        at: u64,
        /// Which.
        bytes: Vec<u8>,
        /// Whether they were durable as soon as they were written (FUA).
        is_durable: bool,
    },
    /// Bytes were discarded.
    Discard {
        /// Where.
        at: u64,
        /// How many.
        length: u64,
    },
    /// All before is durable.
    Flush,
    /// [`Logged::mark`].
    Mark(String),
}

/// Another disk, recorded.
#[derive(Debug)]
pub struct Logged<D> {
    // Dropped before the disks below it.
    mapped: Mapped,
    path: PathBuf,
    _lower: D,
    log: PathBuf,
    _log: LoopDisk,
}

impl<D: Disk> Logged<D> {
    /// Records what happens to `lower`, which must not be in use, in a file of `room` bytes at most.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if the target is absent; the file's errors.
    pub fn over(lower: D, log: &Path, room: u64) -> Result<Self, TopologyError> {
        load("dm_log_writes", &[])?;
        let wrong = || format!("make {}", log.display());
        File::create(log).and_then(|file| file.set_len(room)).map_err(asked(wrong()))?;
        let disk = LoopDisk::over(log, 512, false)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("handoff-logged-{}-{number}", std::process::id());
        let mapped = Mapped::new(name).map_err(asked("make a device of the device mapper"))?;
        let parameters = format!("{} {}", lower.path().display(), disk.path().display());
        mapped
            .set(&[Part { kind: "log-writes", parameters: &parameters, bytes: lower.bytes()? }])
            .map_err(asked("record a disk's writes"))?;
        let path = PathBuf::from(format!("/dev/dm-{}", mapped.number));
        Ok(Self { mapped, path, _lower: lower, log: log.to_owned(), _log: disk })
    }

    /// Puts a mark into the record.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn mark(&self, name: &str) -> Result<(), TopologyError> {
        self.mapped.tell(&format!("mark {name}")).map_err(asked("mark a disk's record"))
    }

    /// Returns when no request is under way any more. Those that come wait for [`Logged::resume`].
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn suspend(&self) -> Result<(), TopologyError> {
        self.mapped.suspend().map_err(asked("suspend a disk"))
    }

    /// Lets requests go on.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn resume(&self) -> Result<(), TopologyError> {
        self.mapped.resume().map_err(asked("resume a disk"))
    }

    /// Removes the disk, which nobody may have open, and tells what happened to it.
    ///
    /// # Errors
    ///
    /// Those of reading the record.
    ///
    /// # Panics
    ///
    /// Where the kernel's record is none.
    pub fn end(self) -> Result<Vec<Entry>, TopologyError> {
        let Self { mapped, path: _, _lower, log, _log } = self;
        // With this, the kernel writes what is missing.
        drop(mapped);
        let log = File::open(log).map_err(asked("open a disk's record"))?;
        read(&log).map_err(asked("read a disk's record"))
    }
}

fn read(log: &File) -> std::io::Result<Vec<Entry>> {
    let numbers = |at: u64| -> std::io::Result<[u64; 4]> {
        let mut bytes = [0; 32];
        log.read_exact_at(&mut bytes, at)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok([0, 1, 2, 3].map(|word| u64::from_le_bytes(words[word])))
    };
    let [magic, version, count, block] = numbers(0)?;
    assert_eq!((magic, version), (MAGIC, 1), "a record of log-writes");
    let block = block & u64::from(u32::MAX);
    let mut at = block;
    let mut all = Vec::new();
    for _ in 0..count {
        let [sector, sectors, flags, length] = numbers(at)?;
        let (place, size) = (sector * block, sectors * block);
        let mut data = vec![0; if flags & DISCARD == 0 { size as usize } else { 0 }];
        if flags & MARK != 0 {
            data.resize(length as usize, 0);
            log.read_exact_at(&mut data, at + 32)?;
            all.push(Entry::Mark(String::from_utf8_lossy(&data).into_owned()));
            at += block;
            continue;
        }
        log.read_exact_at(&mut data, at + block)?;
        at += block + data.len() as u64;
        if flags & FLUSH != 0 {
            all.push(Entry::Flush);
        }
        if flags & DISCARD != 0 {
            all.push(Entry::Discard { at: place, length: size });
        } else if size > 0 {
            let is_durable = flags & FUA != 0;
            all.push(Entry::Write { at: place, bytes: data, is_durable });
        }
    }
    Ok(all)
}

impl<D: Disk> Disk for Logged<D> {
    fn path(&self) -> &Path {
        &self.path
    }
}
