//! Dma-bufs: recognising one, and making one of a memfd.
//!
//! Kernel interface: `include/uapi/linux/magic.h` (`DMA_BUF_MAGIC`, Linux 5.3), lseek(2) on a dma-buf (3.16),
//! `include/uapi/linux/udmabuf.h` (4.20).

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// `DMA_BUF_MAGIC`: the file system of dma-bufs.
const MAGIC: libc::c_long = 0x444d_4142;
/// `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// `struct udmabuf_create`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const _: () = assert!(size_of::<Create>() == 24);

/// Bytes of a dma-buf; `None` if it is not one.
///
/// # Errors
///
/// When the kernel does not say.
pub fn len(file: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // SAFETY: all-zero bytes are a valid structure, which the kernel fills in.
    let mut told: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure outlives the call.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut told) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if told.f_type as libc::c_long != MAGIC {
        return Ok(None);
    }
    File::from(file.try_clone_to_owned()?).seek(SeekFrom::End(0)).map(Some)
}

/// Makes a dma-buf of whole pages of a memfd, which must be sealed against shrinking and not against writing.
///
/// # Errors
///
/// `ENOENT` or `EACCES` without `/dev/udmabuf`, which is root's; `EBADFD` if it is not a memfd; `EINVAL` if it is
/// not sealed so, if the range is not in pages, or longer than the module's `size_limit_mb`.
pub fn of_memfd(memfd: BorrowedFd<'_>, offset: u64, size: u64) -> io::Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/udmabuf")?;
    let create =
        Create { memfd: memfd.as_raw_fd() as u32, flags: UDMABUF_FLAGS_CLOEXEC, offset, size };
    // SAFETY: the kernel reads the structure, which outlives the call.
    let made: c_int =
        unsafe { libc::ioctl(device.as_fd().as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel gave the descriptor, which is open and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
