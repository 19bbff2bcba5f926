//! A lane: sends in bulk on one socket, of buffers of one region.
//!
//! Minimum kernel, capability and return signal are those of [`uring_zc`](super::uring_zc), whose requests a
//! lane makes. A lane is made for so many buffers and allocates nothing after that.
//!
//! Contracts:
//! - a place of the lane owns its buffer from the push until it is taken back, and gives it back only when
//!   no return signal of it is to come;
//! - buffers come back in the order in which they were pushed;
//! - a request names its lane and its place, and which use of the place it is: what comes for an earlier use
//!   is passed over;
//! - a lane whose handle is gone sends what was pushed, and leaves the driver when all of it is back;
//! - nothing that is called with the state borrowed can come back to the lane or the driver.

mod datagrams;
mod stream;

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::Engine;
use super::sending;
use crate::driver::{Backend, Inner};
use crate::error::{Error, Result};
use crate::inflight::{LANE_GENERATION, Token};
use crate::lease::Backing;
use crate::outcome::Tally;
use crate::ring::{Completion, Ring};
use crate::sink::socket::Finished;
use crate::socket::SocketShared;
use crate::source::memory::Buffer;
use stream::Stream;

/// The most buffers of a lane: as many as the user data of a request can tell apart.
pub(crate) const MAX_CAPACITY: usize = 1 << 15;

/// All lanes of a driver, by their numbers.
#[derive(Default)]
pub(crate) struct Lanes {
    table: RefCell<Vec<Option<Rc<LaneShared>>>>,
    /// Lanes made so far: each begins with other generations than the one that had its number before.
    made: Cell<u32>,
    /// Requests that have not completed, and return signals that are to come.
    pub(crate) held: Cell<u32>,
    /// Those with something to submit.
    marked: RefCell<Vec<Rc<LaneShared>>>,
    /// Those for which the ring had no room.
    stalled: RefCell<Vec<Rc<LaneShared>>>,
}

/// A lane, as its handle and the driver see it.
pub(crate) struct LaneShared {
    socket: Rc<SocketShared>,
    number: u16,
    state: RefCell<State>,
}

/// How far a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Free,
    /// No request has been made for it.
    Waiting,
    /// A request has not completed.
    InKernel,
    /// The kernel took it, and a return signal is to come.
    Lent,
    /// The same for a request that failed.
    Failing,
    /// It waits for the socket to have room.
    Blocked,
    /// It can be taken.
    Back,
}

/// A place for a buffer.
struct Slot {
    buffer: Option<Buffer>,
    /// User data of the request that carries it alone.
    data: u64,
    /// Bytes that the kernel took.
    sent: usize,
    /// Of which it copied so many.
    copied: usize,
    notifications: u32,
    errno: i32,
    /// The registered buffer that its request named.
    fixed: Option<u16>,
    stage: Stage,
    /// The request copies, since lending failed.
    copies: bool,
    error: Option<Box<Error>>,
}

/// Why a lane takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Canceled,
    /// The stream: bytes that the kernel took of a buffer of so many.
    Broken(usize, usize),
}

struct State {
    backing: Arc<Backing>,
    /// As many as a power of two; places are counted on and on.
    slots: Box<[Slot]>,
    capacity: u32,
    /// The oldest that was not taken back.
    head: u32,
    /// The first that no request carries.
    next: u32,
    tail: u32,
    /// Datagrams that are to be asked for again.
    again: Vec<u16>,
    /// What a stream needs to keep its order.
    stream: Option<Stream>,
    /// The ring's id.
    ring: u32,
    reports_usage: bool,
    /// The driver knows that there is something to submit.
    marked: bool,
    end: Option<End>,
    /// The handle is gone.
    closed: bool,
    /// Nothing else may send on the stream.
    has_stream: bool,
    /// Who waits for a buffer to come back.
    for_back: Waiting,
    /// Who waits for room.
    for_room: Waiting,
}

