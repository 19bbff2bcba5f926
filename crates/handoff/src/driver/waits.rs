//! Waiting for descriptors to become ready, and asking for operations to end.
//!
//! Contracts:
//! - a wait is told once, whatever comes of it: readiness, an error, or that it was cancelled;
//! - a wait that can't begin is told a moment later, never from within the call that asked for it.

use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::inner::{Backend, Inner};
use crate::endpoint::{Endpoint, with_target};
use crate::error::{Error, Result};
use crate::inflight::{DETACHED, STAGE_LANE_READY, Token, WAKE};
use crate::ring::Until;
use crate::socket::SocketShared;

/// How long to leave a socket alone that looks ready and is not.
pub(crate) const LATER: Duration = Duration::from_millis(1);

/// What is to happen in a moment.
pub(super) struct Later {
    due: Instant,
    token: Token,
    /// The socket to wait for then; without one, the token is told.
    socket: Option<Rc<SocketShared>>,
}

impl Inner {
    /// Tells `token` once when the endpoint is ready for poll(2) `events`, or has an error.
    pub(crate) fn await_readiness(&self, endpoint: &Endpoint, events: i16, token: Token) {
        let result = match &self.backend {
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
        self.attend();
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
    }

    /// Whether something is to happen in a moment, which takes a turn.
    pub(crate) fn has_later(&self) -> bool {
        !self.later.borrow().is_empty()
    }

    /// Asks for a request to end early; what is not under way is not disturbed.
    pub(crate) fn cancel(&self, token: Token) {
        match &self.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                if ring.make_room(1).is_ok() {
                    let entry =
                        opcode::AsyncCancel::new(token.to_user_data()).build().user_data(DETACHED);
                    // SAFETY: the entry names no memory.
                    unsafe { ring.push(&entry) };
                }
            }
            Backend::Readiness(epoll) => {
                let waited = epoll.borrow_mut().cancel(token);
                if waited {
                    self.ready(token);
                }
            }
        }
        self.attend();
    }

    pub(super) fn watch_unpark(&self) -> Result<()> {
        let fd = self.unpark.fd();
        match &self.backend {
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

    /// Ends the waits for sockets that are left when the driver goes. Nothing of a record is lent for
    /// those.
    pub(super) fn end_waits(&self) -> Result<()> {
        self.closing.set(true);
        match &self.backend {
            Backend::Ring(ring) => {
                let mut borrowed = ring.borrow_mut();
                borrowed.cancel_all();
                borrowed
                    .enter(Until::Now)
                    .map_err(|error| Error::io("entering the ring", error))?;
                drop(borrowed);
                self.take_completions(ring)?;
            }
            Backend::Readiness(epoll) => {
                let waiting = epoll.borrow_mut().end();
                waiting.into_iter().for_each(|token| self.inflight.borrow_mut().end_wait(token));
            }
        }
        for later in self.later.take() {
            // A lane is told nothing any more.
            if later.token.stage == STAGE_LANE_READY {
                continue;
            }
            self.inflight.borrow_mut().end_wait(later.token);
        }
        Ok(())
    }

    /// Does what is due, and sees to it that the turn ends when more is.
    pub(super) fn start_later(&self, until: Until) -> Until {
        if self.later.borrow().is_empty() {
            return until;
        }
        let now = Instant::now();
        let (due, rest): (Vec<_>, _) =
            self.later.take().into_iter().partition(|later| later.due <= now);
        self.later.replace(rest);
        for later in due {
            match later.socket {
                Some(socket) => self.await_readiness(&socket.endpoint, 0, later.token),
                None => self.ready(later.token),
            }
        }
        match until {
            Until::One if self.has_later() => Until::OneOr(LATER),
            Until::OneOr(time) if self.has_later() => Until::OneOr(time.min(LATER)),
            until => until,
        }
    }
}
