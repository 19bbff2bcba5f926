//! Waiting for descriptors to become ready and for deadlines, and cancelling operations.
//!
//! Contracts:
//! - a wait is told exactly once: of readiness, of an error, or of its cancellation;
//! - a wait that cannot begin is told a moment later, never from within the call that asked for it;
//! - a cancellation that the ring has no room for is asked for again, by the clock.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::deadlines::{Deadline, Then};
use super::state::Core;
use crate::error::{Error, Result};
use crate::op::SocketShared;
use crate::ring::endpoint::with_target;
use crate::ring::token::{ALARM, Stage, WAKE};
use crate::ring::{Alarm, Backend, Endpoint, Ready, Token};

/// How long to leave a socket alone that looks ready but is not.
const LATER: Duration = Duration::from_millis(1);

impl Core {
    /// Adds a deadline.
    pub(crate) fn at(&self, due: Instant, then: Then) -> Deadline {
        let number = self.deadlines.made.replace(self.deadlines.made.get() + 1);
        let deadline = Deadline { due, number };
        self.deadlines.list.borrow_mut().insert(deadline, then);
        self.deadlines.set_alarm();
        self.pending.start_soon();
        deadline
    }

    /// A foreign loop is about to wait for the driver's descriptor.
    pub(crate) fn watch_deadlines(&self) {
        if self.deadlines.alarm.borrow().is_some() {
            return;
        }
        let alarm = Alarm::new().and_then(|alarm| {
            self.watch_alarm(alarm.fd())?;
            Ok(alarm)
        });
        match alarm {
            Ok(alarm) => {
                self.deadlines.alarm.replace(Some(alarm));
                self.deadlines.set_alarm();
            }
            Err(error) => {
                tracing::error!(%error, "foreign loops are not told of this driver's deadlines")
            }
        }
    }

    /// The ring's watch on the alarm has ended.
    pub(crate) fn watch_alarm_again(&self) {
        if let Some(alarm) = &*self.deadlines.alarm.borrow()
            && let Err(error) = self.watch_alarm(alarm.fd())
        {
            tracing::error!(%error, "foreign loops are not told of this driver's deadlines");
        }
    }

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
        self.wakes().attend();
        if let Err(error) = result {
            // Whatever the wait was for is tried again.
            tracing::warn!(%error, "waiting for a descriptor failed");
            self.tell_later(token);
        }
    }

    /// As [`await_readiness`](Self::await_readiness) for no event but errors, in a moment.
    pub(crate) fn await_readiness_later(&self, socket: Rc<SocketShared>, token: Token) {
        self.at(Instant::now() + LATER, Then::Await(socket, token));
    }

    /// Tells `token` in a moment.
    pub(crate) fn tell_later(&self, token: Token) {
        self.at(Instant::now() + LATER, Then::Tell(token));
    }

    /// Asks the kernel to end a request early; does nothing to a request that is not under way. Returns
    /// whether this ended a wait of epoll: the caller then goes on from that wait.
    ///
    /// The kernel does not find a request that it is about to go on with: its deferred work has it. It then answers
    /// ENOENT, and the reactor has the operation ask again, if that helps.
    #[must_use]
    pub(crate) fn cancel(&self, token: Token) -> bool {
        match &self.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                let room = ring.make_room(1).map(|()| {
                    let entry = opcode::AsyncCancel::new(token.to_user_data())
                        .build()
                        .user_data(token.of_cancel().to_user_data());
                    // SAFETY: the entry names no memory.
                    unsafe { ring.push(&entry) };
                });
                drop(ring);
                if let Err(error) = room {
                    self.cancel_later(token, &error);
                }
            }
            Backend::Readiness(epoll) => return epoll.borrow_mut().cancel(token),
        }
        self.wakes().attend();
        false
    }

    /// The ring had no room for the question: the reactor has the operation ask in a moment, if it still is to end.
    pub(crate) fn cancel_later(&self, token: Token, error: &io::Error) {
        tracing::debug!(%error, "a request is asked to end a moment later");
        self.at(Instant::now() + LATER, Then::Cancel(token.of_cancel()));
    }

    pub(crate) fn watch_unpark(&self) -> Result<()> {
        self.watch(self.unpark.fd(), WAKE, Ready::Wake)
            .map_err(|error| Error::io("watching for wake-ups", error))
    }

    pub(crate) fn watch_alarm(&self, alarm: BorrowedFd<'_>) -> Result<()> {
        self.watch(alarm, ALARM, Ready::Alarm)
            .map_err(|error| Error::io("watching for deadlines", error))
    }

    /// Reports each time that `fd` can be read: the ring by this user data, epoll by that event.
    fn watch(&self, fd: BorrowedFd<'_>, data: u64, ready: Ready) -> io::Result<()> {
        match &self.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32)
                    .multi(true)
                    .build();
                ring.make_room(1)?;
                // SAFETY: the entry names no memory.
                unsafe { ring.push(&entry.user_data(data)) };
                Ok(())
            }
            Backend::Readiness(epoll) => epoll.borrow_mut().watch(fd, ready),
        }
    }

    /// Ends the waits that epoll and the clock have. They lend nothing of a record.
    pub(crate) fn end_waits(&self) {
        if let Backend::Readiness(epoll) = &self.io.backend {
            let waiting = epoll.borrow_mut().end();
            waiting.into_iter().for_each(|token| self.records.borrow_mut().end_wait(token));
        }
        for then in self.deadlines.take_all() {
            match then {
                // A lane is told nothing any more.
                Then::Tell(token) | Then::Await(_, token) if token.stage != Stage::LaneReady => {
                    self.records.borrow_mut().end_wait(token);
                }
                _ => {}
            }
        }
    }
}
