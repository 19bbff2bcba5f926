//! Connections that nobody has any more, with bytes that their peers have not taken.
//!
//! Minimum kernel: 4.1 (`TCP_INFO` with the count of acknowledged bytes); before that the kernel's own limits apply.
//!
//! Contracts:
//! - a peer that keeps taking what was sent gets all of it, however long that takes;
//! - one that takes next to nothing during a whole [`linger`](crate::DriverBuilder::linger) is reset. So a peer does not
//!   decide how long buffers, descriptors and operations are held: also not by acknowledging that it has no room, nor by
//!   taking a byte now and then.

use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use handoff_sys::tcp::bytes_acked;

use super::Core;
use super::deadlines::Then;
use crate::op::SocketShared;

/// How long a peer may take next to nothing, unless the builder says otherwise.
pub(crate) const LINGER: Duration = Duration::from_secs(60);

/// How long at most if a send ended midway: the peer gets no whole stream, but what was taken of it.
const CUT: Duration = Duration::from_secs(1);

/// Bytes a second that a peer must take.
const LEAST: f64 = 1024.0;

/// A connection, and how much of it the peer had taken when it was looked at, that long ago.
pub(crate) struct Lingering {
    socket: Weak<SocketShared>,
    acked: u64,
    time: Duration,
}

impl Core {
    /// The last handle on a stream is gone, or a send has ended midway afterwards.
    pub(crate) fn leave_stream(&self, socket: &Rc<SocketShared>) {
        if !socket.has_undelivered() {
            return;
        }
        if self.linger.get().is_zero() { socket.reset() } else { self.look_later(socket) }
    }

    fn look_later(&self, socket: &Rc<SocketShared>) {
        let Ok(acked) = bytes_acked(socket.endpoint.fd.as_fd()) else { return };
        let linger = self.linger.get();
        let time = if socket.is_cut() { linger.min(CUT) } else { linger };
        let Some(due) = Instant::now().checked_add(time) else { return };
        self.lingering.update(|connections| connections + 1);
        let lingering = Lingering { socket: Rc::downgrade(socket), acked, time };
        self.at(due, Then::Look(lingering));
    }

    /// Whether anything but the end of a connection waits for its time.
    pub(crate) fn has_deadlines(&self) -> bool {
        self.deadlines.len() > self.lingering.get()
    }

    /// The time of a connection is over: it ends, unless its peer goes on.
    pub(crate) fn look_at(&self, lingering: &Lingering) {
        self.lingering.update(|connections| connections - 1);
        let Some(socket) = lingering.socket.upgrade() else { return };
        if !socket.has_undelivered() {
            return;
        }
        let acked = bytes_acked(socket.endpoint.fd.as_fd()).unwrap_or(u64::MAX);
        let least = (lingering.time.as_secs_f64() * LEAST).max(1.0);
        let goes_on = acked.saturating_sub(lingering.acked) as f64 >= least;
        if goes_on || !socket.is_left() {
            self.look_later(&socket);
        } else {
            tracing::info!(
                acked,
                "a connection that nobody holds is reset: its peer does not take what was sent"
            );
            socket.reset();
        }
    }
}
