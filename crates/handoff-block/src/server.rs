//! One device and the threads that serve it.
//!
//! Contracts:
//! - [`Server::start`] returns when the block device is there, or leaves nothing behind; a device
//!   that is taken over from a server that is gone is left as it was when that fails;
//! - a queue whose thread fails stops the device, with the reason, rather than leave it without an
//!   answer;
//! - threads serve the processors that the driver sends them requests from.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use handoff_sys::ublk;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::backing::{self, Backing, Refused};
use crate::device::{self, Device, LETTING_GO, add, parameters, recoverable, start_recovery};
use crate::engine::{self, Program};
use crate::exchange::Exchanges;
use crate::existing::{Existing, existing};
use crate::life::Map;
use crate::pins;
use crate::policy::Policy;
use crate::queue::{Parts, Queue};
use crate::state::{self, Directory, Mapping, Record, State};
use crate::{Control, Engine, Error, PassedOver, Spec, target};

/// How often the wish to stop is looked at.
const PAUSE: Duration = Duration::from_millis(100);
/// How many queues the driver takes, and threads we start.
const QUEUES: std::ops::RangeInclusive<u16> = 1..=64;

/// What numbers the driver gives devices: as many as there are minor ones.
const NUMBERS: std::ops::RangeInclusive<u32> = 0..=(1 << 20) - 1;

/// Where a server begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With a device that it makes.
    New,
    /// With one whose server is gone.
    Recover(u32),
}

/// A device that is being served.
#[derive(Debug)]
pub struct Server {
    device: Device,
    threads: Vec<JoinHandle<()>>,
    thread_ids: Vec<i32>,
    ends: Receiver<End>,
    record: Record,
    program: Arc<Program>,
    /// Where others ask for another policy; `None` where there is none.
    exchanges: Option<Exchanges>,
}

/// A queue's thread is ready, or has ended.
type End = (u16, Step);

#[derive(Debug)]
enum Step {
    /// With the thread's id.
    Ready(i32),
    Ended(io::Result<()>),
}

impl Server {
    /// Makes or takes over a device and serves it.
    ///
    /// # Errors
    ///
    /// What is wrong with the specification or its files, what this kernel or user cannot do, and
    /// what the driver refuses.
    pub fn start(spec: &Spec, start: Start) -> Result<Self, Error> {
        check(spec)?;
        let mut control = Control::open()?;
        let features = control.features()?;
        let found = match start {
            Start::New => None,
            Start::Recover(id) => Some(recoverable(&mut control, id)?),
        };
        let mut program = Program::default();
        let mut policy = None;
        if let Some(path) = &spec.policy {
            // What was taken when the device was made, whatever became of the file since.
            let kept = found.map(|found| Directory::of(found.id).policy_path());
            let Policy { object, joined } = Policy::read(kept.as_ref().unwrap_or(path))?;
            program = Program::of_policy(joined, None);
            policy = Some(object);
        }
        let device_flags = found.map(|found| found.flags);
        let (engine, passed_over) = engine::choose(spec, features, device_flags, &program)?;
        let existing =
            found.map(|found| existing(&Directory::of(found.id), found.id)).transpose()?;
        let other = |existing: &&Existing| existing.record.spec.files != spec.files;
        if let Some(existing) = existing.as_ref().filter(other) {
            return Err(Error::usage(format!("device {} was made of other files", existing.id)));
        }
        let mut backings = backing::open_all(spec, existing.as_ref());
        // The last server's hold on them may end a little after its hold on the device.
        let deadline = Instant::now() + LETTING_GO;
        let is_held =
            |backings: &Result<_, Refused>| backings.as_ref().is_err_and(|refused| refused.is_held);
        while existing.is_some() && is_held(&backings) && Instant::now() < deadline {
            thread::sleep(PAUSE);
            backings = backing::open_all(spec, existing.as_ref());
        }
        let backings = backings.map_err(|refused| refused.error)?;
        let parts: Vec<_> = backings.iter().map(|backing| backing.part).collect();
        let sizes: Vec<u64> = parts.iter().map(|part| part.size).collect();
        let mut limits = device::limits(engine, &backings);
        let (map, size, parts) = match &existing {
            None => {
                let (map, size) = target::lay_out(spec, &sizes)?;
                (map, size, parts)
            }
            Some(Existing { id, map, record: known }) => {
                if let Some(breach) = known.limits.breach(&limits) {
                    return Err(Error::usage(format!(
                        "the files of device {id} want {breach} as when the device was made of them: \
                         give it back what it was made of"
                    )));
                }
                limits = known.limits;
                (*map, known.size, known.parts.clone())
            }
        };

        let mut device = match found {
            None => add(control, spec, engine, features)?,
            Some(found) => Device { control, id: found.id, remove: false },
        };
        let (queues, depth, max_request) = match found {
            Some(found) => (found.queues, found.depth, found.max_request),
            None => (spec.queues, spec.depth, spec.max_request),
        };
        let id = device.id;
        if found.is_none() {
            let mut parameters = parameters(spec, size, &backings);
            if engine.lends() {
                limits.announce(&mut parameters);
            }
            device
                .control
                .set_parameters(id, &parameters)
                .map_err(Error::doing("the driver does not take the device's parameters"))?;
        } else {
            start_recovery(&mut device.control, id)?;
        }
        let directory = Directory::of(id);
        let stateful = |error: io::Error| {
            Error::failed(format!("the state of device {id} cannot be kept in /run: {error}"))
        };
        directory.make().map_err(stateful)?;
        let mut exchanges = None;
        if let Some(object) = policy {
            directory
                .write_policy(&object)
                .and_then(|()| directory.keep_policy())
                .map_err(stateful)?;
            program.pins = Some(pins::make(id, found.is_none())?);
            exchanges = Some(Exchanges::listen(&directory).map_err(stateful)?);
        }
        let state = match found {
            None => State::make(&directory, &map, queues, depth),
            Some(_) => State::take_over(&directory, queues, depth),
        };
        let state = state.map_err(stateful)?;
        let memory = u64::from(queues) * engine::memory(engine, depth, max_request)
            + state::bytes(queues, depth) as u64;
        let spec = Spec { id: Some(id), queues, depth, max_request, ..spec.clone() };
        let record = Record { spec, engine, passed_over, size, memory, limits, parts };
        directory.write(&record).map_err(stateful)?;

        let files = Arc::new(files(id, backings)?);
        let (sender, ends) = mpsc::channel();
        let program = Arc::new(program);
        let parts = Shared { files, program: Arc::clone(&program), sender };
        let (threads, thread_ids) = (Vec::new(), Vec::new());
        let mut server = Self { device, threads, thread_ids, ends, record, program, exchanges };
        let begun = server.begin(&state, &parts, &map, found.is_some());
        drop(parts);
        match begun {
            Ok(()) => Ok(server),
            Err(error) => {
                server.abandon();
                Err(error)
            }
        }
    }

