//! Connections that nobody has any more, with bytes that their peers have not taken.
//!
//! Minimum kernel: 4.1 (`TCP_INFO` with the count of acknowledged bytes); before that the kernel's own limits apply.
//!
//! Contracts:
//! - a peer that keeps taking what was sent gets all of it, however long that takes;
//! - one that takes next to nothing during a whole [`linger`](crate::DriverBuilder::linger) is reset. So a peer does not
//!   decide how long buffers, descriptors and operations are held: also not by acknowledging that it has no room, nor by
//!   taking a byte now and then;
//! - a connection whose sends are over has no descriptor, where the ring has a table of files: it is asked, and reset, by
//!   its place there (`IORING_OP_URING_CMD` and `IORING_OP_CONNECT`).

use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use handoff_sys::tcp::{UNACKNOWLEDGED, bytes_acked};
use io_uring::{opcode, squeue};

use super::Core;
use super::deadlines::Then;
use crate::op::{Kept, Lender, SocketShared, reset};
use crate::ring::token::DETACHED;
use crate::ring::{Parked, Token};

/// How long a peer may take next to nothing, unless the builder says otherwise.
pub(crate) const LINGER: Duration = Duration::from_secs(60);

/// How long at most if a send ended midway: the peer gets no whole stream, but what was taken of it.
const CUT: Duration = Duration::from_secs(1);

/// Bytes a second that a peer must take.
const LEAST: f64 = 1024.0;

/// An address of no family: who connects to it ends the connection.
static NOWHERE: libc::sockaddr =
    libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };

/// A stream that nobody holds.
#[derive(Clone)]
pub(crate) struct Left {
    /// While a request has it.
    socket: Weak<SocketShared>,
    pub(super) lender: Weak<Lender>,
}

/// A connection, and how much of it the peer had taken when it was looked at, that long ago.
pub(crate) struct Lingering {
    left: Left,
    acked: u64,
    time: Duration,
}

impl Left {
    fn of(socket: &Rc<SocketShared>) -> Self {
        Self { socket: Rc::downgrade(socket), lender: Rc::downgrade(&socket.lender) }
    }

    pub(super) fn is_left(&self) -> bool {
        self.socket.upgrade().is_none_or(|socket| socket.is_left())
    }

    /// Whether the kernel may have bytes that the peer has not taken, or gets more.
    fn has_undelivered(&self) -> bool {
        match self.socket.upgrade() {
            Some(socket) => socket.has_undelivered(),
            None => self.lender.upgrade().is_some_and(|lender| lender.lent_by_ring.get() > 0),
        }
    }

    fn is_cut(&self) -> bool {
        match self.socket.upgrade() {
            Some(socket) => socket.is_cut(),
            None => self.lender.upgrade().is_some_and(|lender| lender.is_cut.get()),
        }
    }

    /// Calls with its descriptor, if it has one.
    fn with_descriptor<T>(&self, with: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        if let Some(socket) = self.socket.upgrade() {
            return Some(with(&socket.endpoint.fd));
        }
        self.lender.upgrade()?.kept(|kept| match kept {
            Kept::Descriptor(fd) => Some(with(fd)),
            Kept::Parked(..) => None,
        })?
    }

    /// Calls with its place in the ring's table, if it has one instead; with the bytes that will be acknowledged at the
    /// end.
    fn with_parked<T>(&self, with: impl FnOnce(&Parked, u64) -> T) -> Option<T> {
        self.lender.upgrade()?.kept(|kept| match kept {
            Kept::Parked(parked, end) => Some(with(parked, *end)),
            Kept::Descriptor(_) => None,
        })?
    }
}

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
        if let Ok(acked) = bytes_acked(socket.endpoint.fd.as_fd()) {
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
        if let Some(acked) = left.with_descriptor(|fd| bytes_acked(fd.as_fd())) {
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

    /// Ends a connection at once.
    pub(super) fn reset(&self, left: &Left) {
        let lender = left.lender.upgrade();
        if lender.is_some_and(|lender| !lender.is_reset.replace(true)) {
            self.unclaimed.reset.update(|streams| streams + 1);
        }
        if left.with_descriptor(reset).is_some() {
            return;
        }
        let request = left.with_parked(|parked, _| {
            let len = size_of_val(&NOWHERE) as libc::socklen_t;
            opcode::Connect::new(parked.target(), &raw const NOWHERE, len).build()
        });
        if let Some(request) = request
            && !self.ask(request.user_data(DETACHED))
        {
            // In a moment.
            let (left, time) = (left.clone(), Duration::ZERO);
            self.in_background.update(|deadlines| deadlines + 1);
            self.at(Instant::now(), Then::Look(Lingering { left, acked: u64::MAX, time }));
        }
    }

    /// Resets the parked connections whose streams were cut; returns whether there were any.
    pub(crate) fn reset_cut(&self) -> bool {
        let left = self.unclaimed.left.borrow().clone();
        let cut = left.iter().filter(|left| left.has_undelivered() && left.is_cut());
        cut.inspect(|left| self.reset(left)).count() > 0
    }

    /// The driver goes: the kernel gives up on the peers of parked connections that take nothing for that long.
    pub(crate) fn leave_parked_to_the_kernel(&self) {
        let millis = self.linger.get().as_millis().clamp(1, i32::MAX as u128) as i32;
        self.linger_millis.set(millis);
        for left in &*self.unclaimed.left.borrow() {
            let request = left.with_parked(|parked, _| {
                let (level, name) = (libc::IPPROTO_TCP as u32, libc::TCP_USER_TIMEOUT as u32);
                let (value, len) = (self.linger_millis.as_ptr(), size_of::<i32>() as u32);
                opcode::SetSockOpt::new(
                    parked.target(),
                    level,
                    name,
                    value.cast_const().cast(),
                    len,
                )
                .build()
            });
            if let Some(request) = request {
                self.ask(request.user_data(DETACHED));
            }
        }
    }

    /// Makes a request about a parked connection, if there is room.
    fn ask(&self, request: squeue::Entry) -> bool {
        let Some(ring) = self.io.ring() else { return false };
        let mut ring = ring.borrow_mut();
        if let Err(error) = ring.make_room(1) {
            tracing::debug!(%error, "a connection that nobody holds is seen to later");
            return false;
        }
        // SAFETY: the entry names a static address, or a number in the core, which outlives the ring; the kernel copies
        // both when it takes the request.
        unsafe { ring.push(&request) };
        drop(ring);
        self.wakes().attend();
        true
    }
}
