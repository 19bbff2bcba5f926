//! The costs of one end of a connection: its thread and the ring's workers of that thread, or all threads
//! of other programs; and the threads of its NICs if those have some.
//!
//! Contracts:
//!
//! 1. No figure includes the other end, or the engine of a software NIC.
//! 2. While the witness watches, no counts are read, since reading them copies bytes, too.
//! 3. A thread of another program that ends takes its counts along. That is an error, unless the whole program
//!    begins and ends while the clock runs.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use handoff_testbed::instructions;
use rustix::thread::gettid;

use super::testbed::Testbed;
use crate::{
    measure::{Cpu, Tally, Time},
    processor::Waits,
    processors::Processors,
    tasks::{self, cpu_of_ended, own_cpu, spent},
};

/// Who does the work that is counted.
#[derive(Debug, Clone, Copy)]
enum Worker {
    /// The calling thread.
    Caller,
    /// A process, and all that it started.
    Program(u32),
    /// The processes that this one starts and waits for, and those that they wait for.
    Ended,
}

/// The costs of a worker on these networks.
pub(crate) struct Account<'a> {
    worker: Worker,
    napi: Vec<PathBuf>,
    testbeds: Vec<&'a Testbed>,
    with_processors: bool,
    attested: bool,
}

/// The counts when the clock started.
pub(crate) struct Begun {
    simulated_dma: Option<u64>,
    waits: (Waits, Waits),
    threads: Vec<PathBuf>,
    others: Duration,
    processors: Option<Processors>,
    own: Duration,
    at: Instant,
}

impl<'a> Account<'a> {
    /// Counts the calling thread, and these threads of NICs, on these networks.
    pub(crate) fn new(napi: impl IntoIterator<Item = PathBuf>, testbeds: Vec<&'a Testbed>) -> Self {
        let napi = napi.into_iter().collect();
        Self { worker: Worker::Caller, napi, testbeds, with_processors: false, attested: false }
    }

    /// Counts also how busy all processors of this host are meanwhile.
    pub(crate) fn with_processors(self) -> Self {
        Self { with_processors: true, ..self }
    }

    /// Counts another program instead of the calling thread.
    pub(crate) fn of_program(self, process: u32) -> Self {
        Self { worker: Worker::Program(process), ..self }
    }

    /// Counts programs that begin after the clock starts, and end before it stops, instead of the calling thread.
    pub(crate) fn of_ended_programs(self) -> Self {
        Self { worker: Worker::Ended, ..self }
    }

    /// Reads no counts from here on: the witness watches.
    pub(crate) fn leave_to_witness(&mut self) {
        self.attested = true;
    }

    /// Starts the clock. `far_waits` says how long the threads of the other end were kept waiting so far.
    ///
    /// # Errors
    ///
    /// One line that says which count cannot be read.
    pub(crate) fn begin(&self, far_waits: Waits) -> Result<Begun, String> {
        let (simulated_dma, threads) = (self.simulated_dma()?, self.threads());
        Ok(Begun {
            simulated_dma,
            waits: (self.waits(), far_waits),
            others: spent(&threads).cpu,
            threads,
            processors: self.processors()?,
            own: self.own(),
            at: Instant::now(),
        })
    }

    /// Stops the clock. Returns a tally of everything except what was moved.
    ///
    /// # Errors
    ///
    /// The errors of [`begin`](Self::begin).
    pub(crate) fn end(
        &self,
        begun: &Begun,
        far_waits: impl FnOnce() -> Waits,
    ) -> Result<Tally, String> {
        let (elapsed, own) = (begun.at.elapsed(), self.own().saturating_sub(begun.own));
        let processors = self.processors()?.zip(begun.processors);
        let threads = self.threads();
        let cpu = own + spent(&threads).cpu.saturating_sub(begun.others);
        if matches!(self.worker, Worker::Program(_))
            && begun.threads.iter().any(|thread| !threads.contains(thread))
        {
            return Err(
                "a thread of the program ended, and nobody knows what it has spent".to_owned()
            );
        }
        // Under instruction counting, the instructions of this end are the time.
        let time = match instructions::counting() {
            true => Time { elapsed: cpu, kept_waiting: Duration::ZERO },
            // Each end waits for the other, so the longer wait counts.
            false => Time {
                elapsed,
                kept_waiting: self
                    .waits()
                    .since(&begun.waits.0)
                    .max(far_waits().since(&begun.waits.1)),
            },
        };
        let moved = self.simulated_dma()?.zip(begun.simulated_dma);
        Ok(Tally {
            cpu: Cpu::Known(cpu),
            time: Some(time),
            simulated_dma: moved.map(|(after, before)| after - before),
            busy: processors.and_then(|(after, before)| after.since(&before)),
            ..Tally::default()
        })
    }

    /// The IDs of all counted threads; empty if they are over with each slot.
    pub(crate) fn thread_ids(&self) -> Vec<u32> {
        let own = match self.worker {
            Worker::Caller => Some(gettid().as_raw_nonzero().get()),
            Worker::Program(_) => None,
            Worker::Ended => return Vec::new(),
        };
        let threads = self.threads();
        let all = own.into_iter().chain(threads.iter().filter_map(|it| tasks::id(it)));
        all.map(i32::cast_unsigned).collect()
    }

    /// The CPU time of the calling thread if it is the worker, or of programs that have ended.
    fn own(&self) -> Duration {
        match self.worker {
            Worker::Caller => own_cpu(),
            Worker::Program(_) => Duration::ZERO,
            Worker::Ended => cpu_of_ended(),
        }
    }

    /// How long the worker's threads have run, and how long they were kept waiting so far.
    fn waits(&self) -> Waits {
        match self.worker {
            Worker::Caller => Waits::of(["/proc/thread-self".into()]),
            Worker::Program(_) if self.attested => Waits::default(),
            Worker::Program(process) => Waits::of_process(process),
            // Processes that have ended do not tell how long they waited.
            Worker::Ended => Waits::default(),
        }
    }

    /// All counted threads except the calling one.
    fn threads(&self) -> Vec<PathBuf> {
        if self.attested {
            return Vec::new();
        }
        let mut threads = match self.worker {
            Worker::Caller => {
                let workers = format!("iou-wrk-{}", gettid().as_raw_nonzero());
                let mut threads = tasks::of_process(std::process::id());
                threads.retain(|thread| tasks::name(thread) == workers);
                threads
            }
            Worker::Program(process) => tasks::of_tree(process),
            Worker::Ended => Vec::new(),
        };
        threads.extend(self.napi.iter().cloned());
        threads
    }

    /// The counts of all processors; `None` if they are not wanted, or the witness watches.
    fn processors(&self) -> Result<Option<Processors>, String> {
        (self.with_processors && !self.attested).then(Processors::now).transpose()
    }

    /// The bytes of simulated DMA on all networks; `None` if a network does not report them.
    fn simulated_dma(&self) -> Result<Option<u64>, String> {
        if self.attested || self.testbeds.is_empty() {
            return Ok(None);
        }
        let counts: Result<Vec<_>, _> =
            self.testbeds.iter().map(|testbed| testbed.simulated_dma()).collect();
        Ok(counts?.into_iter().sum())
    }
}
