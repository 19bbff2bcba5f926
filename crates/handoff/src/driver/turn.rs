//! One turn of a driver: what is marked starts, the kernel is entered, completions are told to
//! their operations; and the last turns, when the driver goes.
//!
//! Contracts:
//! - whoever waits is woken when all that was taken from the kernel has been told, so that a waker may do
//!   anything: what it sends, or a turn of its own, finds what came earlier told earlier;
//! - a waker that panics keeps nobody else from being woken, and then goes on with its panic.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::panic::{self, AssertUnwindSafe};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::inner::{Backend, Inner, Mark};
use crate::engine::{get_buf, lane, msg_zerocopy, order, receiving, requests, transfer, uring_zc};
use crate::error::{Error, Result};
use crate::inflight::{
    DETACHED, Key, Kind, STAGE_CLEAR, STAGE_GET, STAGE_LANE, STAGE_LANE_READY, STAGE_READY,
    STAGE_RECEIVE, STAGE_REQUEST, STAGE_RETURN, STAGE_RX_EVENT, STAGE_TRANSFER, Token, WAKE,
};
use crate::readiness::Ready;
use crate::ring::{BATCH, Batch, Completion, Ring, Until, teardown};

impl Inner {
    /// Submits, waits as told, and tells operations what became of them.
    pub(crate) fn turn(&self, until: Until) -> Result<usize> {
        self.turn_around(until, |until| self.wait(until))
    }

    /// The same for a thread that polls futures: it waits until something happens, or one is woken.
    pub(crate) fn turn_parked(&self) -> Result<usize> {
        self.turn_around(Until::One, |until| {
            let ready = self.wait(self.unpark.park(until));
            self.unpark.unpark();
            ready
        })
    }

    fn turn_around(
        &self,
        until: Until,
        wait: impl FnOnce(Until) -> Result<Vec<Ready>>,
    ) -> Result<usize> {
        if self.telling.get() {
            // Nothing can be told in the midst of telling.
            return Ok(0);
        }
        // Who is behind a waker that waits here does not wait for it; a waker that only looks leaves the
        // others to whoever called it, or they would stand on each other.
        let wakes = !self.waking.get() || !matches!(until, Until::Now | Until::Soon);
        if wakes {
            self.wake_all();
        }
        self.is_driven();
        let telling = Telling::begin(self);
        let events = self.turn_and_tell(until, wait);
        drop(telling);
        if wakes {
            self.wake_all();
        }
        events
    }

    fn turn_and_tell(
        &self,
        until: Until,
        wait: impl FnOnce(Until) -> Result<Vec<Ready>>,
    ) -> Result<usize> {
        self.start_marked();
        let mut until = until;
        if self.has_later() {
            until = self.start_later(until);
            // What was due may have marked more, and a wait must not begin before that is started.
            self.start_marked();
        }
        // Who is to be woken by now has something to do.
        let until = match until {
            Until::One | Until::OneOr(_) if !self.wakes.borrow().is_empty() => Until::Now,
            until => until,
        };
        let events = wait(until).and_then(|ready| self.tell(&ready));
        self.turns.set(self.turns.get().wrapping_add(1));
        events
    }

