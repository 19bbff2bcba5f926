//! `IORING_REGISTER_CLONE_BUFFERS`: entries of one ring's table of registered buffers also become entries of
//! another's, and their pages stay pinned once.
//!
//! Kernel interface: `struct io_uring_clone_buffers` (Linux 6.12; with offsets, into a table that is there,
//! 6.13). Both rings must count locked memory for the same user and process, else the kernel answers EINVAL.
//! The ring that has the entries must not be bound to another thread (`IORING_SETUP_SINGLE_ISSUER`), else it
//! answers EEXIST (seen on 6.18).

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
};

const IORING_REGISTER_CLONE_BUFFERS: u32 = 30;
const IORING_REGISTER_DST_REPLACE: u32 = 1 << 1;

/// `struct io_uring_clone_buffers`.
#[repr(C)]
struct CloneBuffers {
    source: u32,
    flags: u32,
    source_offset: u32,
    offset: u32,
    count: u32,
    reserved: [u32; 3],
}

const _: () = assert!(size_of::<CloneBuffers>() == 32);

/// A run of entries in the table of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    /// The ring.
    pub ring: BorrowedFd<'a>,
    /// The first of them.
    pub first: u32,
}

/// Copies `count` entries of `source` to entries of `into`, replacing those that are there. Empty ones are
/// cloned as such.
///
/// # Errors
///
/// The kernel's; see the module.
pub fn clone(source: Entries<'_>, into: Entries<'_>, count: u32) -> io::Result<()> {
    let source_fd = source.ring.as_raw_fd();
    register(into.ring, source_fd, source.first, into.first, count)
}

/// Whether the kernel can clone entries into an existing table. Clones nothing: the named ring does not exist.
///
/// # Errors
///
/// Why it cannot: EINVAL from a kernel without this operation.
pub fn is_possible(ring: BorrowedFd<'_>) -> io::Result<()> {
    match register(ring, -1, 0, 0, 1) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(()),
        answer => answer,
    }
}

fn register(
    into: BorrowedFd<'_>,
    source: RawFd,
    source_offset: u32,
    offset: u32,
    count: u32,
) -> io::Result<()> {
    let arguments = CloneBuffers {
        source: source.cast_unsigned(),
        flags: IORING_REGISTER_DST_REPLACE,
        source_offset,
        offset,
        count,
        reserved: [0; 3],
    };
    // SAFETY: the kernel reads one argument of this layout, which outlives the call, and no other memory.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            into.as_raw_fd(),
            IORING_REGISTER_CLONE_BUFFERS,
            &raw const arguments,
            1 as libc::c_uint,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
