//! Accepting connections: which have come and are not taken, and why none comes.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::waiter::Waiter;
use crate::error::{Error, Result};
use crate::ring::Endpoint;

/// When so many connections wait to be taken, the listener asks for no more.
const AHEAD: usize = 64;

/// A listener, as long as its handle exists.
pub(crate) struct AcceptOp {
    pub(crate) listener: Rc<Endpoint>,
    pub(crate) state: AcceptState,
    /// The driver does not wait yet for what the state says.
    begins_to_wait: bool,
    /// Enough have come, or the holder wants no more for now.
    pub(crate) paused: bool,
    arrived: VecDeque<OwnedFd>,
    /// News for the next caller, told once; the listener goes on.
    failure: Option<Error>,
    /// The lack of room for connections was told since the last one came.
    told_of_no_room: bool,
    pub(crate) holder: Waiter,
}

/// What a listener is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptState {
    /// Nothing: enough have come, or nobody has asked for any.
    Idle,
    /// The kernel has the request.
    Accepting,
    /// The kernel has the request, and is asked to end it.
    Stopping,
    /// The driver waits for the socket.
    Watching,
    /// There is no room for connections: the driver waits for a moment.
    Resting,
}

impl AcceptOp {
    pub(crate) fn new(listener: Rc<Endpoint>) -> Self {
        Self {
            listener,
            state: AcceptState::Idle,
            begins_to_wait: false,
            paused: false,
            arrived: VecDeque::new(),
            failure: None,
            told_of_no_room: false,
            holder: Waiter::Polls,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.state != AcceptState::Idle
    }

    /// Whether connections are wanted and none are on their way.
    pub(crate) fn may_start(&self) -> bool {
        self.state == AcceptState::Idle
            && !self.paused
            && !self.holder.is_gone()
            && self.failure.is_none()
    }

    /// The driver must wait for that, unless nobody wants connections.
    pub(crate) fn wait_for(&mut self, state: AcceptState) {
        if !self.holder.is_gone() {
            self.state = state;
            self.begins_to_wait = true;
        }
    }

    /// What the driver must wait for, told once.
    pub(crate) fn begins_to_wait(&mut self) -> Option<AcceptState> {
        std::mem::take(&mut self.begins_to_wait).then_some(self.state)
    }

    pub(crate) fn has_enough(&self) -> bool {
        self.arrived.len() >= AHEAD
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.arrived.is_empty() || self.failure.is_some()
    }

    pub(crate) fn arrive(&mut self, connection: OwnedFd) {
        self.told_of_no_room = false;
        self.arrived.push_back(connection);
    }

    pub(crate) fn fail(&mut self, error: Error) {
        self.failure = Some(error);
    }

    /// Notes that the kernel has no room for a connection. This is told once until there is room.
    pub(crate) fn note_no_room(&mut self, errno: i32) {
        if !std::mem::replace(&mut self.told_of_no_room, true) {
            self.failure = Some(Error::descriptor("accepting a connection", errno));
        }
    }

    /// The next connection, or why there is none.
    pub(crate) fn take(&mut self) -> Option<Result<OwnedFd>> {
        let arrived = self.arrived.pop_front().map(Ok);
        arrived.or_else(|| self.failure.take().map(Err))
    }

    /// All connections not taken, to be closed where that may use the driver.
    pub(crate) fn rest(&mut self) -> VecDeque<OwnedFd> {
        std::mem::take(&mut self.arrived)
    }
}
