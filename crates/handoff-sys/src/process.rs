//! Which process made something. A child of fork(2) has a copy of its parent's memory, and with it handles on
//! descriptors, rings and mappings that both share.
//!
//! Kernel interface: `MADV_WIPEONFORK` (Linux 4.14) on a page that has the process's number: in a new process the page
//! is zero. So a look costs a load, and no way to make a process goes unseen. Where the kernel lacks it, children are
//! not told apart. A child of vfork(2) shares all memory until it execs, and counts as its parent.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A process that made something.
///
/// ```
/// use handoff_sys::process::Process;
///
/// assert!(Process::this().is_this());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

/// The number of this process, or 0 in a new one.
fn number() -> &'static AtomicU64 {
    static NUMBER: OnceLock<&'static AtomicU64> = OnceLock::new();
    NUMBER.get_or_init(|| match wiped_on_fork() {
        // SAFETY: the page stays mapped, is zeroed, aligned, and only used as this atomic.
        Some(page) => unsafe { page.cast::<AtomicU64>().as_ref() },
        None => Box::leak(Box::new(AtomicU64::new(0))),
    })
}

/// A page that is zero in each new process.
fn wiped_on_fork() -> Option<NonNull<libc::c_void>> {
    const LEN: usize = 4096;
    // SAFETY: a new mapping at an address of the kernel's choice, and advice on it.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(page, LEN, libc::MADV_WIPEONFORK) < 0 {
            libc::munmap(page, LEN);
            return None;
        }
        NonNull::new(page)
    }
}

impl Process {
    /// The calling process.
    pub fn this() -> Self {
        /// The last number given in this process or one that it comes from.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let number = number();
        match number.load(Relaxed) {
            0 => {
                let new = GIVEN.fetch_add(1, Relaxed) + 1;
                // Another thread may have given one meanwhile.
                let before = number.compare_exchange(0, new, Relaxed, Relaxed);
                Self(before.map_or_else(|theirs| theirs, |_| new))
            }
            number => Self(number),
        }
    }

    /// Whether it is the calling process.
    #[inline]
    pub fn is_this(self) -> bool {
        number().load(Relaxed) == self.0
    }
}

impl Default for Process {
    /// The calling process.
    fn default() -> Self {
        Self::this()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `check` in a child; returns whether it held there.
    fn in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls what allocates nothing and takes no lock, and ends.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(if check() { 7 } else { 1 }) },
            child => {
                let mut status = 0;
                // SAFETY: waits for the child, and writes its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7
            }
        }
    }

    #[test]
    fn a_child_is_another_process_than_all_that_it_comes_from() {
        let parent = Process::this();
        assert!(in_a_child(|| {
            let unlike_before = !parent.is_this();
            let child = Process::this();
            unlike_before
                && child.is_this()
                && child != parent
                && in_a_child(|| !child.is_this() && !parent.is_this())
        }));
        assert!(parent.is_this() && Process::this() == parent);
    }
}
