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

/// One engine at work. Made before its first slot and dropped after its last.
pub trait Engine {
    /// Works until the slot is over and every lent buffer is back, and reports what it did.
    ///
    /// # Errors
    ///
    /// What ends this engine's measurements, in one line.
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String>;

    /// Whether it works better after a while. State that is new in each slot does not count.
    fn warms_up(&self) -> bool {
        true
    }

    /// Whether it counts the bytes that it moves. What a program tells of itself is of a part of its time, and the
    /// witness has nothing to compare with.
    fn counts_bytes(&self) -> bool {
        true
    }

    /// How the memory that a NIC puts payload into has grown so far.
    fn growth(&self) -> Vec<Growth> {
        Vec::new()
    }

    /// From here on it works for the witness, not for the clock, and counts its system calls if it can: see
    /// [`Tally::enters`].
    ///
    /// # Errors
    ///
    /// Why they cannot be counted, in one line.
    fn begin_witness(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// How many copies of each payload byte the witness must see if [`Tally::copied`] comes to `reported`
    /// and nobody errs. More than `reported` if bytes are also copied at an end without a report.
    fn implied(&self, reported: f64) -> f64 {
        reported
    }
}

/// What an engine did in one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Payload bytes moved.
    pub bytes: u64,
    /// Operations done; none if the engine cannot tell.
    pub operations: Option<u64>,
    /// Payload bytes that the CPU copied; none if nothing reports it.
    pub copied: Option<u64>,
    /// CPU time used, if the engine knows better than the frame (other processes).
    pub cpu: Cpu,
    /// CPU time used together with the load's, if the above is a server's alone.
    pub cpu_with_load: Option<Duration>,
    /// Share of one processor's time that the server took, if the load has a limit.
    pub cpu_share: Option<f64>,
    /// Calls of io_uring_enter(2) by the server, if they are counted.
    pub enters: Option<u64>,
    /// Lends made for it, by the module's own count.
    pub lends: Option<u64>,
    /// Context switches of the server's threads.
    pub switches: Option<u64>,
    /// Bytes that a software NIC's engine moved meanwhile.
    pub simulated_dma: Option<u64>,
    /// Use of all processors of this host meanwhile.
    pub busy: Option<Busy>,
    /// Times from a request to its answer.
    pub latency: Option<Latency>,
    /// CPU time of the measured thread outside the kernel.
    pub user: Option<Duration>,
    /// Cost of taking completions.
    pub reaped: Option<Reaped>,
    /// The time that it took, and was kept waiting, if the engine knows better than the frame.
    pub time: Option<Time>,
}

/// Cost of taking completions in one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reaped {
    /// Completions taken.
    pub completions: u64,
    /// System calls made for them alone.
    pub calls: u64,
    /// Time spent on taking them.
    pub time: Duration,
}

/// How a slot passed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Time {
    /// From beginning to end.
    pub elapsed: Duration,
    /// Of this, the time in which other programs held the processor.
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
    /// Not known.
    Unknown,
    /// That of the threads that matter, as the engine counts them.
    Known(Duration),
}

/// The time of an engine.
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

    /// The same from now on, for an engine that must prepare something outside the slot.
    pub fn anew(&self) -> Self {
        Self::new(self.length, self.stop)
    }

    /// How much of it is left.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// True once the time is up, or the user wants the bench to end.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.is_stopped()
    }

    /// True once the user wants the bench to end.
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
    /// Whether ratios refer to it.
    pub baseline: bool,
    /// Whether it is another program.
    pub peer: bool,
    /// Its maker.
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

    /// The same row as the one that ratios refer to.
    pub(crate) fn baseline(self) -> Self {
        Self { baseline: true, ..self }
    }
}
