//! Lanes: sends in bulk on one socket, of buffers of one region.
//!
//! Minimum kernel, capability and return signal are those of [`uring_zc`](super::uring_zc), whose requests a
//! lane makes. A lane is made for a number of buffers and allocates nothing after that.
//!
//! Contracts:
//! - a lane whose handle is gone sends what was pushed. Its socket goes when the kernel has taken that, and the lane
//!   leaves the driver when all of it is back and no wait for room is under way;
//! - no call made while the state is borrowed can come back to the lane or the driver.

mod datagrams;
mod progress;
mod stream;

use std::cell::RefMut;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use progress::Sum;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::mechanism::Engine;
use crate::memory::{Backing, Buffer};
use crate::op::SocketShared;
use crate::op::lane::{Ended, LaneShared, MAX_CAPACITY, Stage, State};
use crate::op::loan::Returned;
use crate::outcome::Tally;
use crate::receipt::Receipt;
use crate::ring::{Completion, Token};

impl LaneShared {
    /// Opens a lane and adds it to the driver.
    pub(crate) fn open(
        core: &Core,
        socket: &Rc<SocketShared>,
        backing: &Arc<Backing>,
        capacity: usize,
    ) -> Result<Rc<Self>> {
        if !(1..=MAX_CAPACITY).contains(&capacity) {
            return Err(Error::Invalid("a lane takes 1 to 32768 buffers"));
        }
        if core.pending.is_gone() {
            return Err(Error::DriverGone);
        }
        let ring = core.io.ring().ok_or_else(|| core.io.no_ring("a lane"))?.borrow();
        if socket.stream {
            socket.queue.borrow_mut().open_lane()?;
        }
        let opened = core.lanes.open(|number, generation| {
            let data = |place| Token::of_lane(number, place as u16, generation).to_user_data();
            let state = State::new(&ring, backing, capacity, socket.stream, data);
            Self::new(socket, number, state)
        });
        if opened.is_err() && socket.stream {
            socket.queue.borrow_mut().close_lane();
        }
        opened
    }

    /// Takes a buffer in, or gives it back with the reason.
    #[inline]
    pub(crate) fn push(
        self: &Rc<Self>,
        core: &Core,
        buffer: Buffer,
    ) -> Result<(), (Buffer, Error)> {
        let mut state = self.state.borrow_mut();
        let ours = buffer.0.is_cut_from(&state.backing);
        if !ours || state.len() == state.capacity || state.end.is_some() || core.pending.is_gone() {
            let error = self.refusal(core, &state, ours);
            return Err((buffer, error));
        }
        let place = state.tail;
        state.tail = place.wrapping_add(1);
        let slot = state.slot(place);
        debug_assert!(slot.stage == Stage::Free, "a place is used once at a time");
        slot.buffer = Some(buffer);
        (slot.sent, slot.copied, slot.notifications) = (0, 0, 0);
        slot.copies = false;
        slot.stage = Stage::Waiting;
        if !state.marked {
            state.marked = true;
            drop(state);
            core.mark_lane(self);
        }
        Ok(())
    }

    #[cold]
    fn refusal(&self, core: &Core, state: &State, ours: bool) -> Error {
        match state.end {
            _ if core.pending.is_gone() => Error::DriverGone,
            Some(Ended::Canceled) => Error::Canceled { done: 0 },
            Some(Ended::Broken(sent, total)) => Error::StreamBroken { sent, total },
            None if !ours => Error::Invalid("the buffer is not of the region of the lane"),
            None => Error::LaneFull { capacity: state.capacity as usize },
        }
    }

    /// The oldest buffer, if it is back.
    #[inline(always)]
    pub(crate) fn take(&self, core: &Core) -> Option<(Result<usize>, Returned<Buffer>)> {
        let mut state = self.state.borrow_mut();
        let head = state.head;
        let reports_usage = state.reports_usage;
        let slot = state.slot(head);
        if slot.stage != Stage::Back {
            return None;
        }
        slot.stage = Stage::Free;
        let buffer = slot.buffer.take().expect("what is back has a buffer");
        let lent = (slot.sent - slot.copied) as u64;
        let (zero_copy, unknown) = if reports_usage { (lent, 0) } else { (0, lent) };
        let sent = match slot.error.take() {
            None => Ok(slot.sent),
            Some(error) => Err(*error),
        };
        let receipt = Receipt {
            tally: Tally { zero_copy, copied: slot.copied as u64, unknown, ..Tally::default() },
            notifications: slot.notifications,
            engine: Some(if slot.copies { Engine::Copy } else { Engine::UringZc }),
        };
        state.head = head.wrapping_add(1);
        if !state.for_room.is_empty() {
            let wakers = state.for_room.take();
            drop(state);
            // The caller has the buffer.
            core.wakes().wake_later(|| core.wakes().wake_many(wakers));
        }
        Some((sent, Returned { buffer, receipt }))
    }

