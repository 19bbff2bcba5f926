//! `IORING_REGISTER_QUERY`: asks the kernel what its io_uring can do, without a ring.
//!
//! Kernel interface: `include/uapi/linux/io_uring/query.h` (Linux 6.18; the zcrx query 6.19). A kernel
//! that lacks the call or the question returns an error; one that knows less than was asked fills a
//! shorter answer and leaves the rest zero.

use std::io;

const IORING_REGISTER_QUERY: libc::c_uint = 35;
const IO_URING_QUERY_ZCRX: u32 = 1;

/// `ZCRX_REG_IMPORT`: rings may share a queue.
pub const ZCRX_REG_IMPORT: u64 = 1 << 0;
/// `ZCRX_REG_NODEV` (Linux 7.2): a zcrx instance without a device; the kernel copies everything.
pub const ZCRX_REG_NODEV: u64 = 1 << 1;

/// `ZCRX_FEATURE_EVENT` (Linux 7.2): events and statistics.
pub const ZCRX_FEATURE_EVENT: u32 = 1 << 1;

/// `struct io_uring_query_hdr`.
#[repr(C)]
#[derive(Debug, Default)]
struct Header {
    next_entry: u64,
    query_data: u64,
    query_op: u32,
    size: u32,
    result: i32,
    reserved: [u32; 3],
}

/// `struct io_uring_query_zcrx`: what the kernel's zero-copy receive can do.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zcrx {
    /// Supported `ZCRX_REG_*` flags.
    pub register_flags: u64,
    /// Supported `IORING_ZCRX_AREA_*` flags.
    pub area_flags: u64,
    /// Number of `ZCRX_CTRL_*` operations.
    pub nr_ctrl_opcodes: u32,
    /// `ZCRX_FEATURE_*` bits.
    pub features: u32,
    /// Size in bytes of the refill queue's header.
    pub rq_hdr_size: u32,
    /// Alignment in bytes of that header.
    pub rq_hdr_alignment: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Header>() == 40);
const _: () = assert!(size_of::<Zcrx>() == 40);

/// Asks what zero-copy receive can do.
///
/// # Errors
///
/// `EINVAL` or `EBADF` from kernels without the call, `EOPNOTSUPP` from those without this question, and
/// any refusal of io_uring itself.
pub fn zcrx() -> io::Result<Zcrx> {
    let mut answer = Zcrx::default();
    let mut header = Header {
        query_data: std::ptr::from_mut(&mut answer) as u64,
        query_op: IO_URING_QUERY_ZCRX,
        size: size_of::<Zcrx>() as u32,
        ..Header::default()
    };
    // SAFETY: header and answer are live, writable and of the sizes given for the whole call, and
    // every bit pattern that the kernel may store in them is valid.
    let status = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            -1 as libc::c_int,
            IORING_REGISTER_QUERY,
            std::ptr::from_mut(&mut header),
            0 as libc::c_uint,
        )
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    if header.result < 0 {
        return Err(io::Error::from_raw_os_error(-header.result));
    }
    Ok(answer)
}
