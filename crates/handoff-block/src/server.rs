//! One device and the threads that serve it.
//!
//! Contracts:
//! - a server prepared to take a device over ([`Prepared`]) has its threads, their rings and their programs in the
//!   kernel, so it needs little memory when the last server is gone. It has no programs if its policy has maps that
//!   are not kept;
//! - [`Server::start`] returns when the block device exists, or leaves nothing behind; if it fails to take
//!   over a device whose server is gone, the device is left as it was;
//! - a server one of whose queues fails gives its device up, with the reason: requests that the queue held return to
//!   the driver only once nobody has the char device open, at the end of the process. While the driver starts or stops
//!   the device, such a failure is not seen.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use handoff_sys::ublk;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::backing::{Backing, by_command};
use crate::claims::Making;
use crate::control::Found;
use crate::device::{
    self, Device, Following, add, check_same, parameters, recoverable, start_recovery,
};
use crate::engine::{self, Program};
use crate::exchange::{Exchanges, Request};
use crate::existing::{Existing, existing};
use crate::files::Files;
use crate::mirror::clerk;
use crate::pins;
use crate::policy::{self, Policy};
use crate::record::{Part, VERSION};
use crate::ring::Shape;
use crate::state::{self, Directory, Record, Rooms, State};
use crate::threads::{Order, Step, Threads};
use crate::{Control, Engine, Error, PassedOver, Spec, target};

/// How often a device that failed to start is stopped.
const PAUSE: Duration = Duration::from_millis(100);
/// The most queues that the driver takes, and threads that we start.
const QUEUES: std::ops::RangeInclusive<u16> = 1..=64;

/// The numbers that the driver gives devices: as many as there are minor ones.
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
///
/// ```no_run
/// use handoff_block::{Kind, Server, Spec, Start};
///
/// # fn main() -> Result<(), handoff_block::Error> {
/// let spec = Spec { target: Kind::Mirror, files: vec!["a.img".into(), "b.img".into()], ..Spec::default() };
/// let server = Server::start(&spec, Start::New)?;
/// for better in server.passed_over() {
///     eprintln!("not {}: {}", better.engine, better.reason);
/// }
/// server.wait()?; // until somebody removes the device
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    device: Device,
    threads: Threads,
    record: Record,
    program: Arc<Program>,
    /// Where clients ask for another policy; `None` without a policy.
    exchanges: Option<Exchanges>,
}

/// What a server can have before its device.
///
/// ```no_run
/// use std::sync::atomic::AtomicBool;
/// use handoff_block::state::Directory;
/// use handoff_block::{Prepared, Start};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let record = Directory::of(0).read()?;
/// let prepared = Prepared::new(&record.spec, Start::Recover(0))?;
/// // When the last server of device 0 is known to be gone:
/// let server = prepared.follow(record.made, &AtomicBool::new(false))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Prepared {
    spec: Spec,
    control: Control,
    features: u64,
    /// The device to take over, as it was found.
    found: Option<Found>,
    program: Arc<Program>,
    policy: Option<Policy>,
    engine: Engine,
    passed_over: Vec<PassedOver>,
    /// For an existing device.
    threads: Option<Threads>,
    /// What somebody holds for the device's servers.
    files: Option<Files>,
}

impl Prepared {
    /// Prepares a server. A device to take over may still have a server.
    ///
    /// # Errors
    ///
    /// Errors in the specification, and what this kernel or user cannot do.
    pub fn new(spec: &Spec, start: Start) -> Result<Self, Error> {
        Self::with(spec, start, None)
    }

