//! A directory that opens only when the test lets it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use handoff_testbed::running::TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whoever opens the directory waits until the gate is dropped.
pub(crate) struct Gate(OwnedFd);

impl Gate {
    pub(crate) fn before(directory: &Path) -> Self {
        let (class, flags) = (libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC, libc::O_RDONLY as u32);
        // SAFETY: it takes numbers only.
        let group = unsafe { libc::fanotify_init(class, flags) };
        assert!(group >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just opened it for us.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let path = CString::new(directory.as_os_str().as_bytes()).expect("has no NUL");
        let events = libc::FAN_OPEN_PERM | libc::FAN_ONDIR;
        let (add, from) = (libc::FAN_MARK_ADD, libc::AT_FDCWD);
        // SAFETY: the path ends with NUL, and is there during the call.
        let marked =
            unsafe { libc::fanotify_mark(group.as_raw_fd(), add, events, from, path.as_ptr()) };
        assert_eq!(marked, 0, "{}", io::Error::last_os_error());
        Self(group)
    }

    /// Waits until somebody waits.
    pub(crate) fn await_somebody(&self) {
        let mut events = [PollFd::new(&self.0, PollFlags::IN)];
        let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(poll(&mut events, Some(&timeout)).expect("poll works"), 1, "nobody comes");
    }
}
