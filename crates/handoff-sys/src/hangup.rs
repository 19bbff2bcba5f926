//! The end of a session, and of those who read the output: SIGHUP, a terminal that is gone or another's, a pipe that
//! nobody reads.
//!
//! Kernel interface: `sigaction(2)`, `poll(2)`. A terminal is gone before the signal comes; from then on
//! every write to it fails with EIO. A write to a pipe without a reader fails with EPIPE.

use std::fmt::Display;
use std::io::Write as _;
use std::{io, mem, ptr};

/// Prints a line on standard error, in one write. Where nobody reads it any more, nothing happens; `eprintln!`
/// panics there.
///
/// ```
/// handoff_sys::hangup::say("handoff: listening on tcp://127.0.0.1:9");
/// ```
pub fn say(line: impl Display) {
    // There is nobody to tell.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Whether this process was started to outlive its session, for instance by nohup(1): SIGHUP is ignored.
pub fn is_ignored() -> bool {
    // SAFETY: all zeros is a value of this structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: nothing is set, and the structure is written during the call.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Makes this process, and programs that it executes, outlive the session.
///
/// You may call it between fork and exec.
///
/// # Errors
///
/// Those of `sigaction(2)`; none is known.
pub fn ignore() -> io::Result<()> {
    ignore_signal(libc::SIGHUP)
}

/// Lets this process write to its terminal while it is in the background. After `stty tostop` a write would stop it.
///
/// # Errors
///
/// Those of `sigaction(2)`; none is known.
pub fn write_in_background() -> io::Result<()> {
    ignore_signal(libc::SIGTTOU)
}

fn ignore_signal(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: ignoring a signal runs no code.
    let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// If standard output or standard error is a terminal that is gone, discards everything written there
/// from now on. Otherwise the write would fail, and `println!` and `eprintln!` panic at a failure.
///
/// You may call it in a signal handler; it preserves `errno`.
pub fn fall_silent() {
    for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
        // SAFETY: the thread's own errno.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: one structure, written during the call.
        let answered = unsafe { libc::poll(&raw mut asked, 1, 0) };
        if answered == 1 && asked.revents & libc::POLLHUP != 0 {
            // SAFETY: the path ends with a zero; descriptors of this process's own are exchanged, and
            // the one that is closed was opened here.
            unsafe {
                let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if nowhere >= 0 {
                    libc::dup2(nowhere, fd);
                    libc::close(nowhere);
                }
            }
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_outlive_the_session_is_told_so() {
        // SAFETY: the default runs no code of ours.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        assert!(!is_ignored());
        ignore().expect("is ignored");
        assert!(is_ignored());
    }
}