    /// The same of files that somebody holds for the device's servers; `None` opens them when they are needed.
    ///
    /// # Errors
    ///
    /// As of [`new`](Self::new).
    pub fn with(spec: &Spec, start: Start, files: Option<Files>) -> Result<Self, Error> {
        check(spec)?;
        let mut control = match &files {
            Some(files) => {
                Control::of(files.control.try_clone().map_err(Error::doing("the driver"))?)?
            }
            None => Control::open()?,
        };
        let features = control.features()?;
        let found = match start {
            Start::New => None,
            Start::Recover(id) => Some(device::found(&mut control, id)?),
        };
        let mut program = Program::default();
        let mut policy = None;
        if let Some(path) = &spec.policy {
            // Taken when the device was made, even if the file has changed since.
            let kept = found.map(|found| Directory::of(found.id).policy_path());
            let (read, joined) = Policy::read(kept.as_ref().unwrap_or(path))?;
            program = Program::of_policy(joined);
            if let Some(found) = found.filter(|found| pins::are_ours(found.id)) {
                program.pins = pins::pins(found.id).into();
            }
            policy = Some(read);
        }
        let program = Arc::new(program);
        let device_flags = found.map(|found| found.flags);
        let (engine, passed_over) = engine::choose(spec, features, device_flags, &program)?;
        let mut spec = spec.clone();
        let mut threads = None;
        if let Some(Found { id, queues, depth, max_request, .. }) = found {
            spec = Spec { queues, depth, max_request, ..spec };
            let cpus = |queue| control.affinity(id, queue).unwrap_or_default();
            let of_disks = files.as_ref().map_or_else(|| spec.is_of_disks(), Files::are_disks);
            let known = match &files {
                Some(Files { record: Some(record), .. }) => Some(record.clone()),
                _ => Directory::of(id).read().ok(),
            };
            let recorded = known.as_ref().and_then(Record::recorded);
            let shape = Shape::of(engine, &spec, of_disks).recorded(recorded);
            threads = Some(Threads::gather(queues, shape, &program, cpus)?);
        }
        let prepared = Self {
            spec,
            control,
            features,
            found,
            program,
            policy,
            engine,
            passed_over,
            threads,
            files,
        };
        Ok(prepared)
    }

    /// Makes or takes over the device and serves it.
    ///
    /// # Errors
    ///
    /// Errors in the device's files, and what the driver refuses.
    pub fn serve(self) -> Result<Server, Error> {
        match self.found {
            None => Server::make(self),
            Some(found) => Server::take_over(self, found, None),
        }
    }

    /// Takes over the same device ([`Record::made`]), whose last server is known to be gone, and serves it.
    /// Waits until the kernel has let go of that server, unless the device is removed or `stop` is set.
    ///
    /// # Errors
    ///
    /// As of [`serve`](Self::serve).
    pub fn follow(self, made: u64, stop: &AtomicBool) -> Result<Server, Error> {
        match self.found {
            None => Server::make(self),
            Some(found) => Server::take_over(self, found, Some(Following { made, stop })),
        }
    }
}

impl Server {
    /// Makes or takes over a device and serves it.
    ///
    /// # Errors
    ///
    /// Errors in the specification or its files, what this kernel or user cannot do, and what the driver
    /// refuses.
    pub fn start(spec: &Spec, start: Start) -> Result<Self, Error> {
        Prepared::new(spec, start)?.serve()
    }

