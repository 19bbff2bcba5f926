//! One turn of a driver: marked operations start, the thread enters the kernel, completions go to their
//! operations. Also the last turns, when the driver goes.
//!
//! Contracts:
//! - waiters are woken after everything taken from the kernel has been told. So a waker may do anything:
//!   its sends, or a turn of its own, find that earlier events were told earlier;
//! - a waker that panics keeps no other waiter from being woken; its panic then continues;
//! - a driver that goes calls no waker before everything else is done.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use crate::core::{Core, Then};
use crate::engine::{
    accepting, file_call, get_buf, lane, order, raw, receiving, requests, transfer,
};
use crate::error::{Error, Result};
use crate::lease::{Mark, send_span};
use crate::op::Kind;
use crate::ring::token::{ALARM, DETACHED, Stage, WAKE};
use crate::ring::{
    BATCH, Backend, Batch, Completion, Io, Key, RawSpan, Ready, Ring, Token, Until, teardown,
};

/// What all handles on a driver share: the core, and the turns. The last handle ends operations under way.
pub(crate) struct Reactor {
    pub(crate) core: Core,
    /// Room for the places in completions, kept between turns.
    places: Cell<Vec<RawSpan>>,
}

impl Reactor {
    pub(crate) fn new(io: Io, in_flight: usize) -> Result<Rc<Self>> {
        let core = Core::new(io, in_flight)?;
        core.watch_unpark()?;
        Ok(Rc::new(Self { core, places: Cell::default() }))
    }

    /// CPU nanoseconds of this thread for `act` and the submission of what it queued.
    pub(crate) fn time(&self, act: impl FnOnce()) -> Option<u64> {
        let start = thread_time();
        act();
        if !self.core.is_quiet() {
            self.core.wakes().wake_later(|| self.turn(Until::Now)).ok()?;
        }
        Some(thread_time().saturating_sub(start))
    }

    /// Submits, waits as told, and tells operations their results.
    pub(crate) fn turn(&self, until: Until) -> Result<usize> {
        self.turn_around(until, false)
    }

    /// The same for a thread that polls futures: it waits until something happens, or a future is woken.
    pub(crate) fn turn_parked(&self) -> Result<usize> {
        self.turn_around(Until::One, true)
    }

    /// `parks` says whether a wake by another thread ends the wait.
    fn turn_around(&self, until: Until, parks: bool) -> Result<usize> {
        self.core.check_here()?;
        if self.core.wakes().is_telling() {
            // Nothing can be told during telling.
            return Ok(0);
        }
        // If a waker waits here, the remaining wakers are called first, so that they need not wait for it. If
        // it only looks, its caller calls the others; otherwise wakers would nest in each other. A driver
        // that goes wakes at its end.
        let only_looks = matches!(until, Until::Now | Until::Soon);
        let wakes = !(self.core.pending.is_gone() || self.core.wakes().is_waking() && only_looks);
        if wakes {
            self.core.wakes().wake_all();
        }
        self.core.mark_driven();
        let telling = self.core.wakes().telling();
        let events = self.turn_and_tell(until, parks);
        drop(telling);
        if wakes {
            self.core.wakes().wake_all();
        }
        events
    }

    #[inline(always)]
    fn turn_and_tell(&self, until: Until, parks: bool) -> Result<usize> {
        let until = match (self.core.pending.returns.any(), until) {
            (false, until) => until,
            (true, until) => {
                send_span::bring_back(&self.core.pending);
                // Whoever waits for that need not wait for more.
                if until == Until::Soon { until } else { Until::Now }
            }
        };
        let (until, mut expired) =
            if self.core.pending.take_to_start() { self.start_pending(until) } else { (until, 0) };
        lane::pump_marked(&self.core);
        if self.core.departed.any() {
            self.core.clear_departed();
        }
        self.core.keep_to_budget();
        // A task that is to be woken by now has something to do.
        let until = match until {
            Until::One | Until::OneOr(_)
                if !self.core.pending.is_gone() && self.core.wakes().has_wakes() =>
            {
                Until::Now
            }
            until => until,
        };
        let entered = if parks { self.park(until) } else { self.enter(until) };
        let events = entered.and_then(|()| {
            if let Until::OneOr(_) = until {
                expired += self.tell_expired();
            }
            self.tell()
        });
        self.core.deadlines.set_alarm();
        self.core.turns.set(self.core.turns.get().wrapping_add(1));
        self.core.at_once.set(0);
        events.map(|events| events + expired)
    }

