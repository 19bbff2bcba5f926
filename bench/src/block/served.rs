//! A device that this process serves, as an engine of the measuring frame.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use handoff_block::{Error, Server, Spec, Start};
use handoff_lab::instructions;

use super::{Job, load::Load};
use crate::measure::{Cpu, Engine, Slot, Tally, Time};

pub(super) struct Served {
    /// Lets go of the device before that ends.
    load: Option<Load>,
    threads: Vec<i32>,
    stop: Arc<AtomicBool>,
    serving: Option<JoinHandle<Result<(), Error>>>,
    bytes: u64,
}

impl Served {
    pub(super) fn new(spec: &Spec, job: Job) -> Result<Self, String> {
        let server = Server::start(spec, Start::New).map_err(|error| error.to_string())?;
        let path = format!("/dev/ublkb{}", server.id());
        let threads = server.threads().to_vec();
        let stop = Arc::new(AtomicBool::new(false));
        let serving = thread::spawn({
            let stop = Arc::clone(&stop);
            move || server.wait(&stop)
        });
        let mut served =
            Self { load: None, threads, stop, serving: Some(serving), bytes: job.bytes.into() };
        let load = Load::new(Path::new(&path), job);
        let load = load.and_then(|load| load.try_out().map(|()| load));
        served.load = Some(load.map_err(|error| format!("{path}: {error}"))?);
        Ok(served)
    }

    /// CPU time of the threads that serve, and of the kernel's workers for them.
    fn cpu(&self) -> Duration {
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Duration::ZERO };
        let ours = |task: &Path| {
            let id = task.file_name().and_then(|name| name.to_str()?.parse::<i32>().ok());
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            let worker_of = name.trim().strip_prefix("iou-wrk-").and_then(|id| id.parse().ok());
            [id, worker_of].iter().flatten().any(|id| self.threads.contains(id))
        };
        let nanoseconds =
            tasks.flatten().map(|task| task.path()).filter(|task| ours(task)).map(|task| {
                let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
                text.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0)
            });
        Duration::from_nanos(nanoseconds.sum())
    }
}

impl Engine for Served {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let before = self.cpu();
        let load = self.load.as_mut().expect("made with one");
        let operations = load.run(slot).map_err(|error| error.to_string())?;
        let cpu = self.cpu().saturating_sub(before);
        // Where each instruction takes a nanosecond, the server's are what counts.
        let time =
            instructions::counting().then_some(Time { elapsed: cpu, kept_waiting: Duration::ZERO });
        Ok(Tally {
            bytes: operations * self.bytes,
            operations: Some(operations),
            // What is copied on the way nobody reports.
            copied: None,
            cpu: Cpu::Known(cpu),
            time,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.load = None;
        self.stop.store(true, Ordering::Release);
        if let Some(serving) = self.serving.take() {
            // A server that failed has shown in the load.
            let _ = serving.join();
        }
    }
}