    /// Returns whether there is room; if not, `waker` is called when there may be.
    pub(crate) fn poll_room(&self, core: &Core, waker: &Waker) -> Result<bool> {
        let state = self.state.borrow();
        if core.pending.is_gone() || state.end.is_some() {
            return Err(self.refusal(core, &state, true));
        }
        let room = state.len() < state.capacity;
        drop(state);
        if !room {
            let waker = waker.clone();
            let spare = self.state.borrow_mut().for_room.add(waker);
            drop(spare);
        }
        Ok(room)
    }

    /// `waker` is called when the oldest buffer may be back.
    pub(crate) fn await_back(&self, waker: &Waker) {
        let waker = waker.clone();
        let spare = self.state.borrow_mut().for_back.add(waker);
        drop(spare);
    }

    /// Asks for everything to end early; the lane accepts no more buffers.
    pub(crate) fn cancel(self: &Rc<Self>, core: &Core) {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return;
        }
        state.end = Some(Ended::Canceled);
        let under_way = state.under_way();
        state.end_waiting(self);
        drop(state);
        for token in under_way {
            let ended = core.cancel(token);
            debug_assert!(!ended, "a lane has a ring, which tells of all that it ends");
        }
        self.after(core, self.state.borrow_mut(), Sum::default());
    }

    /// The driver goes: nothing starts any more.
    fn give_up(self: &Rc<Self>, core: &Core) {
        let mut state = self.state.borrow_mut();
        state.end.get_or_insert(Ended::Canceled);
        state.end_waiting(self);
        self.after(core, state, Sum::default());
    }

    /// The handle goes: what was pushed is sent, and dropped when it comes back.
    pub(crate) fn close(self: &Rc<Self>, core: &Core) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let wakers = (state.for_back.take(), state.for_room.take());
        self.after(core, state, Sum::default());
        drop(wakers);
    }

    /// Counts what happened and wakes those who wait for it. A closed lane drops what came back.
    #[inline(always)]
    fn after<'a>(self: &'a Rc<Self>, core: &Core, mut state: RefMut<'a, State>, sum: Sum) {
        core.lanes.held.update(|held| held - sum.ended);
        if sum.lent != sum.returned {
            let lent = self.lender.lent_by_ring.get() + sum.lent;
            self.lender.set_lent(lent - sum.returned);
        }
        if sum.messages + sum.notifications + sum.tally.copied > 0 {
            self.lender.count(|stats| {
                stats.messages += sum.messages;
                stats.notifications += sum.notifications;
                stats.returned += sum.tally;
            });
        }
        if state.goes_on() && !state.marked {
            state.marked = true;
            drop(state);
            core.mark_lane(self);
            state = self.state.borrow_mut();
        }
        if state.closed {
            return self.after_close(core, state);
        }
        let head = state.head;
        if state.slot(head).stage == Stage::Back {
            core.news.set(true);
            if !state.for_back.is_empty() {
                let wakers = state.for_back.take();
                drop(state);
                core.wakes().wake_many(wakers);
            }
        }
    }

    #[cold]
    fn after_close(&self, core: &Core, mut state: RefMut<'_, State>) {
        while state.head != state.tail {
            let head = state.head;
            let slot = state.slot(head);
            if slot.stage != Stage::Back {
                break;
            }
            (slot.buffer, slot.stage) = (None, Stage::Free);
            state.head = head.wrapping_add(1);
        }
        if state.has_stream && state.next == state.tail {
            // Another lane may take the socket over while the last buffers of this one are on their way.
            state.has_stream = false;
            if let Some(socket) = self.socket_if_needed() {
                socket.queue.borrow_mut().close_lane();
            }
        }
        let socket = self.take_socket_if(|| state.is_only_lent());
        // A wait that is still to be told would be told to the next lane of this number.
        let waits = state.stream.as_ref().is_some_and(|stream| stream.wait.is_some());
        let is_over = state.head == state.tail && !waits;
        drop(state);
        drop(socket);
        if is_over {
            core.lanes.close(self);
        }
    }
}

impl State {
    /// Buffers that wait will not be sent.
    #[cold]
    fn end_waiting(&mut self, lane: &LaneShared) {
        if self.stream.is_some() {
            return self.settle_stream(lane);
        }
        while let Some(place) = self.again.pop() {
            self.slots[usize::from(place)].fail(Error::Canceled { done: 0 });
        }
        while self.next != self.tail {
            let next = self.next;
            self.slot(next).fail(Error::Canceled { done: 0 });
            self.next = next.wrapping_add(1);
        }
    }
}

/// Submits the waiting buffers of all lanes.
#[inline(always)]
pub(crate) fn pump_marked(core: &Core) {
    if core.lanes.has_marks() {
        pump_each_marked(core);
    }
}

#[inline(never)]
fn pump_each_marked(core: &Core) {
    while let Some(lane) = core.lanes.take_marked() {
        pump(core, &lane);
    }
}

