//! A disk over a file without a name, or over a given file, by the driver loop.
//!
//! Minimum kernel: 5.8 (LOOP_CONFIGURE). The device clears itself when its last user has gone. We are a
//! user, so it goes with the process, and a file without a name goes with it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
};

use super::Disk;
use crate::driver::load;
use crate::error::{TopologyError, asked};

// linux/loop.h
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    ids: [u64; 3],
    offset: u64,
    size_limit: u64,
    numbers: [u32; 3],
    flags: u32,
    names: [[u8; 64]; 2],
    key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// A disk over a file.
#[derive(Debug)]
pub struct LoopDisk {
    path: PathBuf,
    _device: File,
}

impl LoopDisk {
    /// Makes one of `bytes` bytes in blocks of `block` bytes over a sparse file in `directory`. With
    /// `direct`, the driver bypasses the page cache to read and write the file.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Unavailable`] if the driver is absent; the file system's error if it has no
    /// files without a name, or no direct I/O.
    pub fn new(
        directory: &Path,
        bytes: u64,
        block: u32,
        direct: bool,
    ) -> Result<Self, TopologyError> {
        let wrong = || format!("make a file of {bytes} bytes in {}", directory.display());
        let file = tempfile::tempfile_in(directory).map_err(asked(wrong()))?;
        file.set_len(bytes).map_err(asked(wrong()))?;
        Self::of(&file, block, direct)
    }

    /// Makes one over an existing file or block device, in blocks of `block` bytes.
    ///
    /// # Errors
    ///
    /// As [`LoopDisk::new`], and the errors of opening it.
    pub fn over(path: &Path, block: u32, direct: bool) -> Result<Self, TopologyError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(if direct { libc::O_DIRECT } else { 0 });
        let file = options.open(path).map_err(asked(format!("open {}", path.display())))?;
        Self::of(&file, block, direct)
    }

    fn of(file: &File, block: u32, direct: bool) -> Result<Self, TopologyError> {
        load("loop", &[])?;
        let control = File::open("/dev/loop-control").map_err(asked("open /dev/loop-control"))?;
        loop {
            let number = ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, std::ptr::null_mut())
                .map_err(asked("find a free loop device"))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(asked(format!("open {}", path.display())))?;
            match configure(&device, file, block, direct) {
                // Somebody else was faster; try the next one.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(asked(format!("set {} up", path.display()))(error)),
                Ok(()) => return Ok(Self { path, _device: device }),
            }
        }
    }
}

fn configure(device: &File, file: &File, block: u32, direct: bool) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid loop_config, which is plain data.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().unsigned_abs();
    config.block_size = block;
    config.info.flags = LO_FLAGS_AUTOCLEAR | if direct { LO_FLAGS_DIRECT_IO } else { 0 };
    ioctl(device.as_raw_fd(), LOOP_CONFIGURE, (&raw mut config).cast()).map(drop)
}

fn ioctl(fd: RawFd, request: libc::Ioctl, argument: *mut libc::c_void) -> io::Result<i32> {
    // SAFETY: both requests of this module take either nothing or a live loop_config.
    let answer = unsafe { libc::ioctl(fd, request, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

impl Disk for LoopDisk {
    fn path(&self) -> &Path {
        &self.path
    }
}
