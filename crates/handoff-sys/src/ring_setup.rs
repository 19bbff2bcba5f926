//! A ring that mixes completions of 16 and of 32 bytes (`IORING_SETUP_CQE_MIXED`, Linux 6.18). The
//! `io-uring` crate can neither ask for such a ring nor tell the two sizes apart.
//!
//! Kernel interface: `io_uring_setup(2)`, `include/uapi/linux/io_uring.h`. A completion with
//! [`CQE_F_32`] takes two consecutive entries of the queue; an entry with [`CQE_F_SKIP`] fills a place
//! that was too small for two.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, Parameters};

/// `IORING_SETUP_CQSIZE`.
const CQSIZE: u32 = 1 << 3;
/// `IORING_SETUP_CQE_MIXED`.
const CQE_MIXED: u32 = 1 << 18;

/// `IORING_SETUP_CLAMP`.
pub const CLAMP: u32 = 1 << 4;
/// `IORING_SETUP_SUBMIT_ALL`.
pub const SUBMIT_ALL: u32 = 1 << 7;
/// `IORING_SETUP_TASKRUN_FLAG`.
pub const TASKRUN_FLAG: u32 = 1 << 9;
/// `IORING_SETUP_SINGLE_ISSUER`.
pub const SINGLE_ISSUER: u32 = 1 << 12;
/// `IORING_SETUP_DEFER_TASKRUN`.
pub const DEFER_TASKRUN: u32 = 1 << 13;
/// `IORING_SETUP_NO_SQARRAY`.
pub const NO_SQARRAY: u32 = 1 << 16;

/// `IORING_CQE_F_BUFFER`: the flags' upper half names a buffer of a pool.
pub const CQE_F_BUFFER: u32 = 1 << 0;
/// `IORING_CQE_F_MORE`: the request has more completions to come.
pub const CQE_F_MORE: u32 = 1 << 1;
/// `IORING_CQE_F_SKIP`: not a completion.
pub const CQE_F_SKIP: u32 = 1 << 5;
/// `IORING_CQE_F_32`: the next entry is the second half of this one.
pub const CQE_F_32: u32 = 1 << 15;

/// `struct io_uring_params`; this code reads only the first three members.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    rest: [u32; 27],
}

const _: () = assert!(size_of::<Params>() == 120);
const _: () = assert!(size_of::<Params>() == size_of::<Parameters>());
const _: () = assert!(align_of::<Params>() <= align_of::<Parameters>());

/// Sets a ring up with completions of both sizes.
///
/// # Errors
///
/// `EINVAL` if the kernel does not know one of the flags.
pub fn mixed(entries: u32, cq_entries: u32, flags: u32) -> io::Result<IoUring> {
    let mut params = Params { cq_entries, flags: flags | CQSIZE | CQE_MIXED, ..Params::default() };
    // SAFETY: the kernel reads and fills the structure, which outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_io_uring_setup, entries, std::ptr::from_mut(&mut params))
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `Parameters` may be made from any filled `io_uring_params`, which this is.
    let params = unsafe { std::mem::transmute::<Params, Parameters>(params) };
    // SAFETY: the kernel just made the descriptor for us with these parameters.
    unsafe { IoUring::from_fd(fd as RawFd, params) }
}