fn pump(core: &Core, lane: &Rc<LaneShared>) {
    let Some(ring) = core.io.ring() else { return };
    let mut state = lane.state.borrow_mut();
    state.marked = false;
    // A lane that was marked before its buffers were given up may have let go of its socket since.
    if lane.has_let_go() {
        return;
    }
    let submitted = match state.stream {
        Some(_) => state.submit_stream(&mut ring.borrow_mut(), lane),
        None => state.submit_datagrams(&mut ring.borrow_mut(), lane),
    };
    core.lanes.held.update(|held| held + submitted.requests);
    if submitted.stalled {
        // Completions have to be taken first; the next turn goes on.
        state.marked = true;
        core.lanes.stall(lane);
    }
    if let Some(sum) = submitted.settled {
        lane.after(core, state, sum);
    }
}

/// Tells a lane about all its completions at the front; returns their number.
pub(crate) fn completed(core: &Core, all: &[Completion]) -> usize {
    let first = all[0].data;
    let number = Token::from_user_data(first).lane();
    let lane = core.lanes.get(number);
    // A lane that is gone expects only unannounced completions.
    let Some(lane) = lane else { return 1 };
    let mut state = lane.state.borrow_mut();
    let mut sum = Sum::default();
    let mut blocked = None;
    let mut told = 0;
    for completion in all.iter().take_while(|it| Token::is_of_same_lane(it.data, first)) {
        match state.stream {
            Some(_) => state.tell_stream(&lane, completion, &mut sum, &mut blocked),
            None => state.tell_datagram(&lane, completion, &mut sum, &mut blocked),
        }
        told += 1;
    }
    lane.after(core, state, sum);
    if let Some(blocked) = blocked {
        blocked.into_iter().for_each(|token| await_room(core, &lane, token));
    }
    told
}

#[cold]
fn await_room(core: &Core, lane: &LaneShared, token: Token) {
    core.lanes.held.update(|held| held + 1);
    core.await_readiness(&lane.socket().endpoint, libc::POLLOUT, token.of_lane_readiness());
}

/// The socket has room, or failed: the next attempt tells which.
#[cold]
pub(crate) fn ready(core: &Core, token: Token) {
    let lane = core.lanes.get(token.lane()).expect("a lane stays until its waits are told");
    let mut state = lane.state.borrow_mut();
    assert!(state.still_under_way(token).is_some(), "a wait is told to the lane that waits");
    state.unblock(token);
    if state.end.is_some() {
        state.end_waiting(&lane);
    }
    lane.after(core, state, Sum { ended: 1, ..Sum::default() });
}

/// The kernel did not find a request that was to end.
#[cold]
pub(crate) fn cancel_again(core: &Core, token: Token) {
    let Some(lane) = core.lanes.get(token.lane()) else { return };
    let under_way = {
        let state = lane.state.borrow();
        state.still_under_way(token).filter(|_| state.end.is_some())
    };
    if let Some(request) = under_way {
        let ended = core.cancel(request);
        debug_assert!(!ended, "a lane has a ring, which tells of all that it ends");
    }
}

/// The driver goes: nothing starts any more.
pub(crate) fn give_up(core: &Core) {
    for lane in core.lanes.all() {
        lane.give_up(core);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::memory::{Backed, Region};
    use crate::op::chooser::Chooser;
    use crate::ring::{Io, Ring, Shape, skip};

    const LEN: usize = 100;

    /// Pushes a buffer; returns its request, which the ring has queued and never submits.
    fn push(core: &Core, lane: &Rc<LaneShared>, region: &mut Region) -> Token {
        assert!(lane.push(core, region.take(LEN).unwrap()).is_ok());
        pump_marked(core);
        lane.state.borrow().under_way()[0]
    }

    fn tell(core: &Core, request: Token, result: i32) {
        let data = request.to_user_data();
        completed(core, &[Completion { data, result, flags: 0, spans: 0..0 }]);
    }

    /// The kernel ends the wait later than the lane.
    #[test]
    fn a_wait_of_a_lane_that_was_cancelled_is_told_to_no_other() {
        let test = "engine::lane::tests::a_wait_of_a_lane_that_was_cancelled_is_told_to_no_other";
        let ring = skip::told(Ring::new((32, 0), 0, (0, 0), Shape::Narrow, None), test);
        let Some(ring) = ring else { return };
        let core = Core::new(Io::of_ring(ring), 16).unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let chooser = Chooser::new(Err(String::new()), true);
        let socket = Rc::new(SocketShared::new(&core.io, near.into(), chooser).unwrap());
        let mut region = Region::anonymous(4096).unwrap();
        let backing = Arc::clone(region.backing());
        let open = || LaneShared::open(&core, &socket, &backing, 4).unwrap();

        let first = open();
        let request = push(&core, &first, &mut region);
        tell(&core, request, -libc::EAGAIN);
        let wait = first.state.borrow().under_way()[0];
        first.cancel(&core);
        assert!(matches!(first.take(&core), Some((Err(Error::Canceled { done: 0 }), _))));
        first.close(&core);

        let second = open();
        let request = push(&core, &second, &mut region);
        ready(&core, wait);
        assert_eq!(second.state.borrow().under_way(), [request]);
        assert_eq!(core.lanes.held.get(), 1);
        assert_eq!(core.lanes.all().len(), 1);
        tell(&core, request, LEN as i32);
        assert_eq!(core.lanes.held.get(), 0);
        second.close(&core);
        assert!(core.lanes.all().is_empty());
    }
}