    /// Makes a device and serves it.
    fn make(prepared: Prepared) -> Result<Self, Error> {
        let Prepared { spec, mut control, features, program, policy, engine, .. } = prepared;
        let open = match prepared.files {
            Some(files) => files,
            None => Files::of_new(&spec, &mut control, &mut |_, _| true)?,
        };
        let of_disks = open.are_disks();
        let Files { state, backings, assembly, .. } = open;
        let mut spec = spec;
        let (mut mirror, mut out) = (None, Vec::new());
        if let Some(assembly) = assembly {
            (spec.files, mirror, out) = (assembly.files, Some(assembly.mirror), assembly.out);
        }
        let parts: Vec<_> = backings.iter().map(|backing| backing.facts.part.clone()).collect();
        let (mut map, size) = target::lay_out(&spec, &target::sizes(&spec, &parts))?;
        map.one_store = Part::have_one_store(&parts).into();
        map.by_command = by_command(&backings);
        let mut limits = device::limits(engine, &backings);
        if engine.lends() {
            limits.max_segments = limits.max_segments.min(spec.max_segments);
        }
        let files = spec.files.iter().map(PathBuf::as_path).zip(&parts);
        let making = Making::begin(&mut control, files)?;

        let mut device = add(control, &spec, engine, features)?;
        let id = device.id;
        let chunk = mirror.as_ref().map(|mirror| 1 << mirror.chunk_shift);
        let mut parameters = parameters(&spec, size, chunk, &backings);
        if engine.lends() {
            limits.announce(&mut parameters);
        }
        device
            .control
            .set_parameters(id, &parameters)
            .map_err(Error::doing("the driver does not take the device's parameters"))?;
        let (directory, stateful) = (Directory::of(id), stateful(id));
        directory.make().map_err(stateful)?;
        let exchanges = match policy {
            Some(policy) => {
                directory
                    .write_policy(&policy.object)
                    .and_then(|()| directory.keep_policy())
                    .map_err(stateful)?;
                Some(exchanges(id, &program, true)?)
            }
            None => None,
        };
        let mut record = Record {
            version: VERSION,
            made: device.made,
            engine,
            passed_over: prepared.passed_over,
            size,
            memory: 0,
            limits,
            by_command: map.by_command,
            parts,
            mirror,
            spec: Spec { id: Some(id), ..spec },
        };
        record.memory = memory(engine, &record.spec, record.chunks());
        // Of legs that are out from the start, the others' records know.
        map.recorded = out.iter().fold(0, |legs, (leg, _)| legs | 1 << leg);
        let rooms = Rooms::of(&record.spec, record.chunks());
        let state = State::begin(state, &map, rooms).map_err(stateful)?;
        if !out.is_empty() {
            state::take_out(state.file(), rooms, &out).map_err(stateful)?;
        }
        directory.name_state(state.file()).map_err(stateful)?;
        directory.write(&record).map_err(stateful)?;
        drop(making);

        let cpus = |queue| device.control.affinity(id, queue).unwrap_or_default();
        let shape = Shape::of(engine, &record.spec, of_disks).recorded(record.recorded());
        let threads = Threads::gather(record.spec.queues, shape, &program, cpus)?;
        tracing::debug!(?map, "device {id}");
        Self { device, threads, record, program, exchanges }.started(&state, backings, false)
    }

    /// Takes over a device whose server is gone, and serves it.
    fn take_over(
        prepared: Prepared,
        found: Found,
        following: Option<Following<'_>>,
    ) -> Result<Self, Error> {
        let Prepared { spec, mut control, mut program, policy, engine, .. } = prepared;
        let id = found.id;
        let now = recoverable(&mut control, id, following)?;
        if now.shape() != found.shape() {
            return Err(Error::invalid(format!(
                "device {id} is another than when this server was prepared for it"
            )));
        }
        if let Some(following) = following {
            check_same(&now, following.made)?;
        }
        let open = match prepared.files {
            Some(files) => files,
            None => Files::of_known(&mut control, id, following)?,
        };
        let Files { state, backings, record: known, .. } = open;
        let directory = Directory::of(id);
        let known = known.map_or_else(|| directory.known(), Ok)?;
        let Existing { map, record: known, .. } = existing(known, &state, id)?;
        if known.spec.files != spec.files {
            return Err(Error::invalid(format!("device {id} was made of other files")));
        }
        if let Some(prepared) = &policy {
            let kept = directory.policy_path();
            let lies_there = prepared
                .lies_at(&kept)
                .map_err(Error::doing(format!("{} is not there", kept.display())))?;
            if !lies_there {
                // It was exchanged since.
                let (_, joined) = Policy::read(&kept)?;
                program = Arc::new(Program::of_policy(joined));
            }
        }

        let mut device = Device { control, id, made: now.made, remove: false };
        start_recovery(&mut device.control, id, following)?;
        let stateful = stateful(id);
        directory.make().map_err(stateful)?;
        let exchanges = policy.map(|_| exchanges(id, &program, false)).transpose()?;
        let chunks = known.chunks();
        let state = State::take_over(state, &map, Rooms::of(&spec, chunks)).map_err(stateful)?;
        // It serves as well without a name.
        if let Err(error) = directory.name_state(state.file()) {
            tracing::warn!("{}", stateful(error));
        }
        let memory = memory(engine, &spec, chunks);
        // It may have been exchanged since.
        let now = directory.read().ok().filter(|now| now.made == known.made);
        let policy = now.map_or_else(|| known.spec.policy.clone(), |now| now.spec.policy);
        let max_segments = known.spec.max_segments;
        let record = Record {
            version: VERSION,
            engine,
            passed_over: prepared.passed_over,
            memory,
            by_command: map.by_command,
            spec: Spec { id: Some(id), policy, max_segments, ..spec },
            ..known
        };
        directory.write(&record).map_err(stateful)?;

        let threads = prepared.threads.expect("it was gathered for the device that was found");
        tracing::debug!(?map, "device {id}");
        Self { device, threads, record, program, exchanges }.started(&state, backings, true)
    }

