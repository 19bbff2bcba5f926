//! Keeps the kernel's workers of a thread (io-wq) from one ring to the next.
//!
//! Kernel interface: `io_uring_enter(2)`. Since Linux 7.0 (and 6.18 with later backports), a thread's workers end
//! when its last ring has gone. A worker that is about to end still counts as idle: the thread's next ring may give
//! it a request, and the worker leaves it undone until another request comes (`io_wq_worker` and
//! `io_acct_activate_free_worker` in `io_uring/io-wq.c`; seen on 7.2 with a slowed-down end of workers). So rings
//! that come and go in a thread could wait for ever. Therefore each thread belongs to one ring of the process that
//! never goes.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use io_uring::IoUring;

static RING: OnceLock<IoUring> = OnceLock::new();

thread_local! {
    /// The process in which this thread belongs to the ring; a child's thread belongs to none.
    static STAYS_IN: Cell<u32> = const { Cell::new(0) };
}

/// Keeps the workers of this thread until it ends. Call it before a thread uses a ring.
///
/// The first call in a process makes a ring, so it takes a descriptor, which stays open.
///
/// # Errors
///
/// Those of `io_uring_setup(2)` and `io_uring_enter(2)`.
pub fn keep() -> io::Result<()> {
    let process = std::process::id();
    if STAYS_IN.get() == process {
        return Ok(());
    }
    let ring = match RING.get() {
        Some(ring) => ring,
        None => {
            let made = IoUring::new(1)?;
            RING.get_or_init(|| made)
        }
    };
    // The thread belongs to a ring once it has submitted, even if nothing was queued.
    // SAFETY: nothing is queued, and nothing ever will be.
    unsafe { ring.submitter().enter::<()>(1, 0, 0, None)? };
    STAYS_IN.set(process);
    Ok(())
}
