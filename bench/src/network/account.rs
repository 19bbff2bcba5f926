//! What one end of a connection spends: its thread, the ring's workers of that thread, and the threads
//! of its NICs where those have some.
//!
//! Contracts:
//!
//! 1. What the other end spends, and the engine of a software NIC, are in no figure.
//! 2. For the witness nothing is asked, since answers are copied too.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use handoff_lab::instructions;
use rustix::thread::gettid;

use super::bed::Bed;
use crate::{
    measure::{Cpu, Tally, Time},
    processor::kept_waiting,
    tasks::{self, own_cpu, spent},
};

/// Of the calling thread, which works over these networks.
pub(crate) struct Account<'a> {
    napi: Vec<PathBuf>,
    beds: Vec<&'a Bed>,
    attested: bool,
}

/// How things stood when the clock started.
pub(crate) struct Begun {
    simulated_dma: Option<u64>,
    waited: (Duration, Duration),
    others: Duration,
    own: Duration,
    at: Instant,
}

impl<'a> Account<'a> {
    /// With these threads of NICs, over these networks.
    pub(crate) fn new(napi: impl IntoIterator<Item = PathBuf>, beds: Vec<&'a Bed>) -> Self {
        Self { napi: napi.into_iter().collect(), beds, attested: false }
    }

    /// From here on nothing is asked.
    pub(crate) fn leave_to_witness(&mut self) {
        self.attested = true;
    }

    /// Starts the clock. `far_waited` is how long the other end was kept from its processor so far.
    ///
    /// # Errors
    ///
    /// What can't be asked, in one line.
    pub(crate) fn begin(&self, far_waited: Duration) -> Result<Begun, String> {
        Ok(Begun {
            simulated_dma: self.simulated_dma()?,
            waited: (kept_waiting(), far_waited),
            others: self.others(),
            own: own_cpu(),
            at: Instant::now(),
        })
    }

    /// Stops the clock: a tally of all but what was moved.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub(crate) fn end(
        &self,
        begun: &Begun,
        far_waited: impl FnOnce() -> Duration,
    ) -> Result<Tally, String> {
        let (elapsed, own) = (begun.at.elapsed(), own_cpu().saturating_sub(begun.own));
        let cpu = own + self.others().saturating_sub(begun.others);
        // Where each instruction takes a nanosecond, those of this end are what counts.
        let time = match instructions::counting() {
            true => Time { elapsed: cpu, kept_waiting: Duration::ZERO },
            // Each of the two is waited for by the other.
            false => Time {
                elapsed,
                kept_waiting: kept_waiting()
                    .saturating_sub(begun.waited.0)
                    .max(far_waited().saturating_sub(begun.waited.1)),
            },
        };
        let moved = self.simulated_dma()?.zip(begun.simulated_dma);
        Ok(Tally {
            cpu: Cpu::Known(cpu),
            time: Some(time),
            simulated_dma: moved.map(|(after, before)| after - before),
            ..Tally::default()
        })
    }

    /// CPU time of all threads but the calling one.
    fn others(&self) -> Duration {
        if self.attested {
            return Duration::ZERO;
        }
        let workers = format!("iou-wrk-{}", gettid().as_raw_nonzero());
        let mut threads = tasks::of_process(std::process::id());
        threads.retain(|thread| tasks::name(thread) == workers);
        threads.extend(self.napi.iter().cloned());
        spent(&threads).cpu
    }

    /// Over all networks; none where a network tells nothing.
    fn simulated_dma(&self) -> Result<Option<u64>, String> {
        if self.attested {
            return Ok(None);
        }
        let counts: Result<Vec<_>, _> = self.beds.iter().map(|bed| bed.simulated_dma()).collect();
        Ok(counts?.into_iter().sum())
    }
}