    /// Starts the queues and the device.
    fn started(
        mut self,
        state: &State,
        backings: Vec<Backing>,
        recovers: bool,
    ) -> Result<Self, Error> {
        let files = Arc::new(files(self.id(), backings)?);
        match self.begin(state, &files, recovers) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    fn begin(
        &mut self,
        state: &State,
        files: &Arc<Vec<OwnedFd>>,
        recovers: bool,
    ) -> Result<(), Error> {
        let id = self.id();
        self.threads.order_clerk(|| {
            let shared = state.map_whole().map_err(stateful(id))?;
            let ends = self.record.mirror.as_ref().map_or_else(Vec::new, |it| it.ends.clone());
            Ok(clerk::Order { shared, files: Arc::clone(files), ends, recovers })
        })?;
        for queue in 0..self.record.spec.queues {
            let region =
                state.map(queue).map_err(Error::doing("the state of a queue cannot be mapped"))?;
            let (files, program) = (Arc::clone(files), Arc::clone(&self.program));
            self.threads.order(queue, Order { files, program, region });
        }
        self.threads.all_ready()?;
        let started = if recovers {
            self.device.control.end_recovery(id)
        } else {
            self.device.control.start(id)
        };
        started.map_err(Error::doing(format!("the driver does not start device {id}")))?;
        // A served device is removed at its end, whoever made it.
        self.device.remove = true;
        Ok(())
    }

    /// Ends a device that failed to start.
    fn abandon(mut self) {
        if self.device.remove {
            // Without a start there are no requests: stopping brings back the commands that are there. Those of a
            // queue that is slower to begin come later.
            self.threads.dismiss();
            loop {
                let _ = self.device.stop();
                if matches!(self.threads.next(PAUSE), Err(RecvTimeoutError::Disconnected)) {
                    break;
                }
            }
            self.threads.join();
        } else {
            // Stopping would end the device, but it must wait for another server. The threads end with the
            // process, and the kernel takes the commands back.
            self.threads.leave();
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
        self.threads.thread_ids()
    }

    /// Better engines that were not possible, with the reasons.
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.record.passed_over
    }

    /// What is served.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Serves until the device is stopped or removed, by [`remove`](crate::remove), [`Control::stop`] or another
    /// process; then it is removed. Meanwhile this thread waits for events, and wakes for nothing else.
    ///
    /// # Errors
    ///
    /// A queue that failed. Then the device stays, and requests may wait in it until this process has ended; end it
    /// soon. Afterwards another server can take the device over ([`Start::Recover`]), or [`remove`](crate::remove)
    /// removes it.
    pub fn wait(mut self) -> Result<(), Error> {
        let mut running = usize::from(self.record.spec.queues);
        while running > 0 {
            match self.threads.heard() {
                Some((_, Step::Gathered(_) | Step::Ready)) => continue,
                Some((_, Step::Ended(Ok(())))) => {
                    running -= 1;
                    continue;
                }
                Some((queue, Step::Ended(Err(source)))) => {
                    // Stopping the device would wait for the requests that the queue had.
                    self.device.remove = false;
                    self.threads.leave();
                    return Err(Error::QueueFailed { id: self.device.id, queue, source });
                }
                None => {}
            }
            if let Some(request) = self.exchanges.as_ref().and_then(Exchanges::next) {
                let exchanged = self.exchange(&request);
                request.answer(&exchanged);
                continue;
            }
            self.sleep()?;
        }
        self.threads.join();
        Ok(())
    }

    /// Until a thread reports something, or a client asks for another policy.
    fn sleep(&self) -> Result<(), Error> {
        let exchanges = self.exchanges.as_ref().map(AsFd::as_fd);
        let wakes = [Some(self.threads.as_fd()), exchanges];
        let mut fds: Vec<_> = wakes
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::doing("the server cannot wait")(io::Error::from(error))),
        }
    }

    /// Replaces the device's policy, or leaves it unchanged.
    fn exchange(&mut self, Request { policy: path, object, .. }: &Request) -> Result<(), Error> {
        let id = self.id();
        let kept = |error: io::Error| {
            Error::doing(format!("the policy of device {id} cannot be kept in /run"))(error)
        };
        let mut next = Program::of_policy(policy::checked(path, object)?);
        engine::try_out(&next).map_err(|cause| {
            Error::not_possible(format!("a policy is not possible: {cause}")).caused_by(cause)
        })?;
        let directory = Directory::of(id);
        directory.write_policy(object).map_err(kept)?;
        next.pins = self.program.pins.clone();
        let before = pins::pinned(id);
        let maps = self.program.exchange(&next).map_err(|cause| {
            pins::keep(id, &before);
            directory.drop_policy();
            let what = format!("{} does not follow the policy: {cause}", path.display());
            Error::unusable(what).caused_by(cause)
        })?;
        self.record.spec.policy = Some(path.to_owned());
        directory.keep_policy().and_then(|()| directory.write(&self.record)).map_err(kept)?;
        pins::keep(id, &maps);
        Ok(())
    }
}