    fn begin(
        &mut self,
        state: &State,
        parts: &Shared,
        map: &Map,
        recovers: bool,
    ) -> Result<(), Error> {
        let id = self.id();
        let spec = self.record.spec.clone();
        tracing::debug!(?map, "device {id}");
        for queue in 0..spec.queues {
            let region =
                state.map(queue).map_err(Error::doing("the state of a queue cannot be mapped"))?;
            let cpus = self.device.control.affinity(id, queue).unwrap_or_default();
            let thread = Thread {
                queue,
                depth: spec.depth,
                max_request: spec.max_request,
                engine: self.record.engine,
                shared: parts.clone(),
                region,
                cpus,
            };
            self.threads.push(thread.spawn()?);
        }
        for _ in 0..spec.queues {
            match self.ends.recv() {
                Ok((_, Step::Ready(thread))) => self.thread_ids.push(thread),
                Ok((queue, Step::Ended(ended))) => return Err(ended_early(queue, ended)),
                Err(_) => return Err(Error::failed("the threads of the queues ended")),
            }
        }
        let started = if recovers {
            self.device.control.end_recovery(id)
        } else {
            self.device.control.start(id)
        };
        started.map_err(Error::doing(format!("the driver does not start device {id}")))?;
        // What is served is removed at its end, whoever made it.
        self.device.remove = true;
        Ok(())
    }

    /// Ends a device that did not come to be.
    fn abandon(mut self) {
        if self.device.remove {
            // Without a start there are no requests: stopping brings the commands back.
            let _ = self.device.control.stop(self.device.id);
            self.join();
        } else {
            // Stopping would end the device, which is to wait for another server. The threads end
            // with the process, and the kernel takes the commands back.
            self.threads.clear();
        }
    }

    /// The device's number.
    pub fn id(&self) -> u32 {
        self.device.id
    }

    /// The engine.
    pub fn engine(&self) -> Engine {
        self.record.engine
    }

    /// Ids of the threads that serve the queues. The kernel's own workers for them are called
    /// `iou-wrk-` and the id.
    pub fn threads(&self) -> &[i32] {
        &self.thread_ids
    }

