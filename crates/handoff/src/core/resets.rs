//! Resets connections that nobody holds.
//!
//! A connection that has no descriptor is reset by its place in the ring's table of files (`IORING_OP_CONNECT`).

use std::time::{Duration, Instant};

use io_uring::{opcode, squeue};

use super::deadlines::Then;
use super::left::{Left, Lingering};
use super::state::Core;
use crate::op::reset;
use crate::ring::token::DETACHED;

/// An address of no family: who connects to it ends the connection.
static NOWHERE: libc::sockaddr =
    libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };

impl Core {
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
    pub(super) fn ask(&self, request: squeue::Entry) -> bool {
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