/// Tasks that wait for the same.
#[derive(Default)]
struct Waiting(Vec<Waker>);

impl Waiting {
    fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|it| it.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }
}

/// What a run of completions comes to.
#[derive(Default)]
struct Sum {
    messages: u64,
    notifications: u64,
    /// Requests that completed with a return signal to come.
    lent: u32,
    /// Return signals of such.
    returned: u32,
    /// What the kernel holds no more.
    ended: u32,
    tally: Tally,
}

impl Slot {
    fn free(data: u64) -> Self {
        Self {
            buffer: None,
            data,
            sent: 0,
            copied: 0,
            notifications: 0,
            errno: 0,
            fixed: None,
            stage: Stage::Free,
            copies: false,
            error: None,
        }
    }

    fn len(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    #[cold]
    fn fail(&mut self, error: Error) {
        self.error = Some(Box::new(error));
        self.stage = Stage::Back;
    }
}

impl LaneShared {
    /// Opens a lane and makes it known to the driver.
    pub(crate) fn open(
        inner: &Inner,
        socket: &Rc<SocketShared>,
        backing: &Arc<Backing>,
        capacity: usize,
    ) -> Result<Rc<Self>> {
        if !(1..=MAX_CAPACITY).contains(&capacity) {
            return Err(Error::Invalid("a lane takes 1 to 32768 buffers"));
        }
        if inner.gone.get() {
            return Err(Error::DriverGone);
        }
        let Backend::Ring(ring) = &inner.backend else { return Err(inner.no_ring("a lane")) };
        if socket.stream {
            socket.queue.borrow_mut().open_lane()?;
        }
        let (ring, reports_usage) = {
            let ring = ring.borrow();
            (ring.id, ring.reports_usage)
        };
        let mut table = inner.lanes.table.borrow_mut();
        let free = table.iter().position(Option::is_none);
        let number = free.unwrap_or(table.len());
        let Ok(number) = u16::try_from(number) else {
            socket.queue.borrow_mut().close_lane();
            return Err(Error::Busy { limit: 1 << 16 });
        };
        let made = inner.lanes.made.replace(inner.lanes.made.get().wrapping_add(1));
        let places = capacity.next_power_of_two();
        let generation = made << 12;
        let data = |place| Token::of_lane(number, place as u16, generation).to_user_data();
        let lane = Rc::new(Self {
            socket: Rc::clone(socket),
            number,
            state: RefCell::new(State {
                backing: Arc::clone(backing),
                slots: (0..places).map(|place| Slot::free(data(place))).collect(),
                capacity: capacity as u32,
                head: 0,
                next: 0,
                tail: 0,
                again: Vec::with_capacity(places),
                stream: socket.stream.then(|| Stream::new(places, data)),
                ring,
                reports_usage,
                marked: false,
                end: None,
                closed: false,
                has_stream: socket.stream,
                for_back: Waiting::default(),
                for_room: Waiting::default(),
            }),
        });
        match free {
            Some(free) => table[free] = Some(Rc::clone(&lane)),
            None => table.push(Some(Rc::clone(&lane))),
        }
        Ok(lane)
    }

    /// Buffers that were pushed and not taken back.
    pub(crate) fn len(&self) -> usize {
        self.state.borrow().len() as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.state.borrow().capacity as usize
    }

    /// Takes a buffer in, or gives it back with the reason.
    #[inline]
    pub(crate) fn push(
        self: &Rc<Self>,
        inner: &Inner,
        buffer: Buffer,
    ) -> Result<(), (Buffer, Error)> {
        let mut state = self.state.borrow_mut();
        let ours = std::ptr::eq(buffer.0.backing(), &*state.backing);
        if !ours || state.len() == state.capacity || state.end.is_some() || inner.gone.get() {
            let error = self.refusal(inner, &state, ours);
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
            inner.lanes.mark(inner, self);
        }
        Ok(())
    }

