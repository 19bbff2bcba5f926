//! Messages one way, or there and back, as an engine of the measuring frame.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use handoff_testbed::instructions;
use rustix::thread::gettid;

use super::{
    far::Far,
    job::{Job, Op},
};
use crate::{
    calls::Enters,
    measure::{Engine, Reaped, Slot, Tally},
    network::{
        account::Account,
        testbed::{Joint, Testbed},
    },
    report::Latency,
    tasks::{self, own_user, spent},
};

/// The least number of answers in a slot: the first on an idle connection may wait for a timer of TCP.
const LEAST: usize = 9;

/// A way to send messages: what rows differ in.
pub(super) trait Way {
    /// Sends messages until it is `over` and every lent buffer is back; returns the number of messages.
    ///
    /// # Errors
    ///
    /// One line that says what ended the way, also if the peer was silent for too long.
    fn stream(&mut self, over: &dyn Fn() -> bool) -> Result<u64, String>;

    /// Sends a message, and returns when an answer of the same length has come.
    ///
    /// # Errors
    ///
    /// The errors of [`stream`](Self::stream).
    fn ask(&mut self) -> Result<(), String>;

    /// What has come back so far.
    fn returned(&self) -> Returned;
}

/// What has come back to the sender, and the time that took.
#[derive(Clone, Copy, Default)]
pub(super) struct Returned {
    /// Bytes that the kernel reports as copied; `None` if it does not report.
    pub(super) copied: Option<u64>,
    /// The completions taken; `None` if the way has none.
    pub(super) reaped: Option<Reaped>,
}

pub(super) struct Exchange<'a, W> {
    // The way is dropped before the far end, which may end with it.
    way: W,
    far: Far,
    job: Job,
    account: Account<'a>,
    /// The threads of the software NIC's engine, which simulates DMA.
    simulated_dma: Vec<PathBuf>,
    sent: u64,
    enters: Option<Enters>,
    attested: bool,
}

impl<'a, W: Way> Exchange<'a, W> {
    /// Makes the engine. Its CPU time is that of the calling thread, of its NIC's threads, and of `workers`.
    pub(super) fn new(
        testbed: &'a Testbed,
        job: Job,
        (way, far): (W, Far),
        workers: Vec<PathBuf>,
    ) -> Self {
        let napi = testbed.napi_of_connecting().iter().cloned();
        let account = Account::new(napi.chain(workers), vec![testbed]);
        let simulated_dma = match testbed.joint() {
            Joint::Wire => tasks::named("wire-engine"),
            Joint::Veth | Joint::VirtioNet => Vec::new(),
        };
        Self { way, far, job, account, simulated_dma, sent: 0, enters: None, attested: false }
    }

    /// Sends messages for a slot. Returns their number, and the time of each answer.
    fn work(&mut self, slot: &Slot<'_>) -> Result<(u64, Vec<Duration>), String> {
        let mut times = Vec::new();
        let count = match self.job.op {
            Op::Stream => {
                let count = self.way.stream(&|| slot.is_over())?;
                self.sent += count * self.job.bytes as u64;
                self.far.await_total(self.sent)?;
                count
            }
            Op::Ask => {
                while !slot.is_over() || times.len() < LEAST && !slot.is_stopped() {
                    let begin = Instant::now();
                    self.way.ask()?;
                    times.push(begin.elapsed());
                }
                times.len() as u64
            }
        };
        Ok((count, times))
    }

    fn spent_by_simulated_dma(&self) -> Duration {
        if self.attested { Duration::ZERO } else { spent(&self.simulated_dma).cpu }
    }
}

impl<W: Way> Engine for Exchange<'_, W> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let enters = |this: &Self| this.enters.as_ref().map(Enters::count).transpose();
        let calls = enters(self)?;
        let (before, moving) = (self.way.returned(), self.spent_by_simulated_dma());
        let begun = self.account.begin(self.far.waits())?;
        let user = own_user();
        let worked = self.work(&slot.anew());
        let user = own_user().saturating_sub(user);
        let spent = self.account.end(&begun, || self.far.waits());
        let (count, mut times) = worked.map_err(|error| self.far.ended().unwrap_or(error))?;
        let (after, moving) =
            (self.way.returned(), self.spent_by_simulated_dma().saturating_sub(moving));
        let each = moving.as_secs_f64() * 1e6 / (count.max(1) as f64);
        let latency = Latency::of(&mut times).map(|latency| Latency {
            simulated_dma: (!self.simulated_dma.is_empty()).then_some(each),
            ..latency
        });
        let both = |after: Option<u64>, before: Option<u64>| Some(after? - before?);
        let reaped = after.reaped.zip(before.reaped).map(|(after, before)| Reaped {
            completions: after.completions - before.completions,
            calls: after.calls - before.calls,
            time: after.time - before.time,
        });
        Ok(Tally {
            bytes: count * self.job.bytes as u64,
            operations: Some(count),
            copied: both(after.copied, before.copied),
            latency,
            user: (!instructions::counting()).then_some(user),
            reaped,
            enters: both(enters(self)?, calls),
            ..spent?
        })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.attested = true;
        self.account.leave_to_witness();
        self.enters = Some(Enters::of([gettid().as_raw_nonzero().get()])?);
        Ok(())
    }

    /// The report is about the sender. The receiver copies each message once more, and an answer costs the same
    /// again.
    fn implied(&self, reported: f64) -> f64 {
        match self.job.op {
            Op::Stream => reported + 1.0,
            Op::Ask => 2.0 * (reported + 1.0),
        }
    }
}