    /// Enters the kernel; without a ring, gives what is ready.
    fn wait(&self, until: Until) -> Result<Vec<Ready>> {
        match &self.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                let entered = ring.enter(until).and_then(|()| match self.in_chains.get() {
                    0 => Ok(()),
                    links => ring.go_on(links),
                });
                entered.map_err(|error| Error::io("entering the ring", error))?;
                Ok(Vec::new())
            }
            Backend::Readiness(epoll) => {
                let time = match until {
                    Until::Now | Until::Soon => Some(Duration::ZERO),
                    Until::One => None,
                    Until::OneOr(time) => Some(time),
                };
                let ready = epoll.borrow_mut().wait(time);
                ready.map_err(|error| Error::io("waiting in epoll", error))
            }
        }
    }

    /// Tells operations what became of them: what the ring has, or what is ready.
    fn tell(&self, ready: &[Ready]) -> Result<usize> {
        if let Backend::Ring(ring) = &self.backend {
            let count = self.take_completions(ring)?;
            self.lanes.go_on(self);
            let mut ring = ring.borrow_mut();
            if ring.event_watched() {
                ring.settle_event(self.has_marks() || self.has_later());
            }
            return Ok(count);
        }
        for event in ready {
            match event {
                Ready::Operation(token) => self.ready(*token),
                Ready::Wake => self.unpark.clear(),
            }
        }
        Ok(ready.len())
    }

    /// Wakes whoever waits: at once, or when all that there is has been told.
    #[inline]
    pub(crate) fn wake(&self, waker: Option<Waker>) {
        let Some(waker) = waker else { return };
        if self.telling.get() {
            self.wakes.borrow_mut().push_back(waker);
        } else {
            waker.wake();
        }
    }

    #[inline]
    fn wake_all(&self) {
        if !self.wakes.borrow().is_empty() {
            self.wake_each();
        }
    }

    #[inline(never)]
    fn wake_each(&self) {
        let before = self.waking.replace(true);
        let mut panicked = None;
        loop {
            let all = AssertUnwindSafe(|| {
                while let Some(waker) = self.next_to_wake() {
                    waker.wake();
                }
            });
            match panic::catch_unwind(all) {
                Ok(()) => break,
                // Of several the first is told.
                Err(panic) => panicked = panicked.or(Some(panic)),
            }
        }
        self.waking.set(before);
        if let Some(panic) = panicked {
            panic::resume_unwind(panic);
        }
    }

    fn next_to_wake(&self) -> Option<Waker> {
        self.wakes.borrow_mut().pop_front()
    }

    /// Starts what is marked before a wait is decided on.
    pub(super) fn start_and_wake(&self) {
        if self.telling.get() {
            return;
        }
        let telling = Telling::begin(self);
        self.start_marked();
        drop(telling);
        self.wake_all();
    }

    pub(super) fn start_marked(&self) {
        if !self.marks.borrow().is_empty() {
            self.start_each_marked();
        }
        lane::pump_marked(self);
        if !self.to_clear.borrow().is_empty() {
            get_buf::clear_marked(self);
        }
        if !self.answers.borrow().is_empty() {
            requests::give_marked(self);
        }
    }

    #[inline(never)]
    fn start_each_marked(&self) {
        while !self.marks.borrow().is_empty() {
            // The two lists take turns, so that steady use allocates nothing.
            let mut marks = self.marks.replace(self.spare_marks.take());
            for mark in marks.drain(..) {
                match mark {
                    Mark::Stream(socket) => {
                        if let Some(socket) = socket.upgrade() {
                            order::pump(self, &socket);
                        }
                    }
                    Mark::Receive(key) => receiving::arm(self, key),
                    Mark::Refill(queue) => queue.publish(self),
                }
            }
            self.spare_marks.replace(marks);
        }
    }

    pub(super) fn take_completions(&self, ring: &RefCell<Ring>) -> Result<usize> {
        let reports_usage = ring.borrow().reports_usage;
        let mut batch: Batch = [const { MaybeUninit::uninit() }; BATCH];
        let mut count = 0;
        loop {
            let taken = ring.borrow_mut().take(&mut batch);
            let last = taken.len() < BATCH;
            count += taken.len();
            let mut rest = taken;
            while let [completion, ..] = rest {
                let seen = self.dispatch(completion, rest, reports_usage);
                rest = &rest[seen..];
            }
            if last {
                // What did not fit comes over now that there is room.
                if !ring.borrow_mut().overflown() {
                    return Ok(count);
                }
                ring.borrow_mut()
                    .enter(Until::Now)
                    .map_err(|error| Error::io("entering the ring", error))?;
            }
        }
    }

    /// Tells of the first of these completions, and of those behind it that are told together with it;
    /// how many that were.
    #[inline]
    fn dispatch(&self, first: &Completion, all: &[Completion], reports_usage: bool) -> usize {
        let Completion { data, result, flags, .. } = *first;
        match data {
            DETACHED => return 1,
            WAKE => {
                self.unpark.clear();
                if !io_uring::cqueue::more(flags)
                    && let Err(error) = self.watch_unpark()
                {
                    tracing::error!(%error, "wake-ups from other threads are lost");
                }
                return 1;
            }
            _ => {}
        }
        let token = Token::from_user_data(data);
        match token.stage {
            STAGE_LANE => return lane::completed(self, all),
            STAGE_READY | STAGE_RETURN | STAGE_LANE_READY => self.ready(token),
            STAGE_TRANSFER => transfer::completed(self, token.key, result),
            STAGE_GET => get_buf::completed(self, token.key, result),
            STAGE_CLEAR => get_buf::cleared(self, token.slot(), result),
            STAGE_REQUEST => {
                let (queue, tag) = token.request();
                requests::completed(self, queue, tag, result);
            }
            STAGE_RECEIVE => return receiving::completed(self, token.key, all),
            STAGE_RX_EVENT => self.rx_queues.borrow()[token.rx_queue()].fell_short(),
            stage => uring_zc::completed(self, token.key, stage, result, flags, reports_usage),
        }
        1
    }

    pub(super) fn ready(&self, token: Token) {
        if token.stage == STAGE_LANE_READY {
            return lane::ready(self, token);
        }
        let kind = self.inflight.borrow().kind(token.key);
        match (kind, token.stage) {
            (Some(Kind::Send), STAGE_RETURN) => msg_zerocopy::ready(self, token.key),
            (Some(Kind::Send), _) => order::ready(self, token.key),
            (Some(Kind::Receive), _) => receiving::ready(self, token.key),
            (Some(Kind::Transfer), _) => transfer::ready(self, token.key),
            (Some(Kind::Get) | None, _) => {
                unreachable!("what waits for readiness keeps its record")
            }
        }
    }
}

