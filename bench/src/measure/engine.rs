//! What is measured: engines, their slots, and their reports.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use handoff_command::growth::Growth;

use crate::{
    processors::Busy,
    report::{Config, Latency},
};

/// One engine at work. It is made before its first slot and dropped after its last.
pub trait Engine {
    /// Works until the slot is over and every lent buffer is back, and reports what it did.
    ///
    /// # Errors
    ///
    /// One line that says what ended this engine's measurements.
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String>;

    /// Whether the engine works better after a while. State that is new in each slot does not count.
    fn warms_up(&self) -> bool {
        true
    }

    /// Whether the engine counts the bytes that it moves. Otherwise a program tells them, for a part of its
    /// time only, and the witness has nothing to compare with.
    fn counts_bytes(&self) -> bool {
        true
    }

    /// How the memory that a NIC puts payload into has grown so far.
    fn growth(&self) -> Vec<Growth> {
        Vec::new()
    }

    /// From here on the engine works for the witness, not for the clock, and counts its system calls if it can:
    /// see [`Tally::enters`].
    ///
    /// # Errors
    ///
    /// One line that says why they cannot be counted.
    fn begin_witness(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// The IDs of the threads that the costs are of; empty if they are over with each slot.
    fn counted_threads(&self) -> Vec<u32> {
        Vec::new()
    }

    /// How many copies of each payload byte the witness must see if [`Tally::copied`] comes to `reported` and
    /// nobody errs. There are more than `reported` if bytes are also copied at an end without a report.
    fn implied(&self, reported: f64) -> f64 {
        reported
    }
}

/// What an engine did in one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Payload bytes moved.
    pub bytes: u64,
    /// Operations done; `None` if the engine cannot tell.
    pub operations: Option<u64>,
    /// Payload bytes that the CPU copied; `None` if nothing reports them.
    pub copied: Option<u64>,
    /// Payload bytes that a cipher's pass moved, and nothing else; `None` if nothing reports them.
    pub ciphered: Option<u64>,
    /// The CPU time used, if the engine knows better than the frame: other processes may work, too.
    pub cpu: Cpu,
    /// The CPU time used together with the load's, if [`cpu`](Self::cpu) is a server's alone.
    pub cpu_with_load: Option<Duration>,
    /// The share of one processor's time that the server took, if the load has a limit.
    pub cpu_share: Option<f64>,
    /// Calls of io_uring_enter(2) by the server; `None` if they are not counted.
    pub enters: Option<u64>,
    /// Lends made for the engine, by the module's own count; `None` without the module.
    pub lends: Option<u64>,
    /// Context switches of the server's threads.
    pub switches: Option<u64>,
    /// Bytes that a software NIC's engine moved meanwhile.
    pub simulated_dma: Option<u64>,
    /// How busy all processors of this host were meanwhile.
    pub busy: Option<Busy>,
    /// Times from a request to its answer.
    pub latency: Option<Latency>,
    /// The CPU time of the measured thread outside the kernel.
    pub user: Option<Duration>,
    /// The cost of taking completions.
    pub reaped: Option<Reaped>,
    /// The time that the slot took and was kept waiting, if the engine knows better than the frame.
    pub time: Option<Time>,
}

/// The cost of taking completions in one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reaped {
    /// Completions taken.
    pub completions: u64,
    /// System calls made for completions alone.
    pub calls: u64,
    /// The time spent on taking completions.
    pub time: Duration,
}

/// How a slot passed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Time {
    /// The time from the slot's beginning to its end.
    pub elapsed: Duration,
    /// The part of `elapsed` in which other programs held the processor.
    pub kept_waiting: Duration,
}

impl Time {
    pub(super) fn counted(&self) -> Duration {
        self.elapsed.saturating_sub(self.kept_waiting)
    }
}

/// Where a slot's CPU time comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Cpu {
    /// All threads of this process except those that only serve as the far end.
    #[default]
    ThisProcess,
    /// The CPU time is not known.
    Unknown,
    /// The CPU time of the threads that matter, as the engine counts it.
    Known(Duration),
}

/// A time in which an engine works.
#[derive(Debug, Clone, Copy)]
pub struct Slot<'a> {
    deadline: Instant,
    length: Duration,
    stop: &'a AtomicBool,
}

impl<'a> Slot<'a> {
    /// A slot that begins now.
    pub fn new(length: Duration, stop: &'a AtomicBool) -> Self {
        Self { deadline: Instant::now() + length, length, stop }
    }

    /// A slot of the same length that begins now, for an engine that must prepare something outside the slot.
    pub fn anew(&self) -> Self {
        Self::new(self.length, self.stop)
    }

    /// How much of the slot is left.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether the time is up, or the user wants the bench to end.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.is_stopped()
    }

    /// Whether the user wants the bench to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How long the slot is from its beginning.
    pub fn length(&self) -> Duration {
        self.length
    }
}

/// Makes an engine, or says in one line why this machine cannot have it.
pub type MakeEngine<'a> = Box<dyn Fn() -> Result<Box<dyn Engine + 'a>, String> + 'a>;

/// One row to be measured.
pub struct Subject<'a> {
    /// The row's name.
    pub name: String,
    /// The engine's name.
    pub engine: String,
    /// The work that it must do.
    pub config: Config,
    /// Whether ratios refer to this row.
    pub baseline: bool,
    /// Whether the engine is another program.
    pub peer: bool,
    /// Makes the engine.
    pub make: MakeEngine<'a>,
}

impl<'a> Subject<'a> {
    /// A row of ours that is not the baseline.
    pub(crate) fn new<E: Engine + 'a>(
        name: String,
        engine: &str,
        config: Config,
        make: impl Fn() -> Result<E, String> + 'a,
    ) -> Self {
        let make = Box::new(move || make().map(|engine| Box::new(engine) as _));
        Self { name, engine: engine.to_owned(), config, baseline: false, peer: false, make }
    }

    /// This row as the one that ratios refer to.
    pub(crate) fn baseline(self) -> Self {
        Self { baseline: true, ..self }
    }
}