    /// As [`enter`](Self::enter); a wake by another thread ends the wait.
    fn park(&self, until: Until) -> Result<()> {
        let entered = self.enter(self.core.unpark.park(until));
        self.core.unpark.unpark();
        entered
    }

    /// Enters the kernel, which does what it was asked, and waits as told.
    fn enter(&self, until: Until) -> Result<()> {
        match &self.core.io.backend {
            Backend::Ring(ring) => {
                let mut ring = ring.borrow_mut();
                let entered = ring.enter(until).and_then(|()| match self.core.in_chains.get() {
                    0 => Ok(()),
                    links => ring.go_on(links),
                });
                entered.map_err(|error| Error::io("entering the ring", error))
            }
            Backend::Readiness(epoll) => {
                let time = match until {
                    Until::Now | Until::Soon => Some(Duration::ZERO),
                    Until::One => None,
                    Until::OneOr(time) => Some(time),
                };
                let waited = epoll.borrow_mut().wait(time);
                waited.map_err(|error| Error::io("waiting in epoll", error))
            }
        }
    }

    /// Tells operations their results: completions of the ring, or ready descriptors.
    fn tell(&self) -> Result<usize> {
        match &self.core.io.backend {
            Backend::Ring(ring) => {
                let count = self.take_completions(ring)?;
                self.core.go_on_with_lanes();
                let mut ring = ring.borrow_mut();
                if ring.event_watched() {
                    ring.settle_event(self.core.has_marks() || self.core.wakes().has_wakes());
                }
                Ok(count)
            }
            Backend::Readiness(epoll) => {
                let ready = epoll.borrow_mut().take_ready();
                for event in &ready {
                    match event {
                        Ready::Operation(token) => self.ready(*token),
                        Ready::Wake => self.core.unpark.clear(),
                        Ready::Alarm => self.core.deadlines.clear_alarm(),
                    }
                }
                let count = ready.len();
                epoll.borrow_mut().give_back(ready);
                Ok(count)
            }
        }
    }

    /// Starts marked operations before deciding on a wait.
    pub(crate) fn start_and_wake(&self) {
        if self.core.wakes().is_telling() || !self.core.is_here() {
            return;
        }
        let telling = self.core.wakes().telling();
        self.start_marked();
        drop(telling);
        self.core.wakes().wake_all();
    }

    pub(crate) fn start_marked(&self) {
        if self.core.has_streams() || self.core.pending.has_marks() {
            self.start_each_marked();
        }
        lane::pump_marked(&self.core);
    }

    /// Starts what is pending, and makes the turn end with the next deadline; returns how many deadlines have expired.
    #[inline(never)]
    fn start_pending(&self, until: Until) -> (Until, usize) {
        self.start_each_marked();
        let (mut until, mut expired) = (until, 0);
        if !self.core.deadlines.is_empty() {
            expired = self.tell_expired();
            // This may have marked more, which must start before a wait begins.
            self.start_each_marked();
            until = self.until_deadline(until);
        }
        // What had no room, or whose time has not come, is looked at again.
        if !self.core.deadlines.is_empty()
            || self.core.has_streams()
            || self.core.pending.has_marks()
        {
            self.core.pending.look_again();
        }
        (until, expired)
    }