/// While it is there, wakers are kept for later.
struct Telling<'a>(&'a Inner);

impl<'a> Telling<'a> {
    fn begin(inner: &'a Inner) -> Self {
        inner.telling.set(true);
        Self(inner)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.telling.set(false);
    }
}

impl Inner {
    /// No [`Driver`](super::Driver) is left, but handles are: what is under way ends, and who waits is told.
    pub(super) fn leave(&self) {
        self.gone.set(true);
        let ending = self.inflight.borrow_mut().end_all();
        self.lanes.give_up(self);
        self.end(ending);
        // What was only marked by now ends before it begins.
        let _ = self.turn(Until::Now);
        let waiting = self.inflight.borrow_mut().take_wakers();
        let groups = self.groups.borrow_mut().take_wakers();
        let lanes = self.lanes.take_wakers();
        let mut queues = Vec::new();
        for served in &*self.request_queues.borrow() {
            queues.extend(served.queue.waker.borrow_mut().take());
        }
        self.wakes
            .borrow_mut()
            .extend(waiting.into_iter().chain(groups).chain(lanes).chain(queues));
        self.wake_all();
    }

    /// Cancels what is under way, and gives it a moment to end.
    fn end(&self, ending: Vec<Key>) {
        match &self.backend {
            Backend::Ring(ring) => ring.borrow_mut().cancel_all(),
            Backend::Readiness(_) => {
                for &key in &ending {
                    self.cancel(Token { key, stage: STAGE_READY });
                }
            }
        }
        for key in ending {
            let kind = self.inflight.borrow().kind(key);
            match kind {
                Some(Kind::Get) => get_buf::end(self, key),
                Some(Kind::Send) => msg_zerocopy::give_up(self, key),
                _ => {}
            }
        }
        let deadline = Instant::now() + teardown::PATIENCE;
        while self.kernel_holds_any() {
            let Some(time) = deadline.checked_duration_since(Instant::now()) else { break };
            if self.turn(Until::OneOr(time)).is_err() {
                break;
            }
        }
    }
}

impl Drop for Inner {
    /// No handle is left, so nobody waits for what is still under way: it is cancelled, given a
    /// moment to end, and what the kernel keeps beyond that stays its own.
    fn drop(&mut self) {
        let ending = self.inflight.borrow_mut().give_up();
        self.lanes.give_up(self);
        self.end(ending);
        if let Err(error) = self.end_waits() {
            tracing::warn!(%error, "ending the waits of a driver failed");
        }
        if let Backend::Ring(ring) = &self.backend {
            ring.borrow_mut().uninstall_all();
        }
        let ring = self.ring_id();
        for backing in self.registered.get_mut() {
            backing.leave(ring);
        }
        for queue in self.rx_queues.get_mut() {
            queue.outlive_driver();
        }
        let leaked = self.inflight.borrow_mut().abandon() + self.lanes.abandon();
        if leaked > 0 {
            tracing::warn!(
                leaked,
                "the kernel still holds buffers of operations; their memory is kept for it"
            );
        }
    }
}
