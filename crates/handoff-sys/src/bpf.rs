//! The two `bpf(2)` commands for a probe: load a tracing program, attach it.
//!
//! Kernel interface: `union bpf_attr` in `include/uapi/linux/bpf.h`. Programs that do real work are
//! loaded through libbpf.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_FENTRY: u32 = 24;

/// How often to load a program again whose verification the kernel broke off.
const ATTEMPTS: u32 = 5;

/// `r0 = 0; exit`: the smallest program that the verifier accepts.
const RETURN_ZERO: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];

/// The members of `union bpf_attr` that `BPF_PROG_LOAD` reads, up to `attach_btf_id`.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_prog_fd: u32,
    core_relo_cnt: u32,
}

/// The members that `BPF_RAW_TRACEPOINT_OPEN` reads.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    padding: u32,
}

const _: () = assert!(std::mem::offset_of!(ProgLoad, insns) == 8);
const _: () = assert!(std::mem::offset_of!(ProgLoad, prog_name) == 48);
const _: () = assert!(std::mem::offset_of!(ProgLoad, func_info) == 80);
const _: () = assert!(std::mem::offset_of!(ProgLoad, attach_btf_id) == 108);
const _: () = assert!(size_of::<ProgLoad>() == 120);
const _: () = assert!(size_of::<RawTracepointOpen>() == 16);

/// Loads a program that does nothing at the entry of a kernel function.
///
/// `function` is the function's type id in the kernel's BTF.
///
/// # Errors
///
/// `EPERM` without CAP_BPF and CAP_PERFMON, `EINVAL` where the function cannot be traced.
pub fn load_empty_fentry(function: u32) -> io::Result<OwnedFd> {
    const LICENSE: &CStr = c"GPL";
    let attributes = ProgLoad {
        prog_type: BPF_PROG_TYPE_TRACING,
        insn_cnt: RETURN_ZERO.len() as u32,
        insns: RETURN_ZERO.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"handoff_probe\0\0\0",
        prog_ifindex: 0,
        expected_attach_type: BPF_TRACE_FENTRY,
        prog_btf_fd: 0,
        func_info_rec_size: 0,
        func_info: 0,
        func_info_cnt: 0,
        line_info_rec_size: 0,
        line_info: 0,
        line_info_cnt: 0,
        attach_btf_id: function,
        attach_prog_fd: 0,
        core_relo_cnt: 0,
    };
    let mut attempts = ATTEMPTS;
    loop {
        attempts -= 1;
        // SAFETY: the structure holds what BPF_PROG_LOAD reads; instructions and licence are
        // statics.
        match unsafe { bpf(BPF_PROG_LOAD, &attributes) } {
            // The verifier gives up when the thread has something to do, such as a signal or a ring's
            // work; asked again, it continues.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts > 0 => {}
            result => return result,
        }
    }
}

/// Attaches a tracing program; closing the returned descriptor detaches it.
///
/// # Errors
///
/// The refusals of the kernel's tracing: `ENOTSUPP` (524) without ftrace, `EPERM`, `EBUSY`.
pub fn attach(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attributes = RawTracepointOpen { name: 0, prog_fd: program.as_raw_fd() as u32, padding: 0 };
    // SAFETY: the structure holds what BPF_RAW_TRACEPOINT_OPEN reads, with no pointer in it.
    unsafe { bpf(BPF_RAW_TRACEPOINT_OPEN, &attributes) }
}

/// Runs a command that returns a new descriptor.
///
/// # Safety
///
/// `attributes` must be laid out as `command` reads them, and pointers in it must be valid.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for the contents; the size is that of the structure.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>() as libc::c_uint,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