    fn start_each_marked(&self) {
        loop {
            self.core.start_streams(|socket| order::pump(&self.core, socket));
            self.core.pending.start_marks(|mark| match mark {
                Mark::Receive(key) => self.start_receive(key),
                Mark::Refill(queue) => {
                    self.core.rx_queues.borrow()[queue as usize].publish(self.core.io.ring_raw());
                }
            });
            if !self.core.has_streams() {
                break;
            }
        }
        get_buf::clear_marked(&self.core);
        requests::give_marked(&self.core);
    }

    /// The receive may be over and gone since it was marked.
    fn start_receive(&self, key: Key) {
        let kind = self.core.records.borrow().kind(key);
        match kind {
            Some(Kind::Transfer) => transfer::start_marked(&self.core, key),
            Some(Kind::Receive) => receiving::arm(&self.core, key),
            _ => {}
        }
    }

    /// Handles expired deadlines; returns their number.
    fn tell_expired(&self) -> usize {
        let now = Instant::now();
        let mut count = 0;
        while let Some(then) = self.core.deadlines.take_expired(now) {
            count += 1;
            match then {
                Then::Tell(token) => self.ready(token),
                Then::Await(socket, token) => self.core.await_readiness(&socket.endpoint, 0, token),
                Then::Cancel(token) => self.cancel_again(token, true),
                Then::Look(lingering) => self.core.look_at(lingering),
                Then::Review => self.core.review(),
                Then::Wake(waker) => self.core.wakes().wake(Some(waker)),
            }
        }
        count
    }

    /// A wait ends with the earliest deadline.
    fn until_deadline(&self, until: Until) -> Until {
        match (until, self.core.deadlines.time_left()) {
            (Until::One, Some(left)) => Until::OneOr(left),
            (Until::OneOr(time), Some(left)) => Until::OneOr(time.min(left)),
            _ => until,
        }
    }

    #[inline(always)]
    fn take_completions(&self, ring: &RefCell<Ring>) -> Result<usize> {
        let mut places = self.places.take();
        let taken = self.take_each(ring, &mut places);
        self.places.set(places);
        taken
    }

