//! Properties of a process's pages: `PAGEMAP_SCAN` of `/proc/self/pagemap` (Linux 6.7).
//!
//! Kernel interface: `include/uapi/linux/fs.h`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// `PAGE_IS_HUGE`: mapped as a huge page, transparent or reserved.
const IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<Scan>() == 96);

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// Whether any of the `len` bytes from `start`, a page boundary, are in huge pages.
///
/// # Errors
///
/// The kernel's: `ENOTTY` where it lacks the call.
pub fn has_huge_pages(start: NonNull<u8>, len: usize) -> io::Result<bool> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let start = start.as_ptr().addr() as u64;
    // Start, end and categories of the first range of them.
    let mut found = [0_u64; 3];
    let mut scan = Scan {
        size: size_of::<Scan>() as u64,
        start,
        end: start + len as u64,
        vec: found.as_mut_ptr().addr() as u64,
        vec_len: 1,
        category_mask: IS_HUGE,
        return_mask: IS_HUGE,
        ..Scan::default()
    };
    // SAFETY: the kernel reads and writes the structure, and writes one range to `found`, which is as large
    // as that; the memory in question does not change.
    let ranges = unsafe { libc::ioctl(pagemap.as_raw_fd(), SCAN as _, &raw mut scan) };
    if ranges < 0 { Err(io::Error::last_os_error()) } else { Ok(ranges > 0) }
}
