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

/// Reasons of failures that are told apart.
const REASONS: usize = 64;

/// What is counted while it runs.
#[derive(Clone, Default)]
pub(super) struct Counts {
    pub(super) connections: u64,
    pub(super) most_open: u64,
    pub(super) failed: u64,
    /// For having too many of their client's already. Not among the connections, unless a front had to say whose they are.
    pub(super) turned_away: u64,
    /// For coming from elsewhere than --from says.
    pub(super) refused: u64,
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
    /// One more that failed for this reason. Addresses that change make ever new ones.
    fn note_failure(&mut self, failure: &str) {
        let known = self.failures.len() < REASONS || self.failures.contains_key(failure);
        let reason = if known { failure } else { "for other reasons" };
        *self.failures.entry(reason.to_owned()).or_default() += 1;
    }

    /// Those of another thread.
    pub(super) fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.most_open = self.most_open.max(other.most_open);
        self.failed += other.failed;
        self.turned_away += other.turned_away;
        self.refused += other.refused;
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
    /// Of each thread.
    threads: Mutex<BTreeMap<usize, Arc<Mutex<Counts>>>>,
    /// It was said that the target can't be reached, and no connection has reached it since.
    down: AtomicBool,
    unreached: RateLimit,
    log: Option<AccessLog>,
}

/// What is for the report.
#[derive(Clone, Default)]
pub(super) struct Totals {
    pub(super) notes: Vec<String>,
    /// Of threads, by their number.
    pub(super) counts: BTreeMap<usize, Counts>,
    pub(super) nic: Option<Arrived>,
}