    #[cold]
    fn refusal(&self, inner: &Inner, state: &State, ours: bool) -> Error {
        match state.end {
            _ if inner.gone.get() => Error::DriverGone,
            Some(End::Canceled) => Error::Canceled { done: 0 },
            Some(End::Broken(sent, total)) => Error::StreamBroken { sent, total },
            None if !ours => Error::Invalid("the buffer is not of the region of the lane"),
            None => Error::LaneFull { capacity: state.capacity as usize },
        }
    }

    /// The oldest buffer, if it is back.
    #[inline]
    pub(crate) fn take(&self, inner: &Inner) -> Option<Finished<Buffer>> {
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
        let finished = Finished {
            sent: match slot.error.take() {
                None => Ok(slot.sent),
                Some(error) => Err(*error),
            },
            buffer,
            receipt: crate::Receipt {
                tally: Tally { zero_copy, copied: slot.copied as u64, unknown },
                notifications: slot.notifications,
                engine: Some(if slot.copies { Engine::Copy } else { Engine::UringZc }),
            },
        };
        state.head = head.wrapping_add(1);
        if !state.for_room.0.is_empty() {
            let wakers = std::mem::take(&mut state.for_room.0);
            drop(state);
            wake_all(inner, wakers);
        }
        Some(finished)
    }

    /// Says whether there is room; else `waker` is told when there may be.
    pub(crate) fn poll_room(&self, inner: &Inner, waker: &Waker) -> Result<bool> {
        let mut state = self.state.borrow_mut();
        if inner.gone.get() || state.end.is_some() {
            return Err(self.refusal(inner, &state, true));
        }
        let room = state.len() < state.capacity;
        if !room {
            state.for_room.add(waker);
        }
        Ok(room)
    }

    /// `waker` is told when the oldest buffer may be back.
    pub(crate) fn await_back(&self, waker: &Waker) {
        self.state.borrow_mut().for_back.add(waker);
    }

    /// Asks for everything to end early; nothing is taken in any more.
    pub(crate) fn cancel(self: &Rc<Self>, inner: &Inner) {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return;
        }
        state.end = Some(End::Canceled);
        let under_way = match &state.stream {
            Some(stream) => stream.under_way().into_iter().collect(),
            None => state.under_way(),
        };
        state.end_waiting(self);
        self.after(inner, state, Sum::default());
        for data in under_way {
            inner.cancel(Token::from_user_data(data));
        }
    }

    /// The driver goes: nothing is started any more.
    fn give_up(self: &Rc<Self>, inner: &Inner) {
        let mut state = self.state.borrow_mut();
        state.end.get_or_insert(End::Canceled);
        state.end_waiting(self);
        self.after(inner, state, Sum::default());
    }

