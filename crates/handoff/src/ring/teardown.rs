//! Closing a ring while requests are under way.
//!
//! A held span of an rx queue keeps the ring itself open. This order keeps memory safe: cancel everything,
//! take completions for a moment, close the ring, and only then let go of what the records own. A request
//! that is still under way after that keeps its pages pinned in the kernel.

use std::time::Duration;

use io_uring::opcode;
use io_uring::types::{CancelBuilder, Timespec};

use super::instance::Ring;
use super::token::DETACHED;

/// How long a closing driver waits for the kernel to end cancelled requests. Notifications of data that a
/// stalled peer does not take can stay out for longer, and nothing can speed them up.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(250);

/// How long it waits before it asks the kernel again.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);

impl Ring {
    /// Cancels every request under way, and waits at most so long for those that a worker has.
    pub(crate) fn cancel_all(&mut self, time: Duration) {
        // The call below finds requests of this thread's workers. Those of the thread that polls the queue it finds itself.
        if self.is_polled() && self.make_room(1).is_ok() {
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
            // SAFETY: the entry names no memory.
            unsafe { self.push(&cancel.user_data(DETACHED)) };
        }
        // The kernel finds neither requests that are still queued nor those that deferred work is to try again.
        if let Err(error) = self.hand_over() {
            tracing::warn!(%error, "requests may end late");
        }
        // ENOENT: there is none. ETIME: the rest ends while the ring is drained or closed.
        let time = Some(Timespec::from(time));
        let _ = self.io.submitter().register_sync_cancel(time, CancelBuilder::any());
    }

    /// Removes all descriptors from the table. A notification that is out keeps the ring alive in the
    /// kernel, and with it everything in the table: peers would not see their connections end.
    pub(crate) fn uninstall_all(&mut self) {
        let none = vec![-1; self.files.len()];
        if none.is_empty() {
            return;
        }
        if let Err(error) = self.io.submitter().register_files_update(0, &none) {
            tracing::warn!(%error, "clearing the table of files failed");
        }
    }
}