impl Shared {
    pub(super) fn new(quiet: bool, log: Option<AccessLog>) -> Self {
        Self(Arc::new(All {
            progress: progress::bytes(None, quiet),
            open: AtomicU64::new(0),
            totals: Mutex::default(),
            threads: Mutex::default(),
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
        self.read().1
    }

    /// How many connections are under way, and what is known so far.
    pub(super) fn read(&self) -> (u64, Totals) {
        let mut totals = locked(&self.0.totals).clone();
        let counts =
            |(number, counts): (&usize, &Arc<Mutex<Counts>>)| (*number, locked(counts).clone());
        totals.counts = locked(&self.0.threads).iter().map(counts).collect();
        (self.0.open.load(Relaxed), totals)
    }
}

fn locked<T>(counts: &Mutex<T>) -> MutexGuard<'_, T> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The counts of a thread. Clones are of the same.
#[derive(Clone)]
pub(super) struct Counters(Rc<Inner>);

struct Inner {
    all: Shared,
    open: Cell<u64>,
    /// How many of them each client has.
    clients: RefCell<HashMap<IpAddr, u32>>,
    /// Others only read them.
    counts: Arc<Mutex<Counts>>,
    /// Who waits for connections to end.
    waiting: RefCell<Vec<Waker>>,
}

impl Counters {
    /// Those of the thread of this number.
    pub(super) fn new(all: Shared, number: usize) -> Self {
        let counts = Arc::<Mutex<Counts>>::default();
        locked(&all.0.threads).insert(number, Arc::clone(&counts));
        Self(Rc::new(Inner {
            all,
            open: Cell::new(0),
            clients: RefCell::default(),
            counts,
            waiting: RefCell::default(),
        }))
    }

    /// A connection has come; `None` where its client has `most` already.
    pub(super) fn enter(&self, client: Client, most: Option<u32>) -> Option<Counted> {
        if !self.0.join(client, most) {
            return None;
        }
        self.0.open.set(self.0.open.get() + 1);
        let open = self.0.all.0.open.fetch_add(1, Relaxed) + 1;
        let mut counts = self.0.counts();
        counts.connections += 1;
        counts.most_open = counts.most_open.max(open);
        Some(Counted {
            counters: self.clone(),
            client,
            target: None,
            began: SystemTime::now(),
            clock: Instant::now(),
            ahead: 0,
            up: Rc::default(),
            down: Rc::default(),
            shown: Cell::default(),
            end: End::WithRelay,
        })
    }

    /// One has come that --from does not let in.
    pub(super) fn refused(&self) {
        self.0.counts().refused += 1;
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
        let mut totals = locked(&self.0.all.0.totals);
        if !totals.notes.contains(&note) {
            output::say(format_args!("note: {note}"));
            totals.notes.push(note);
        }
    }

    /// The thread ends; it received from this queue, if from any.
    pub(super) fn close(&self, queue: Option<&RxQueue>) {
        let mut totals = locked(&self.0.all.0.totals);
        // Who ends last knows all, so each looks when it is its turn.
        totals.nic = queue.map(Arrived::by).or(totals.nic.take());
    }
}

impl Inner {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        locked(&self.counts)
    }

    /// Counts one more of this client; whether it may have that.
    fn join(&self, client: Client, most: Option<u32>) -> bool {
        // A Unix socket is most often another server's, with many clients behind it.
        let Some(address) = client.address() else { return true };
        let mut clients = self.clients.borrow_mut();
        let own = clients.entry(address.ip().to_canonical()).or_default();
        if most.is_some_and(|most| *own >= most) {
            self.counts().turned_away += 1;
            return false;
        }
        *own += 1;
        true
    }

    /// Counts one less of it.
    fn leave(&self, client: Client) {
        if let Some(address) = client.address()
            && let Entry::Occupied(mut own) =
                self.clients.borrow_mut().entry(address.ip().to_canonical())
        {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
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
    /// Bytes of the client's that came with the head of its front.
    ahead: u64,
    up: Rc<Cell<u64>>,
    down: Rc<Cell<u64>>,
    /// Of both, what is in the counts.
    shown: Cell<(u64, u64)>,
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

    /// Its front says for whom it has come; `false` if that client has `most` already.
    pub(super) fn comes_for(&mut self, client: Client, most: Option<u32>) -> bool {
        let inner = &self.counters.0;
        inner.leave(self.client);
        let may = inner.join(client, most);
        match may {
            true => self.client = client,
            // It is the front's until it is dropped.
            false => _ = inner.join(self.client, None),
        }
        may
    }

    /// Bytes were copied to the target before its direction began.
    pub(super) fn copied_ahead(&mut self, bytes: usize) {
        self.ahead = bytes as u64;
        let mut counts = self.counters.0.counts();
        counts.taken.copied += self.ahead;
        counts.given.copied += self.ahead;
    }

    /// The counts of its two directions.
    pub(super) fn watch(&mut self, up: Rc<Cell<u64>>, down: Rc<Cell<u64>>) {
        (self.up, self.down) = (up, down);
    }

    /// Bytes in both directions.
    pub(super) fn moved(&self) -> u64 {
        self.ahead + self.up.get() + self.down.get()
    }

    /// Shows how far it is.
    pub(super) fn tell(&self) {
        let (up, down) = (self.ahead + self.up.get(), self.down.get());
        let (shown_up, shown_down) = self.shown.replace((up, down));
        let (up, down) = (up - shown_up, down - shown_down);
        if up + down > 0 {
            let mut counts = self.counters.0.counts();
            counts.up += up;
            counts.down += down;
            self.counters.0.all.0.progress.inc(up + down);
        }
    }

    /// A direction has ended, well or not; whether it came by a NIC's queue.
    pub(super) fn carried(&self, route: &Route, by_queue: bool) {
        let mut counts = self.counters.0.counts();
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
        self.counters.0.counts().connections -= 1;
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
            let mut counts = inner.counts();
            let failure = match &self.end {
                End::Well | End::None => None,
                End::Failed(reason) => Some(reason.as_str()),
                End::WithRelay => Some("ended with the relay"),
            };
            if let Some(failure) = failure {
                counts.failed += 1;
                counts.note_failure(failure);
            }
            if let Some(log) = inner.all.0.log.as_ref().filter(|_| !matches!(self.end, End::None)) {
                log.write(&Ended {
                    began: self.began,
                    client: self.client,
                    target: self.target.as_ref(),
                    up: self.ahead + self.up.get(),
                    down: self.down.get(),
                    seconds: self.clock.elapsed().as_secs_f64(),
                    end: failure.unwrap_or("well"),
                });
            }
        }
        inner.open.set(inner.open.get() - 1);
        inner.all.0.open.fetch_sub(1, Relaxed);
        inner.leave(self.client);
        inner.waiting.take().into_iter().for_each(Waker::wake);
    }
}