    /// The handle goes: what was pushed is sent, and dropped when it comes back.
    pub(crate) fn close(self: &Rc<Self>, inner: &Inner) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        let wakers = (std::mem::take(&mut state.for_back), std::mem::take(&mut state.for_room));
        self.after(inner, state, Sum::default());
        drop(wakers);
    }

    /// Counts what happened and tells who waits for it. What is closed gives up what came back.
    fn after<'a>(self: &'a Rc<Self>, inner: &Inner, mut state: RefMut<'a, State>, sum: Sum) {
        inner.lanes.held.update(|held| held - sum.ended);
        if sum.lent != sum.returned {
            self.socket.lent_by_ring.update(|lent| lent + sum.lent - sum.returned);
        }
        if sum.messages + sum.notifications + sum.tally.copied > 0 {
            self.socket.count(|stats| {
                stats.messages += sum.messages;
                stats.notifications += sum.notifications;
                stats.returned += sum.tally;
            });
        }
        if state.goes_on() && !state.marked {
            state.marked = true;
            drop(state);
            inner.lanes.mark(inner, self);
            state = self.state.borrow_mut();
        }
        if state.closed {
            return self.after_close(inner, state);
        }
        let head = state.head;
        if state.slot(head).stage == Stage::Back {
            inner.news.set(true);
            if !state.for_back.0.is_empty() {
                let wakers = std::mem::take(&mut state.for_back.0);
                drop(state);
                wake_all(inner, wakers);
            }
        }
    }

    #[cold]
    fn after_close(&self, inner: &Inner, mut state: RefMut<'_, State>) {
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
            // Another lane may take it over while the last buffers of this one are on their way.
            state.has_stream = false;
            self.socket.queue.borrow_mut().close_lane();
        }
        if state.head != state.tail {
            return;
        }
        drop(state);
        // With it may go the socket, which leaves the ring's table.
        let gone = inner.lanes.table.borrow_mut()[usize::from(self.number)].take();
        drop(gone);
    }

    /// An error for the holder of a buffer.
    #[cold]
    fn error(&self, errno: i32, slot: &Slot, in_slot: bool) -> Error {
        let send = self.failed(slot);
        if slot.copies || in_slot { send.error(errno) } else { send.zero_copy_error(errno) }
    }

    /// Whether a failure is about zero copy itself, so that copying may do better.
    fn may_copy_instead(&self, errno: i32, slot: &Slot) -> bool {
        self.socket.chooser.borrow().is_free() && self.failed(slot).is_about_zero_copy(errno)
    }

    fn failed(&self, slot: &Slot) -> sending::Failed {
        sending::Failed {
            done: slot.sent,
            total: slot.len(),
            ipv6: self.socket.ipv6,
            copies: slot.copies,
        }
    }
}

impl State {
    #[inline]
    fn slot(&mut self, place: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[place as usize & mask]
    }

    #[inline]
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether there is something to submit now.
    fn goes_on(&self) -> bool {
        match &self.stream {
            Some(stream) => stream.may_go_on() && self.next != self.tail && self.end.is_none(),
            None => !self.again.is_empty(),
        }
    }

    /// User data of all requests that have not completed.
    fn under_way(&self) -> Vec<u64> {
        let waits = |slot: &&Slot| matches!(slot.stage, Stage::InKernel | Stage::Blocked);
        self.slots.iter().filter(waits).map(request_of).collect()
    }

