//! Waiting for descriptors to become ready, and asking for operations to end.
//!
//! Contracts:
//! - a wait is told once, whatever comes of it: readiness, an error, or that it was cancelled;
//! - a wait that can't begin is told a moment later, never from within the call that asked for it.

use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::Core;
use crate::error::{Error, Result};
use crate::op::SocketShared;
use crate::ring::endpoint::with_target;
use crate::ring::token::{DETACHED, STAGE_LANE_READY, WAKE};
use crate::ring::{Backend, Endpoint, Token};

/// How long to leave a socket alone that looks ready and is not.
pub(crate) const LATER: Duration = Duration::from_millis(1);

/// What is to happen in a moment.
pub(crate) struct Later {
    due: Instant,
    pub(crate) token: Token,
    /// The socket to wait for then; without one, the token is told.
    pub(crate) socket: Option<Rc<SocketShared>>,
}

impl Core {
    /// Tells `token` once when the endpoint is ready for poll(2) `events`, or has an error.
    pub(crate) fn await_readiness(&self, endpoint: &Endpoint, events: i16, token: Token) {
        let result = match &self.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                ring.make_room(1).map(|()| {
                    let entry =
                        with_target!(endpoint, |fd| opcode::PollAdd::new(fd, events as u16 as u32)
                            .build());
                    // SAFETY: the entry names no memory.
                    unsafe { ring.push(&entry.user_data(token.to_user_data())) };
                })
            }
            Backend::Readiness(epoll) => epoll.borrow_mut().wait_for(endpoint.raw(), events, token),
        };
        self.due.attend();
        if let Err(error) = result {
            // What the wait is for is tried again.
            tracing::warn!(%error, "waiting for a descriptor failed");
            self.do_later(token, None);
        }
    }

    /// As [`await_readiness`](Self::await_readiness) for no event but errors, in a moment.
    pub(crate) fn await_readiness_later(&self, socket: Rc<SocketShared>, token: Token) {
        self.do_later(token, Some(socket));
    }

    /// Tells `token` in a moment.
    pub(crate) fn tell_later(&self, token: Token) {
        self.do_later(token, None);
    }

    fn do_later(&self, token: Token, socket: Option<Rc<SocketShared>>) {
        self.later.borrow_mut().push(Later { due: Instant::now() + LATER, token, socket });
        self.due.start_soon();
    }

    /// Whether something is to happen in a moment, which takes a turn.
    pub(crate) fn has_later(&self) -> bool {
        !self.later.borrow().is_empty()
    }

    /// Asks for a request to end early; what is not under way is not disturbed. Says whether this ended a
    /// wait of epoll, which the caller goes on from.
    #[must_use]
    pub(crate) fn cancel(&self, token: Token) -> bool {
        match &self.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                if ring.make_room(1).is_ok() {
                    let entry =
                        opcode::AsyncCancel::new(token.to_user_data()).build().user_data(DETACHED);
                    // SAFETY: the entry names no memory.
                    unsafe { ring.push(&entry) };
                }
            }
            Backend::Readiness(epoll) => return epoll.borrow_mut().cancel(token),
        }
        self.due.attend();
        false
    }

    pub(crate) fn watch_unpark(&self) -> Result<()> {
        let fd = self.unpark.fd();
        match &self.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32)
                    .multi(true)
                    .build();
                let room = ring.make_room(1);
                if room.is_ok() {
                    // SAFETY: the entry names no memory.
                    unsafe { ring.push(&entry.user_data(WAKE)) };
                }
                room
            }
            Backend::Readiness(epoll) => epoll.borrow_mut().watch_wake(fd),
        }
        .map_err(|error| Error::io("watching for wake-ups", error))
    }

    /// Ends the waits that epoll and the clock have. Nothing of a record is lent for those.
    pub(crate) fn end_waits(&self) {
        if let Backend::Readiness(epoll) = &self.io.backend {
            let waiting = epoll.borrow_mut().end();
            waiting.into_iter().for_each(|token| self.records.borrow_mut().end_wait(token));
        }
        for later in self.later.take() {
            // A lane is told nothing any more.
            if later.token.stage == STAGE_LANE_READY {
                continue;
            }
            self.records.borrow_mut().end_wait(later.token);
        }
    }

    /// Takes what is due by now.
    pub(crate) fn take_due(&self) -> Vec<Later> {
        if !self.has_later() {
            return Vec::new();
        }
        let now = Instant::now();
        let (due, rest) = self.later.take().into_iter().partition(|later| later.due <= now);
        self.later.replace(rest);
        due
    }
}
