//! Probes of io_uring itself, and the small ring that the other probes use.
//!
//! Kernel interface: `io_uring_setup(2)`; `/proc/sys/kernel/io_uring_disabled` and the seccomp
//! mode in `/proc/thread-self/status` tell one refusal from another.

use std::fs;
use std::io;

use io_uring::{IoUring, Probe, cqueue, squeue, types};

use super::answer::{Answer, Finding};
use super::memory::{Scratch, lock_limit, without_memory};

/// How long a probe waits for a result that takes microseconds where it works.
pub(super) const TIMEOUT: types::Timespec = types::Timespec::new().sec(2);

const ENTRIES: u32 = 8;

pub(super) fn set_up() -> Finding {
    IoUring::new(ENTRIES).map(|_| Answer::yes()).map_err(|error| refused(&error))
}

pub(super) fn deferred() -> Finding {
    ring().map(|_| Answer::yes())
}

pub(super) fn registered_buffers() -> Finding {
    let ring = ring()?;
    let page = Scratch::page()?;
    register(&ring, &page)?;
    Ok(Answer::yes())
}

/// A ring as the library makes them.
pub(super) fn ring() -> Result<IoUring, Answer> {
    let built = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
    built.map_err(|error| refused(&error))
}

/// Registers `page` as the ring's buffer 0.
pub(super) fn register(ring: &IoUring, page: &Scratch) -> Result<(), Answer> {
    let piece = libc::iovec { iov_base: page.as_ptr().cast(), iov_len: page.len() };
    // SAFETY: the mapping is live; the kernel pins its pages for as long as they are registered,
    // so unmapping it first would be harmless too.
    unsafe { ring.submitter().register_buffers(&[piece]) }.map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENOMEM) => without_memory(lock_limit()),
            _ => Answer::no(format!("registering one page fails: {error}")),
        }
    })
}

/// `Err` when the kernel does not know the operation.
pub(super) fn knows(ring: &IoUring, code: u8, name: &str) -> Result<(), Answer> {
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| Answer::unknown(format!("IORING_REGISTER_PROBE fails: {error}")))?;
    if probe.is_supported(code) {
        Ok(())
    } else {
        Err(Answer::no(format!("the kernel does not know IORING_OP_{name}")))
    }
}

/// Puts one entry on the submission queue without submitting it.
///
/// # Safety
///
/// What `entry` points to must stay valid until [`next`] has seen its last completion, or for ever.
pub(super) unsafe fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: the caller vouches for the memory. A probe never has more than a few entries queued.
    unsafe { ring.submission().push(entry) }.expect("a probe's submission queue has room");
}

