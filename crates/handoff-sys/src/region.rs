//! `IORING_REGISTER_MEM_REGION`: memory that a ring keeps, which a BPF program in its loop can use.
//!
//! Kernel interface: `struct io_uring_mem_region_reg` in `include/uapi/linux/io_uring.h` (Linux
//! 6.13). A ring has one region; the kernel pins its pages until the ring goes.

use std::io;
use std::os::fd::RawFd;

const IORING_REGISTER_MEM_REGION: libc::c_uint = 34;
const IORING_MEM_REGION_TYPE_USER: u32 = 1;

/// `struct io_uring_region_desc`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Description {
    user_addr: u64,
    size: u64,
    flags: u32,
    id: u32,
    mmap_offset: u64,
    reserved: [u64; 4],
}

/// `struct io_uring_mem_region_reg`.
#[repr(C)]
#[derive(Default)]
struct Registration {
    region_uptr: u64,
    flags: u64,
    reserved: [u64; 2],
}

const _: () = assert!(size_of::<Description>() == 64);
const _: () = assert!(size_of::<Registration>() == 32);

impl Description {
    /// Memory of this process.
    pub(crate) fn user(address: *mut u8, len: usize) -> Self {
        Self {
            user_addr: address as u64,
            size: len as u64,
            flags: IORING_MEM_REGION_TYPE_USER,
            ..Self::default()
        }
    }
}

/// Registers whole pages of this process with a ring.
///
/// # Errors
///
/// `EINVAL` before Linux 6.13, `EBUSY` when the ring has a region, `ENOMEM` above RLIMIT_MEMLOCK.
///
/// # Safety
///
/// A program in the ring's loop may write to the memory for as long as the ring lives.
pub unsafe fn register(ring: RawFd, address: *mut u8, len: usize) -> io::Result<()> {
    let mut description = Description::user(address, len);
    let mut registration = Registration {
        region_uptr: std::ptr::from_mut(&mut description) as u64,
        ..Registration::default()
    };
    // SAFETY: both structures outlive the call, which reads and writes them only; the memory is as
    // the caller says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring,
            IORING_REGISTER_MEM_REGION,
            std::ptr::from_mut(&mut registration),
            1 as libc::c_uint,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
