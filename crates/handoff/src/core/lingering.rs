//! Connections that nobody has any more, with bytes that their peers have not taken.
//!
//! Minimum kernel: 4.1 (`TCP_INFO` with the count of acknowledged bytes); before that the kernel's own limits apply.
//!
//! Contracts:
//! - a peer that keeps taking what was sent gets all of it, however long that takes;
//! - one that takes next to nothing during a whole [`linger`](crate::DriverBuilder::linger) is reset. So a peer does not
//!   decide how long buffers, descriptors and operations are held: also not by acknowledging that it has no room, nor by
//!   taking a byte now and then;
//! - of a Unix socket the kernel's queue is bounded, so that counts which of its bytes the kernel has taken;
//! - a connection whose sends are over has no descriptor, where the ring has a table of files: it is asked, and reset, by
//!   its place there (`IORING_OP_URING_CMD` and `IORING_OP_CONNECT`).

use std::rc::Rc;
use std::time::{Duration, Instant};

use handoff_sys::tcp::UNACKNOWLEDGED;
use io_uring::opcode;

use super::deadlines::Then;
use super::left::{Left, Lingering};
use super::state::Core;
use crate::op::SocketShared;
use crate::ring::Token;

/// How long at most if a send ended midway: the peer gets no whole stream, but what was taken of it.
const CUT: Duration = Duration::from_secs(1);

/// Bytes a second that a peer must take.
const LEAST: f64 = 1024.0;

impl Core {
    /// The last handle on a stream is gone, or a send has ended midway afterwards.
    pub(crate) fn leave_stream(&self, socket: &Rc<SocketShared>) {
        socket.lender.is_left.set(true);
        if !socket.has_undelivered() {
            return;
        }
        if self.linger.get().is_zero() {
            return socket.reset();
        }
        let left = Left::of(socket);
        let budget = &self.unclaimed;
        let _ = socket.lender.account.get_or_init(|| budget.account_of(socket));
        let mut streams = budget.left.borrow_mut();
        if streams.len() == streams.capacity() {
            streams.retain(|left| left.has_undelivered());
            // Not again for as many.
            let len = streams.len();
            streams.reserve(len + 1);
        }
        streams.push_back(left.clone());
        drop(streams);
        for key in &socket.queue.borrow().waiting {
            self.count_unclaimed(self.records.borrow_mut().send(*key));
        }
        if let Some(Ok(acked)) = left.taken() {
            self.look_later(left, acked);
        }
    }

    fn look_later(&self, left: Left, acked: u64) {
        let linger = self.linger.get();
        let time = if left.is_cut() { linger.min(CUT) } else { linger };
        let Some(due) = Instant::now().checked_add(time) else { return };
        self.in_background.update(|deadlines| deadlines + 1);
        self.at(due, Then::Look(Lingering { left, acked, time }));
    }

    /// Whether anything waits for its time but the ends of connections and reviews of loans.
    pub(crate) fn has_deadlines(&self) -> bool {
        self.deadlines.len() > self.in_background.get()
    }

    /// The time of a connection is over: it ends, unless its peer goes on.
    pub(crate) fn look_at(&self, lingering: Lingering) {
        self.in_background.update(|deadlines| deadlines - 1);
        let left = &lingering.left;
        if !left.has_undelivered() {
            return;
        }
        if let Some(acked) = left.taken() {
            return self.judge(lingering, acked.unwrap_or(u64::MAX));
        }
        let Some(request) = left.with_parked(|parked, _| {
            opcode::UringCmd16::new(parked.target(), UNACKNOWLEDGED).build()
        }) else {
            return;
        };
        let mut looks = self.looks.borrow_mut();
        let free = looks.iter().position(Option::is_none).unwrap_or(looks.len());
        if free == looks.len() {
            looks.push(None);
        }
        looks[free] = Some(lingering);
        drop(looks);
        let token = Token::of_look(free as u32);
        if !self.ask(request.user_data(token.to_user_data())) {
            self.looked(token, -libc::EBUSY);
        }
    }

    /// The kernel says how many bytes of a parked connection the peer has not acknowledged.
    pub(crate) fn looked(&self, token: Token, result: i32) {
        let Some(lingering) = self.looks.borrow_mut()[token.look()].take() else { return };
        match (lingering.left.with_parked(|_, end| end), u64::try_from(result)) {
            (Some(end), Ok(bytes)) => self.judge(lingering, end.saturating_sub(bytes)),
            (Some(_), Err(_)) if result == -libc::EBUSY => {
                self.look_later(lingering.left, lingering.acked);
            }
            (Some(_), Err(_)) => {
                tracing::warn!(errno = -result, "the kernel does not tell what a peer has taken");
                self.reset_lingering(&lingering.left, lingering.acked);
            }
            // It is over.
            (None, _) => {}
        }
    }

    fn judge(&self, lingering: Lingering, acked: u64) {
        let least = (lingering.time.as_secs_f64() * LEAST).max(1.0);
        let goes_on = acked.saturating_sub(lingering.acked) as f64 >= least;
        if goes_on || !lingering.left.is_left() {
            self.look_later(lingering.left, acked);
        } else {
            self.reset_lingering(&lingering.left, acked);
        }
    }

    fn reset_lingering(&self, left: &Left, acked: u64) {
        tracing::info!(
            acked,
            "a connection that nobody holds is reset: its peer does not take what was sent"
        );
        self.reset(left);
    }
}