    /// What waits will not be sent.
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

/// The user data under which a place has a request with the kernel.
fn request_of(slot: &Slot) -> u64 {
    let token = Token::from_user_data(slot.data);
    match slot.stage {
        Stage::Blocked => token.of_lane_readiness().to_user_data(),
        _ => slot.data,
    }
}

fn wake_all(inner: &Inner, wakers: Vec<Waker>) {
    for waker in wakers {
        inner.wake(Some(waker));
    }
}

/// Submits what waits in all lanes.
#[inline]
pub(crate) fn pump_marked(inner: &Inner) {
    loop {
        let Some(lane) = inner.lanes.marked.borrow_mut().pop() else { return };
        pump(inner, &lane);
    }
}

fn pump(inner: &Inner, lane: &Rc<LaneShared>) {
    let Backend::Ring(ring) = &inner.backend else { return };
    let mut state = lane.state.borrow_mut();
    state.marked = false;
    let submitted = match state.stream {
        Some(_) => state.submit_stream(&mut ring.borrow_mut(), lane),
        None => state.submit_datagrams(&mut ring.borrow_mut(), lane),
    };
    inner.lanes.held.update(|held| held + submitted.requests);
    if submitted.stalled {
        // Completions have to be taken first; the next turn goes on.
        state.marked = true;
        inner.lanes.stalled.borrow_mut().push(Rc::clone(lane));
    }
    if let Some(sum) = submitted.settled {
        lane.after(inner, state, sum);
    }
}

/// What an attempt to submit came to.
#[derive(Default)]
struct Submitted {
    requests: u32,
    /// The ring had no room for all.
    stalled: bool,
    /// What came back without a request.
    settled: Option<Sum>,
}

/// Room for one request in the ring's queue.
fn has_room(ring: &mut Ring) -> bool {
    ring.make_room(1)
        .inspect_err(|error| tracing::debug!(%error, "a lane waits for the ring"))
        .is_ok()
}

/// Tells a lane of all completions at the front that are its own; how many those were.
pub(crate) fn completed(inner: &Inner, all: &[Completion]) -> usize {
    let first = all[0].data;
    let number = Token::from_user_data(first).lane();
    let lane = inner.lanes.table.borrow().get(number).cloned().flatten();
    // A lane that is gone has nothing to come but what nobody announced.
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
    lane.after(inner, state, sum);
    if let Some(blocked) = blocked {
        blocked.into_iter().for_each(|token| await_room(inner, &lane, token));
    }
    told
}

/// Places that wait for the socket to have room.
type Blocked = Option<Vec<Token>>;

#[cold]
fn await_room(inner: &Inner, lane: &LaneShared, token: Token) {
    inner.lanes.held.update(|held| held + 1);
    inner.await_readiness(&lane.socket.endpoint, libc::POLLOUT, token.of_lane_readiness());
}

/// The socket has room, or failed: either way the next attempt tells.
#[cold]
pub(crate) fn ready(inner: &Inner, token: Token) {
    let lane = inner.lanes.table.borrow().get(token.lane()).cloned().flatten();
    let Some(lane) = lane else { return };
    let mut state = lane.state.borrow_mut();
    state.unblock(token);
    if state.end.is_some() {
        state.end_waiting(&lane);
    }
    lane.after(inner, state, Sum { ended: 1, ..Sum::default() });
}

impl State {
    fn unblock(&mut self, token: Token) {
        if let Some(stream) = &mut self.stream {
            return stream.unblock();
        }
        let place = token.place();
        let slot = &mut self.slots[usize::from(place)];
        slot.stage = Stage::Waiting;
        self.again.push(place);
    }
}

impl Lanes {
    /// Has what waits in a lane submitted with the next turn.
    #[inline]
    fn mark(&self, inner: &Inner, lane: &Rc<LaneShared>) {
        self.marked.borrow_mut().push(Rc::clone(lane));
        inner.attend();
    }

    pub(crate) fn has_marks(&self) -> bool {
        !self.marked.borrow().is_empty()
    }

    fn all(&self) -> Vec<Rc<LaneShared>> {
        self.table.borrow().iter().flatten().cloned().collect()
    }

    /// Completions were taken, so the ring may have room for those that found none.
    pub(crate) fn go_on(&self, inner: &Inner) {
        if self.stalled.borrow().is_empty() {
            return;
        }
        for lane in self.stalled.take() {
            self.mark(inner, &lane);
        }
    }

    /// Buffers in all lanes.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().iter().flatten().map(|lane| lane.len()).sum()
    }

    /// Nothing is started any more.
    pub(crate) fn give_up(&self, inner: &Inner) {
        for lane in self.all() {
            lane.give_up(inner);
        }
    }

    /// Of all who wait.
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for lane in self.all() {
            let mut state = lane.state.borrow_mut();
            wakers.append(&mut state.for_back.0);
            wakers.append(&mut state.for_room.0);
        }
        wakers
    }

    /// Leaks what a request that has not completed may still look at; how many buffers that are. Pages of a
    /// region that are only lent outlive their mapping.
    pub(crate) fn abandon(&self) -> usize {
        let mut leaked = 0;
        for lane in self.all() {
            let mut state = lane.state.borrow_mut();
            for slot in &mut state.slots {
                if slot.stage == Stage::InKernel {
                    leaked += 1;
                    std::mem::forget(slot.buffer.take());
                }
            }
            leaked += state.abandon_stream();
        }
        leaked
    }
}

/// The next use of a place, for another request.
fn next_use(data: u64) -> u64 {
    data.wrapping_add(LANE_GENERATION)
}
