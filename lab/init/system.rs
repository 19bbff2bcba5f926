//! The system calls that an init needs and `std` does not have.
//!
//! `build.rs` compiles this program by itself, without any crate, so the C library's functions are
//! declared here. Each wrapper turns the C convention into a `Result`.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `mount(2)` flags.
pub(crate) const MS_RDONLY: c_ulong = 1;
pub(crate) const MS_MOVE: c_ulong = 8192;
/// `open(2)` flag: do not become the controlling terminal.
const O_NOCTTY: c_int = 0o400;
const O_RDWR: c_int = 2;
const O_CLOEXEC: c_int = 0o2000000;
const RB_POWER_OFF: c_int = 0x4321_fedc;
const TIOCSCTTY: c_ulong = 0x540e;
const TIOCSWINSZ: c_ulong = 0x5414;
const SIOCGIFFLAGS: c_ulong = 0x8913;
const SIOCSIFFLAGS: c_ulong = 0x8914;
const IFF_UP: u16 = 1;
/// x86-64 number of `finit_module(2)`, which the C library does not wrap.
const SYS_FINIT_MODULE: c_long = 313;
pub(crate) const SIGKILL: c_int = 9;

unsafe extern "C" {
    fn mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_char,
    ) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn reboot(how: c_int) -> c_int;
    fn sync();
    fn chroot(path: *const c_char) -> c_int;
    fn sethostname(name: *const c_char, length: usize) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn fork() -> c_int;
    fn setsid() -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn unlockpt(fd: c_int) -> c_int;
    fn ptsname_r(fd: c_int, name: *mut c_char, length: usize) -> c_int;
}

fn check(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// `mount(2)`.
pub(crate) fn mount_at(
    source: &Path,
    target: &Path,
    kind: &str,
    flags: c_ulong,
    data: &str,
) -> io::Result<()> {
    let (source, target) = (c_path(source)?, c_path(target)?);
    let (kind, data) = (CString::new(kind)?, CString::new(data)?);
    // SAFETY: the four pointers are NUL-terminated strings that live until the call returns.
    check(unsafe { mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr()) })
}

/// Loads a kernel module; one that is already there is no error.
pub(crate) fn load_module(module: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open, the parameter string is NUL-terminated.
    let result = unsafe { syscall(SYS_FINIT_MODULE, module.as_raw_fd(), c"".as_ptr(), 0 as c_int) };
    match check(result as c_int) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Writes everything back and switches the machine off; returns only when that is refused.
pub(crate) fn power_off() {
    // SAFETY: neither call takes memory; both only act on the whole machine.
    unsafe {
        sync();
        reboot(RB_POWER_OFF);
    }
}

/// `sync(2)`.
pub(crate) fn write_back() {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { sync() }
}

/// Makes the current directory the root directory.
pub(crate) fn root_here() -> io::Result<()> {
    // SAFETY: the path is a NUL-terminated literal.
    check(unsafe { chroot(c".".as_ptr()) })
}

/// Names the machine.
pub(crate) fn name_host(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe the same string.
    check(unsafe { sethostname(name.as_ptr().cast(), name.len()) })
}

/// Waits for any child; its process id, or `None` when there is none left.
pub(crate) fn wait_any() -> Option<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable for the duration of the call.
        let pid = unsafe { waitpid(-1, &raw mut status, 0) };
        if pid > 0 {
            return Some(pid);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

/// `kill(2)`: a process, a group (negative), or everything but us and init (-1).
pub(crate) fn signal(pid: c_int, number: c_int) {
    // SAFETY: takes no memory. A target that is gone already is what the caller wants.
    unsafe { kill(pid, number) };
}

/// Forks; true in the child. Only called while there is one thread.
pub(crate) fn fork_child() -> io::Result<Option<c_int>> {
    // SAFETY: the caller is single-threaded, so the child may go on using the allocator and locks.
    let pid = unsafe { fork() };
    check(pid)?;
    Ok((pid != 0).then_some(pid))
}

/// Starts a session; with `terminal`, makes descriptor 0 its controlling terminal.
///
/// For the moment between fork and exec: does nothing but system calls.
pub(crate) fn new_session(terminal: bool) -> io::Result<()> {
    // SAFETY: system calls without memory arguments.
    unsafe {
        check(setsid())?;
        if terminal {
            check(ioctl(0, TIOCSCTTY, 0 as c_int))?;
        }
    }
    Ok(())
}

/// Makes a pseudo terminal: our side, and the command's.
pub(crate) fn terminal_pair() -> io::Result<(File, File)> {
    let mut name = [0 as c_char; 64];
    // SAFETY: plain descriptor calls; `name` is writable for its whole length, and the descriptor
    // is ours alone once it is wrapped.
    let (ours, name) = unsafe {
        let fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        check(fd)?;
        let ours = File::from(OwnedFd::from_raw_fd(fd));
        check(unlockpt(fd))?;
        if ptsname_r(fd, name.as_mut_ptr(), name.len()) != 0 {
            return Err(io::Error::last_os_error());
        }
        (ours, CStr::from_ptr(name.as_ptr()).to_bytes().to_vec())
    };
    let path = Path::new(std::ffi::OsStr::from_bytes(&name));
    let theirs = File::options().read(true).write(true).open(path)?;
    Ok((ours, theirs))
}

/// Sets a terminal's size.
pub(crate) fn resize(terminal: &File, rows: u16, columns: u16) -> io::Result<()> {
    let size = [rows, columns, 0, 0];
    // SAFETY: TIOCSWINSZ reads a `struct winsize`, which is four shorts.
    check(unsafe { ioctl(terminal.as_raw_fd(), TIOCSWINSZ, size.as_ptr().cast::<c_void>()) })
}

/// Brings the loopback interface up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // `struct ifreq`: 16 bytes of name, then a union that starts with the flags.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    // SAFETY: both requests read and write one `struct ifreq`, 40 bytes on x86-64.
    unsafe {
        check(ioctl(socket.as_raw_fd(), SIOCGIFFLAGS, request.as_mut_ptr().cast::<c_void>()))?;
        let flags = u16::from_le_bytes([request[16], request[17]]) | IFF_UP;
        request[16..18].copy_from_slice(&flags.to_le_bytes());
        check(ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, request.as_mut_ptr().cast::<c_void>()))
    }
}
