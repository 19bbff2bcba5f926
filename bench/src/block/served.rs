//! A block device under load, as an engine of the measuring frame.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use handoff_testbed::instructions;

use super::{Job, load::Load};
use crate::{
    calls::Enters,
    measure::{Cpu, Engine, Slot, Tally, Time},
    tasks::{self, Spent, own_cpu, spent},
};

/// A block device that somebody serves.
pub(super) trait Device {
    /// The path of the device file.
    fn path(&self) -> PathBuf;

    /// The threads that serve the device, including workers of the kernel, as their directories in `/proc`.
    fn threads(&self) -> Vec<PathBuf>;

    /// Whether these threads do all the serving. The kernel's loop driver also works in the calling thread.
    fn is_served_by_threads_alone(&self) -> bool {
        true
    }
}

pub(super) struct Served<D> {
    /// The load is dropped before the device, which it has open.
    load: Load,
    device: D,
    job: Job,
    enters: Option<Enters>,
    /// Whether the witness watches. Then the threads' costs are not read, since reading them copies bytes, too.
    attested: bool,
}

impl<D: Device> Served<D> {
    /// Puts a load on a device.
    ///
    /// # Errors
    ///
    /// If the device does not answer, in one line.
    pub(super) fn new(device: D, job: Job) -> Result<Self, String> {
        let path = device.path();
        let load = Load::new(&path, job).and_then(|mut load| load.try_out().map(|()| load));
        let load = load.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { load, device, job, enters: None, attested: false })
    }
}

impl<D: Device> Engine for Served<D> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let enters = |this: &Self| this.enters.as_ref().map(Enters::count).transpose();
        let spent = |this: &Self| match this.attested {
            true => Spent::default(),
            false => spent(&this.device.threads()),
        };
        let (enters_before, before) = (enters(self)?, spent(self));
        let (begin, own_before) = (Instant::now(), own_cpu());
        let operations = self.load.run(slot).map_err(|error| error.to_string())?;
        let (elapsed, own) = (begin.elapsed(), own_cpu().saturating_sub(own_before));
        let (spent, enters) = (spent(self) - before, enters(self)?);

        let alone = self.device.is_served_by_threads_alone();
        let share = || spent.cpu.as_secs_f64() / elapsed.as_secs_f64();
        // Under instruction counting, the server's instructions are the time. Time in which the load does not
        // run belongs to the server, not to other programs.
        let server_counts = instructions::counting() && alone;
        let time = Time {
            elapsed: if server_counts { spent.cpu } else { elapsed },
            kept_waiting: Duration::ZERO,
        };
        Ok(Tally {
            bytes: operations * u64::from(self.job.bytes),
            operations: Some(operations),
            // Nobody reports what is copied on the way.
            copied: None,
            cpu: if alone { Cpu::Known(spent.cpu) } else { Cpu::Unknown },
            cpu_with_load: Some(own + spent.cpu),
            cpu_share: (alone && self.job.rate.is_some()).then(share),
            enters: enters.zip(enters_before).map(|(after, before)| after - before),
            switches: alone.then_some(spent.switches),
            time: Some(time),
            ..Tally::default()
        })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.attested = true;
        if self.device.is_served_by_threads_alone() {
            let threads = self.device.threads();
            self.enters = Some(Enters::of(threads.iter().filter_map(|thread| tasks::id(thread)))?);
        }
        Ok(())
    }
}