    /// Better engines that were not possible, with the reasons.
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.record.passed_over
    }

    /// What is served.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Serves until the device is removed by somebody else, or `stop` is set; then it is removed.
    ///
    /// # Errors
    ///
    /// A queue that failed.
    pub fn wait(mut self, stop: &AtomicBool) -> Result<(), Error> {
        let mut running = self.threads.len();
        let mut failure = None;
        let mut stopping = false;
        while running > 0 {
            if stop.load(Ordering::Acquire) && !stopping {
                stopping = true;
                self.device.control.stop(self.device.id)?;
            }
            if let Some(request) = self.exchanges.as_ref().and_then(Exchanges::next) {
                let exchanged = self.exchange(&request.policy);
                request.answer(&exchanged);
            }
            match self.ends.recv_timeout(PAUSE) {
                Ok((_, Step::Ready(_))) | Err(RecvTimeoutError::Timeout) => {}
                Ok((queue, Step::Ended(ended))) => {
                    running -= 1;
                    if let Err(cause) = ended {
                        failure.get_or_insert(Error::failed(format!(
                            "queue {queue} of device {} failed: {cause}",
                            self.device.id
                        )));
                        if !stopping {
                            stopping = true;
                            self.device.control.stop(self.device.id)?;
                        }
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.join();
        failure.map_or(Ok(()), Err)
    }

    /// Puts another policy in the place of the device's, or leaves that as it is.
    fn exchange(&mut self, path: &Path) -> Result<(), Error> {
        let id = self.id();
        let kept = |error: io::Error| {
            Error::failed(format!("the policy of device {id} cannot be kept in /run: {error}"))
        };
        let Policy { object, joined } = Policy::read(path)?;
        let mut next = Program::of_policy(joined, None);
        engine::try_out(&next)
            .map_err(|cause| Error::NotPossible(format!("a policy is not possible: {cause}")))?;
        let directory = Directory::of(id);
        directory.write_policy(&object).map_err(kept)?;
        next.pins = self.program.pins.clone();
        let before = pins::pinned(id);
        let maps = self.program.exchange(&next).map_err(|cause| {
            pins::keep(id, &before);
            directory.drop_policy();
            Error::usage(format!("{} does not follow the policy: {cause}", path.display()))
        })?;
        self.record.spec.policy = Some(path.to_owned());
        directory.keep_policy().and_then(|()| directory.write(&self.record)).map_err(kept)?;
        pins::keep(id, &maps);
        Ok(())
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a queue's thread of device {} panicked", self.device.id);
            }
        }
    }
}

/// What a queue's thread is given.
struct Thread {
    queue: u16,
    depth: u16,
    max_request: u32,
    engine: Engine,
    shared: Shared,
    region: Mapping,
    cpus: Vec<usize>,
}

/// What all of them are given.
#[derive(Clone)]
struct Shared {
    /// The device's char device, then its backings.
    files: Arc<Vec<OwnedFd>>,
    program: Arc<Program>,
    sender: Sender<End>,
}

// SAFETY: the mapping of a region is used by the thread that it is moved to, and by nobody else.
unsafe impl Send for Mapping {}

impl Thread {
    fn spawn(self) -> Result<JoinHandle<()>, Error> {
        let name = format!("blk-queue-{}", self.queue);
        thread::Builder::new()
            .name(name)
            .spawn(move || {
                let (queue, sender) = (self.queue, self.shared.sender.clone());
                let ended = self.serve();
                // Nobody listens where the server is being abandoned.
                let _ = sender.send((queue, Step::Ended(ended)));
            })
            .map_err(Error::doing("a thread cannot be started"))
    }

    fn serve(self) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        // A hint; a processor may have gone since.
        let _ = sched_setaffinity(None, &set);
        // Memory that is reclaimed by writing to this device must not be waited for by its server.
        if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
            tracing::debug!(%error, "the thread counts as one that may wait for itself");
        }
        let mut queue = Queue::new(Parts {
            queue: self.queue,
            depth: self.depth,
            max_request: self.max_request,
            engine: self.engine,
            commands_beside: engine::commands_beside(self.engine),
            files: &self.shared.files,
            region: self.region,
        })?;
        let ready = || {
            let _ = self
                .shared
                .sender
                .send((self.queue, Step::Ready(rustix::thread::gettid().as_raw_nonzero().get())));
        };
        engine::run(self.engine, &mut queue, &self.shared.program, ready)
    }
}

fn ended_early(queue: u16, ended: io::Result<()>) -> Error {
    let cause = ended.err().unwrap_or_else(|| io::Error::other("the device was stopped"));
    Error::doing(format!("queue {queue} cannot be served"))(cause)
}

fn check(spec: &Spec) -> Result<(), Error> {
    target::check(spec)?;
    if let Some(id) = spec.id.filter(|id| !NUMBERS.contains(id)) {
        return Err(Error::usage(format!("{id} is no number of a device: 0 to {}", NUMBERS.end())));
    }
    if !QUEUES.contains(&spec.queues) {
        return Err(Error::usage(format!(
            "{} queues are not possible: 1 to {}",
            spec.queues,
            QUEUES.end()
        )));
    }
    if !(1..=ublk::MAX_QUEUE_DEPTH).contains(&spec.depth) {
        return Err(Error::usage(format!(
            "a depth of {} is not possible: 1 to {}",
            spec.depth,
            ublk::MAX_QUEUE_DEPTH
        )));
    }
    if !spec.max_request.is_multiple_of(4096)
        || !(4096..=ublk::MAX_REQUEST_BYTES).contains(&spec.max_request)
    {
        return Err(Error::usage(format!(
            "requests of at most {} bytes are not possible: a multiple of 4096, at most {}",
            spec.max_request,
            ublk::MAX_REQUEST_BYTES
        )));
    }
    Ok(())
}

fn files(id: u32, backings: Vec<Backing>) -> Result<Vec<OwnedFd>, Error> {
    let path = format!("/dev/ublkc{id}");
    let device = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Error::doing(format!("{path} cannot be opened")))?;
    let mut files = vec![OwnedFd::from(device)];
    files.extend(backings.into_iter().map(|backing| backing.file));
    Ok(files)
}