/// Why the state of a device cannot be kept.
fn stateful(id: u32) -> impl Fn(io::Error) -> Error + Copy {
    move |error| Error::doing(format!("the state of device {id} cannot be kept in /run"))(error)
}

/// Where clients ask for another policy of a device, whose maps are kept. A prepared server has them.
fn exchanges(id: u32, program: &Program, is_new: bool) -> Result<Exchanges, Error> {
    let pins = pins::make(id, is_new)?;
    program.pins.get_or_init(|| pins);
    Exchanges::listen(&Directory::of(id)).map_err(stateful(id))
}

/// Bytes that a server of such a device needs.
fn memory(engine: Engine, spec: &Spec, chunks: usize) -> u64 {
    u64::from(spec.queues) * engine::memory(engine, spec.depth, spec.max_request)
        + Rooms::of(spec, chunks).bytes() as u64
}

fn check(spec: &Spec) -> Result<(), Error> {
    target::check(spec)?;
    if let Some(id) = spec.id.filter(|id| !NUMBERS.contains(id)) {
        return Err(Error::invalid(format!(
            "{id} is no number of a device: 0 to {}",
            NUMBERS.end()
        )));
    }
    if !QUEUES.contains(&spec.queues) {
        return Err(Error::invalid(format!(
            "{} queues are not possible: 1 to {}",
            spec.queues,
            QUEUES.end()
        )));
    }
    if !(1..=ublk::MAX_QUEUE_DEPTH).contains(&spec.depth) {
        return Err(Error::invalid(format!(
            "a depth of {} is not possible: 1 to {}",
            spec.depth,
            ublk::MAX_QUEUE_DEPTH
        )));
    }
    if spec.max_segments == 0 {
        return Err(Error::invalid(
            "requests of 0 segments are not possible: 1 to 65535".to_owned(),
        ));
    }
    if !spec.max_request.is_multiple_of(4096)
        || !(4096..=ublk::MAX_REQUEST_BYTES).contains(&spec.max_request)
    {
        return Err(Error::invalid(format!(
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
    if backings.is_empty() {
        let zero = "/dev/zero";
        let opened = File::open(zero).map_err(Error::doing(format!("{zero} cannot be opened")))?;
        files.push(opened.into());
    }
    files.extend(backings.into_iter().map(|backing| backing.file));
    Ok(files)
}
