//! What was relayed: connections, bytes, engines, copies, and how many are open.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Instant, SystemTime};

use handoff::{Client, Route, RxQueue, Tally};
use handoff_command::access_log::AccessLog;
use handoff_command::rate_limit::RateLimit;
use handoff_command::{output, progress};
use handoff_net::arrived::Arrived;
use handoff_net::listening::Target;
use indicatif::ProgressBar;

use super::log::Ended;

/// What is counted while it runs.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) connections: u64,
    pub(super) most_open: u64,
    pub(super) failed: u64,
    /// For having too many of their client's already; not among the connections.
    pub(super) turned_away: u64,
    /// How often each failure was seen.
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) up: u64,
    pub(super) down: u64,
    /// Directions that ended, by the engine that served last.
    pub(super) engines: BTreeMap<&'static str, u64>,
    pub(super) taken: Tally,
    /// By a NIC's queue.
    pub(super) taken_by_queue: Tally,
    pub(super) given: Tally,
}

impl Counts {
    /// Those of another thread.
    pub(super) fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.most_open = self.most_open.max(other.most_open);
        self.failed += other.failed;
        self.turned_away += other.turned_away;
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        self.up += other.up;
        self.down += other.down;
        for (engine, directions) in other.engines {
            *self.engines.entry(engine).or_default() += directions;
        }
        self.taken += other.taken;
        self.taken_by_queue += other.taken_by_queue;
        self.given += other.given;
    }
}

/// What the counters of all threads share.
#[derive(Clone)]
pub(super) struct Shared(Arc<All>);

struct All {
    progress: ProgressBar,
    open: AtomicU64,
    totals: Mutex<Totals>,
    /// It was said that the target can't be reached, and no connection has reached it since.
    down: AtomicBool,
    unreached: RateLimit,
    log: Option<AccessLog>,
}

/// What is for the report.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) notes: Vec<String>,
    /// Of threads that have ended, by their number.
    pub(super) counts: BTreeMap<usize, Counts>,
    pub(super) nic: Option<Arrived>,
}

impl Shared {
    pub(super) fn new(quiet: bool, log: Option<AccessLog>) -> Self {
        Self(Arc::new(All {
            progress: progress::bytes(None, quiet),
            open: AtomicU64::new(0),
            totals: Mutex::default(),
            down: AtomicBool::new(false),
            unreached: RateLimit::new(
                |count| format!("{count} more connections did not reach the target"),
                output::say,
            ),
            log,
        }))
    }