/// Submits what is queued and waits for one completion.
///
/// # Errors
///
/// `ETIME` after [`TIMEOUT`], and the errors of `io_uring_enter(2)`.
pub(super) fn next(ring: &mut IoUring) -> io::Result<cqueue::Entry> {
    loop {
        if let Some(completion) = ring.completion().next() {
            return Ok(completion);
        }
        let wait = types::SubmitArgs::new().timespec(&TIMEOUT);
        match ring.submitter().submit_with_args(1, &wait) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) fn refused(error: &io::Error) -> Answer {
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    explain(error.raw_os_error().unwrap_or(0), sysctl, seccomp_filters(&status))
}

/// Whether a seccomp filter is in force, from the text of `/proc/thread-self/status`.
fn seccomp_filters(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Finds out who refused `io_uring_setup(2)`.
///
/// `sysctl` is the value of `kernel.io_uring_disabled`, `None` where it does not exist. A kernel that
/// has this sysctl has io_uring, so if the call is missing there, a filter hides it.
fn explain(errno: i32, sysctl: Option<u8>, filtered: bool) -> Answer {
    const SECCOMP: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the \
                           seccomp profile (containers: --security-opt seccomp=...)";
    match (errno, sysctl, filtered) {
        (libc::EPERM, Some(2), _) => {
            Answer::no("io_uring is disabled for everybody by sysctl kernel.io_uring_disabled=2")
                .remedy("sysctl kernel.io_uring_disabled=0")
        }
        (libc::EPERM, Some(1), false) => {
            Answer::no("io_uring is disabled for this user by sysctl kernel.io_uring_disabled=1")
                .remedy(
                    "join the group of sysctl kernel.io_uring_group, or \
                     sysctl kernel.io_uring_disabled=0",
                )
        }
        (libc::EPERM | libc::EACCES, _, true) => {
            Answer::no(format!("a seccomp filter forbids io_uring: {}", name(errno)))
                .remedy(SECCOMP)
        }
        (libc::ENOSYS, Some(_), true) => {
            Answer::no("a seccomp filter hides io_uring: ENOSYS").remedy(SECCOMP)
        }
        (libc::ENOSYS, None, true) => Answer::no(
            "io_uring_setup gives ENOSYS: the kernel lacks io_uring or a seccomp filter hides it",
        )
        .remedy(SECCOMP),
        (libc::ENOSYS, _, false) => Answer::no("the kernel is built without io_uring: ENOSYS")
            .remedy("a kernel with CONFIG_IO_URING"),
        (libc::EPERM | libc::EACCES, _, false) => {
            Answer::no(format!("a security module forbids io_uring: {}", name(errno)))
                .remedy("allow io_uring in the policy of SELinux or AppArmor")
        }
        (libc::EINVAL, _, _) => {
            Answer::no("the kernel refuses a ring with deferred task running: EINVAL")
                .remedy("a kernel that has it: Linux 6.1 on")
        }
        (libc::ENOMEM, _, _) => without_memory(lock_limit()),
        (libc::EMFILE | libc::ENFILE, _, _) => {
            Answer::unknown("no file descriptor is left").remedy("ulimit -n")
        }
        _ => Answer::unknown(format!(
            "io_uring_setup fails: {}",
            io::Error::from_raw_os_error(errno)
        )),
    }
}

fn name(errno: i32) -> &'static str {
    if errno == libc::EACCES { "EACCES" } else { "EPERM" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::State;

    #[test]
    fn refusals_are_told_apart() {
        let cases = [
            (libc::EPERM, Some(2), false, State::No, "kernel.io_uring_disabled=2"),
            (libc::EPERM, Some(2), true, State::No, "kernel.io_uring_disabled=2"),
            (libc::EPERM, Some(1), false, State::No, "kernel.io_uring_disabled=1"),
            (libc::EPERM, Some(0), true, State::No, "seccomp filter forbids"),
            (libc::EPERM, Some(0), false, State::No, "security module"),
            (libc::EACCES, None, false, State::No, "security module"),
            (libc::ENOSYS, Some(0), true, State::No, "seccomp filter hides"),
            (libc::ENOSYS, None, true, State::No, "or a seccomp filter"),
            (libc::ENOSYS, None, false, State::No, "built without io_uring"),
            (libc::EINVAL, Some(0), true, State::No, "deferred task running"),
            (libc::EMFILE, Some(0), false, State::Unknown, "file descriptor"),
            (libc::EIO, Some(0), false, State::Unknown, "io_uring_setup fails"),
        ];
        for (errno, sysctl, filtered, state, words) in cases {
            let answer = explain(errno, sysctl, filtered);
            let reason = answer.reason.expect("a refusal has a reason");
            assert_eq!(answer.state, state, "errno {errno}: {reason}");
            assert!(reason.contains(words), "errno {errno}: {reason}");
            assert!(state != State::No || answer.remedy.is_some(), "errno {errno}: no remedy");
        }
    }

    #[test]
    fn the_seccomp_mode_is_read() {
        assert!(seccomp_filters("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!seccomp_filters("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t2\n"));
        assert!(!seccomp_filters(""));
    }
}