    #[inline(always)]
    fn take_each(&self, ring: &RefCell<Ring>, places: &mut Vec<RawSpan>) -> Result<usize> {
        let mut batch: Batch = [const { MaybeUninit::uninit() }; BATCH];
        let mut count = 0;
        loop {
            let taken = ring.borrow_mut().take(&mut batch, places);
            let last = taken.len() < BATCH;
            count += taken.len();
            if !places.is_empty() {
                let runs = taken.iter().filter(|completion| !completion.spans.is_empty());
                count += places.len() - runs.count();
            }
            let mut rest = taken;
            while let [first, ..] = rest {
                let told = self.dispatch(first, rest, places);
                rest = &rest[told..];
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

    /// Handles the first of these completions, and those behind it that belong together; returns their
    /// number, at least 1.
    #[inline]
    fn dispatch(&self, first: &Completion, all: &[Completion], places: &[RawSpan]) -> usize {
        let Completion { data, result, flags, .. } = *first;
        match data {
            DETACHED => return 1,
            WAKE => {
                self.core.unpark.clear();
                if !io_uring::cqueue::more(flags)
                    && let Err(error) = self.core.watch_unpark()
                {
                    tracing::error!(%error, "wake-ups from other threads are lost");
                }
                return 1;
            }
            ALARM => {
                self.core.deadlines.clear_alarm();
                if !io_uring::cqueue::more(flags) {
                    self.core.watch_alarm_again();
                }
                return 1;
            }
            _ => {}
        }
        let token = Token::from_user_data(data);
        match token.stage {
            Stage::Lane => return lane::completed(&self.core, all),
            Stage::Cancel | Stage::LaneCancel if result != -libc::ENOENT => {}
            Stage::Cancel | Stage::LaneCancel => self.cancel_again(token, false),
            Stage::Ready | Stage::Return | Stage::LaneReady => self.ready(token),
            Stage::Transfer => transfer::completed(&self.core, token.key, result),
            Stage::Accept => accepting::completed(&self.core, token.key, result, flags),
            Stage::Raw => raw::completed(&self.core, token.key, result, flags),
            Stage::FileCall => file_call::completed(&self.core, token.key, result),
            Stage::Get => get_buf::completed(&self.core, token.key, result),
            Stage::Clear => get_buf::cleared(&self.core, token.slot(), result),
            Stage::Look => self.core.looked(token, result),
            Stage::Request => {
                let (queue, tag) = token.request();
                requests::completed(&self.core, queue, tag, result);
            }
            Stage::Receive => receiving::completed(&self.core, token.key, first, places),
            Stage::RxEvent => {
                let ring = self.core.io.ring_raw();
                self.core.rx_queues.borrow()[token.rx_queue()].fell_short(ring);
            }
            Stage::Attempt(_) | Stage::Header => return order::completed(&self.core, all),
        }
        1
    }

    /// The kernel did not find what an operation asked it to end, or the question was `lost` on its way.
    #[cold]
    fn cancel_again(&self, token: Token, lost: bool) {
        if token.stage == Stage::LaneCancel {
            return lane::cancel_again(&self.core, token);
        }
        let key = token.key;
        let kind = self.core.records.borrow().kind(key);
        match kind {
            Some(Kind::Send) => order::cancel_again(&self.core, key),
            Some(Kind::Receive) => receiving::cancel_again(&self.core, key),
            Some(Kind::Transfer) => transfer::cancel_again(&self.core, key, lost),
            Some(Kind::Accept) => accepting::cancel_again(&self.core, key),
            Some(Kind::Get) => get_buf::cancel_again(&self.core, key),
            Some(Kind::Raw) => raw::cancel(&self.core, key),
            Some(Kind::FileCall) => file_call::ask_to_end(&self.core, key),
            None => {}
        }
    }

    pub(crate) fn ready(&self, token: Token) {
        if token.stage == Stage::LaneReady {
            return lane::ready(&self.core, token);
        }
        let kind = self.core.records.borrow().kind(token.key);
        match (kind, token.stage) {
            (Some(Kind::Send), Stage::Return) => order::returned(&self.core, token.key),
            (Some(Kind::Send), _) => order::ready(&self.core, token.key),
            (Some(Kind::Receive), _) => receiving::ready(&self.core, token.key),
            (Some(Kind::Transfer), _) => transfer::ready(&self.core, token.key),
            (Some(Kind::Accept), _) => accepting::ready(&self.core, token.key),
            (Some(Kind::Get | Kind::Raw | Kind::FileCall) | None, _) => {
                unreachable!("what waits for readiness keeps its record")
            }
        }
    }
}

impl Reactor {
    /// No [`Driver`](super::Driver) is left, but handles are: operations under way end, and waiters are
    /// told.
    pub(crate) fn leave(&self) {
        if !self.core.is_here() {
            return;
        }
        self.core.pending.leave();
        send_span::leave_away(&self.core.pending);
        let ending = self.core.records.borrow_mut().end_all();
        lane::give_up(&self.core);
        self.end(ending);
        // What was only marked so far ends before it begins.
        let _ = self.turn(Until::Now);
        let waiting = self.core.records.borrow_mut().take_wakers();
        let groups = self.core.groups.borrow_mut().take_wakers();
        let lanes = self.core.lanes.take_wakers();
        let mut queues = Vec::new();
        for served in &*self.core.request_queues.borrow() {
            queues.extend(served.queue.waker.borrow_mut().take());
        }
        let sleeping = self.core.deadlines.take_wakers();
        let others = groups.into_iter().chain(lanes).chain(queues).chain(sleeping);
        self.core.wakes().wake_with_others(waiting.into_iter().chain(others));
        self.core.wakes().finish();
    }

    /// Ends the waits that the ring has.
    #[cold]
    fn take_last(&self, ring: &RefCell<Ring>) -> Result<usize> {
        let mut borrowed = ring.borrow_mut();
        borrowed.cancel_all(teardown::TIMEOUT);
        borrowed.enter(Until::Now).map_err(|error| Error::io("entering the ring", error))?;
        drop(borrowed);
        self.take_completions(ring)
    }

    /// Cancels operations under way, and gives them a moment to end.
    fn end(&self, ending: Vec<Key>) {
        match &self.core.io.backend {
            Backend::Ring(ring) => ring.borrow_mut().cancel_all(teardown::TIMEOUT),
            Backend::Readiness(_) => {
                for &key in &ending {
                    let token = Token { key, stage: Stage::Ready };
                    if self.core.cancel(token) {
                        self.ready(token);
                    }
                }
            }
        }
        for key in ending {
            let kind = self.core.records.borrow().kind(key);
            match kind {
                Some(Kind::Get) => get_buf::end(&self.core, key),
                Some(Kind::Send) => order::give_up(&self.core, key),
                _ => {}
            }
        }
        self.wait_for_kernel();
        let cut = self.core.records.borrow().cut_streams();
        cut.iter().for_each(|socket| socket.reset());
        if self.core.reset_cut() || !cut.is_empty() {
            self.wait_for_kernel();
        }
    }

    /// Gives the kernel a moment to let go of everything. It is asked again, after ever longer pauses: it does not
    /// find a request that begins only when another has ended, nor one that a worker has just taken.
    fn wait_for_kernel(&self) {
        let mut now = Instant::now();
        let deadline = now + teardown::TIMEOUT;
        let mut pause = teardown::FIRST_PAUSE;
        let mut asks = now + pause;
        while self.core.kernel_holds_any() && now < deadline {
            if self.turn(Until::OneOr(asks.min(deadline).saturating_duration_since(now))).is_err() {
                break;
            }
            now = Instant::now();
            if now < asks {
                continue;
            }
            if let Some(ring) = self.core.io.ring() {
                ring.borrow_mut().cancel_all(deadline.saturating_duration_since(now));
            }
            pause *= 2;
            now = Instant::now();
            asks = now + pause;
        }
    }
}

impl Drop for Reactor {
    /// No handle is left, so nobody waits for operations under way: they are cancelled and get a moment to
    /// end. What the kernel keeps beyond that stays the kernel's.
    ///
    /// In a child they go on for its parent, and the kernel has none of the child's memory.
    fn drop(&mut self) {
        if !self.core.is_here() {
            return;
        }
        // The ring gives back what is dropped from here on.
        self.core.pending.close();
        send_span::leave_away(&self.core.pending);
        let ending = self.core.records.borrow_mut().end_all();
        // Meanwhile wakers that were left behind are dropped; that must not keep memory from the kernel.
        let ended = panic::catch_unwind(AssertUnwindSafe(|| {
            lane::give_up(&self.core);
            self.end(ending);
        }));
        self.core.io.is_closing.set(true);
        self.core.leave_parked_to_the_kernel();
        if let Backend::Ring(ring) = &self.core.io.backend
            && let Err(error) = self.take_last(ring)
        {
            tracing::warn!(%error, "ending the waits of a driver failed");
        }
        self.core.end_waits();
        if let Some(ring) = self.core.io.ring() {
            ring.borrow_mut().uninstall_all();
        }
        self.core.leave_registered();
        for queue in self.core.rx_queues.get_mut() {
            queue.outlive_driver();
        }
        let time = self.core.linger.get();
        let leaked = self.core.records.borrow_mut().abandon(time) + self.core.lanes.abandon(time);
        if leaked > 0 {
            tracing::warn!(
                leaked,
                "the kernel still holds buffers of operations; their memory is kept for it"
            );
        }
        // Others may wait for what came back last, or own it.
        let woke = panic::catch_unwind(AssertUnwindSafe(|| self.core.wakes().finish()));
        if let (Err(panic), false) = (ended.and(woke), thread::panicking()) {
            panic::resume_unwind(panic);
        }
    }
}

fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