    /// The progress line goes; what is for the report.
    pub(super) fn close(&self) -> Totals {
        self.0.progress.finish_and_clear();
        std::mem::take(&mut self.totals())
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.0.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counts of a thread. Clones are of the same.
#[derive(Clone)]
pub(super) struct Counters(Rc<Inner>);

struct Inner {
    all: Shared,
    open: Cell<u64>,
    /// How many of them each client has.
    clients: RefCell<HashMap<IpAddr, u32>>,
    counts: RefCell<Counts>,
    /// Who waits for connections to end.
    waiting: RefCell<Vec<Waker>>,
}

impl Counters {
    pub(super) fn new(all: Shared) -> Self {
        Self(Rc::new(Inner {
            all,
            open: Cell::new(0),
            clients: RefCell::default(),
            counts: RefCell::default(),
            waiting: RefCell::default(),
        }))
    }

    /// A connection has come; `None` where its client has `most` already.
    pub(super) fn enter(&self, client: Client, most: Option<u32>) -> Option<Counted> {
        // A Unix socket is most often another server's, with many clients behind it.
        if let Some(address) = client.address() {
            let mut clients = self.0.clients.borrow_mut();
            let own = clients.entry(address.ip()).or_default();
            if most.is_some_and(|most| *own >= most) {
                self.0.counts.borrow_mut().turned_away += 1;
                return None;
            }
            *own += 1;
        }
        self.0.open.set(self.0.open.get() + 1);
        let open = self.0.all.0.open.fetch_add(1, Relaxed) + 1;
        let mut counts = self.0.counts.borrow_mut();
        counts.connections += 1;
        counts.most_open = counts.most_open.max(open);
        Some(Counted {
            counters: self.clone(),
            client,
            target: None,
            began: SystemTime::now(),
            clock: Instant::now(),
            up: Rc::default(),
            down: Rc::default(),
            shown: Cell::new(0),
            end: End::WithRelay,
        })
    }

    /// Connections under way.
    pub(super) fn open(&self) -> u64 {
        self.0.open.get()
    }

    /// Waits until fewer than so many are under way.
    pub(super) async fn until_below(&self, most: u64) {
        poll_fn(|context| {
            if self.open() < most {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// A connection has not reached the target, which is said once, until one has.
    pub(super) fn unreached(&self, failure: &str) {
        let all = &self.0.all.0;
        if all.down.load(Relaxed) {
            return;
        }
        if let Some(line) = all.unreached.now(|| failure.to_owned()) {
            all.down.store(true, Relaxed);
            output::say(line);
        }
    }

    /// A connection has reached the target.
    pub(super) fn reached(&self) {
        let down = &self.0.all.0.down;
        // Written only where it changes: all threads have it in common.
        if down.load(Relaxed) {
            down.store(false, Relaxed);
        }
    }

    /// The progress line goes; the report follows later.
    pub(super) fn clear(&self) {
        self.0.all.0.progress.finish_and_clear();
    }

    /// Says what goes otherwise than asked, now and in the report.
    pub(super) fn note(&self, note: String) {
        let mut totals = self.0.all.totals();
        if !totals.notes.contains(&note) {
            output::say(format_args!("note: {note}"));
            totals.notes.push(note);
        }
    }

    /// The thread of this number ends; it received from this queue, if from any.
    pub(super) fn close(&self, number: usize, queue: Option<&RxQueue>) {
        let mut totals = self.0.all.totals();
        totals.counts.insert(number, self.0.counts.take());
        // Who ends last knows all, so each looks when it is its turn.
        totals.nic = queue.map(Arrived::by).or(totals.nic.take());
    }
}

/// A connection that is counted, until it is dropped.
pub(super) struct Counted {
    counters: Counters,
    client: Client,
    /// The address of the target that it reached.
    target: Option<Target>,
    began: SystemTime,
    clock: Instant,
    up: Rc<Cell<u64>>,
    down: Rc<Cell<u64>>,
    /// Bytes that the progress knows of.
    shown: Cell<u64>,
    end: End,
}

/// How a connection ends.
enum End {
    Well,
    Failed(String),
    /// Unless something else is said.
    WithRelay,
    /// It was none.
    None,
}

impl Counted {
    /// It has reached the target at this address.
    pub(super) fn reached(&mut self, target: Target) {
        self.target = Some(target);
    }

    /// The counts of its two directions.
    pub(super) fn watch(&mut self, up: Rc<Cell<u64>>, down: Rc<Cell<u64>>) {
        (self.up, self.down) = (up, down);
    }

    /// Bytes in both directions.
    pub(super) fn moved(&self) -> u64 {
        self.up.get() + self.down.get()
    }

    /// Shows how far it is.
    pub(super) fn tell(&self) {
        let moved = self.moved();
        self.counters.0.all.0.progress.inc(moved - self.shown.replace(moved));
    }

    /// A direction has ended, well or not; whether it came by a NIC's queue.
    pub(super) fn carried(&self, route: &Route, by_queue: bool) {
        let mut counts = self.counters.0.counts.borrow_mut();
        *counts.engines.entry(route.engine().name()).or_default() += 1;
        match by_queue {
            true => counts.taken_by_queue += route.taken(),
            false => counts.taken += route.taken(),
        }
        counts.given += route.given();
    }

    /// Takes it out of the count of those that came: it is not served.
    pub(super) fn uncount(mut self) {
        self.end = End::None;
        self.counters.0.counts.borrow_mut().connections -= 1;
    }

    pub(super) fn ended_well(mut self) {
        self.end = End::Well;
    }

    pub(super) fn failed(mut self, reason: String) {
        self.end = End::Failed(reason);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tell();
        let inner = &self.counters.0;
        {
            let mut counts = inner.counts.borrow_mut();
            counts.up += self.up.get();
            counts.down += self.down.get();
            let failure = match &self.end {
                End::Well | End::None => None,
                End::Failed(reason) => Some(reason.as_str()),
                End::WithRelay => Some("ended with the relay"),
            };
            if let Some(failure) = failure {
                counts.failed += 1;
                *counts.failures.entry(failure.to_owned()).or_default() += 1;
            }
            if let Some(log) = inner.all.0.log.as_ref().filter(|_| !matches!(self.end, End::None)) {
                log.write(&Ended {
                    began: self.began,
                    client: self.client,
                    target: self.target.as_ref(),
                    up: self.up.get(),
                    down: self.down.get(),
                    seconds: self.clock.elapsed().as_secs_f64(),
                    end: failure.unwrap_or("well"),
                });
            }
        }
        inner.open.set(inner.open.get() - 1);
        inner.all.0.open.fetch_sub(1, Relaxed);
        if let Some(address) = self.client.address()
            && let Entry::Occupied(mut own) = inner.clients.borrow_mut().entry(address.ip())
        {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        inner.waiting.take().into_iter().for_each(Waker::wake);
    }
}
