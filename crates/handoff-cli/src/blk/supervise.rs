//! The processes behind a device.
//!
//! Contracts:
//! - each says one line on its stdout: that the device is there, or why not, with the exit code;
//! - a server that ends by itself has removed its device, and its supervisor ends with it; one that
//!   was killed is followed by another, which takes the device over;
//! - beside a server another one waits, prepared and in memory: what a new process needs may not be had
//!   while the device is without a server, because the kernel would first have to write to it. One that
//!   ends is followed by another, and all end with the supervisor. Devices with a policy have none, since
//!   their policy may change meanwhile;
//! - a server that is called, or started after another, waits until the kernel has let go of the last one;
//! - a server that does not come to be because memory is short is tried again for as long as it takes;
//! - a supervisor that is asked to end asks its server, which removes the device; a supervisor that
//!   is killed leaves the server, and `recover` makes a new one when that is gone too.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use handoff_block::state::{DIRECTORY, Directory, Held, Record, make_base};
use handoff_block::{Control, Prepared, Spec, Start};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};

use super::pressure;
use crate::stop::Stop;
use crate::{Context, Failure, output};

/// A server that lives for less than this has not served. After so many of them it is given up, unless
/// memory was short: then there are pauses, each twice as long as the last, as between servers that wait.
const SHORT_LIFE: Duration = Duration::from_secs(1);
const SHORT_LIVES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a server is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) spec: Spec,
    /// The device to take over, instead of making one.
    pub(super) recover: Option<u32>,
    /// That the last server of the device which was made then ([`Record::made`]) is gone, or will be when
    /// this one is called.
    follows: Option<u64>,
    /// Whether to be prepared and wait for a line on stdin.
    waits: bool,
}

impl Task {
    /// To make a device, or to take one over if its server is gone.
    pub(super) fn new(spec: Spec, recover: Option<u32>) -> Self {
        Self { spec, recover, follows: None, waits: false }
    }

    /// To take over a device whose server is gone.
    fn following(spec: Spec, id: u32, made: u64) -> Self {
        Self { follows: Some(made), ..Self::new(spec, Some(id)) }
    }
}

/// The line on stdout.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The device is there.
    Serving { id: u32 },
    /// It is not; as a [`Failure`].
    Refused { usage: bool, possible: bool, starved: bool, line: String },
}

/// Why there is no server.
#[derive(Debug)]
struct NoServer {
    failure: Failure,
    /// Whether memory was short.
    starved: bool,
}

impl From<Failure> for NoServer {
    fn from(failure: Failure) -> Self {
        Self { failure, starved: false }
    }
}

impl From<NoServer> for Failure {
    fn from(none: NoServer) -> Self {
        none.failure
    }
}

/// Arguments of the processes behind a device.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples: none; `handoff blk add` starts it.")]
pub struct ServeArgs {
    /// The task, as JSON
    task: String,
}

impl ServeArgs {
    fn task(&self) -> Result<Task, Failure> {
        serde_json::from_str(&self.task)
            .map_err(|error| Failure::usage(format!("this is no task: {error}")))
    }
}

/// `handoff blk serve`.
pub(super) fn serve(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    let task = args.task()?;
    pressure::stand();
    pressure::stay_in_memory();
    let start = task.recover.map_or(Start::New, Start::Recover);
    let prepared = Prepared::new(&task.spec, start);
    if task.waits && prepared.is_ok() && !is_called(&context.stop)? {
        return Ok(());
    }
    let served = prepared.and_then(|prepared| match task.follows {
        Some(made) => prepared.follow(made, context.stop.flag()),
        None => prepared.serve(),
    });
    let server = match served {
        Ok(server) => server,
        Err(error) => {
            let starved = matches!(error, handoff_block::Error::NoMemory(_));
            return refuse(NoServer { failure: error.into(), starved });
        }
    };
    say(&Answer::Serving { id: server.id() })?;
    Ok(server.wait(context.stop.flag())?)
}

/// Whether a server that waits is to take over; not if its supervisor is gone, nor if it is asked to end,
/// which would end the device later.
fn is_called(stop: &Stop) -> Result<bool, Failure> {
    if !is_readable(io::stdin(), stop)? {
        return Ok(false);
    }
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).map_err(Failure::failed)?;
    Ok(read > 0 && !stop.requested())
}

/// `handoff blk supervise`.
pub(super) fn supervise(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    let task = args.task()?;
    let log = match log() {
        Ok(log) => log,
        Err(failure) => return refuse(failure.into()),
    };
    let mut serving = false;
    let watched = watch(&task, context, |id, _| {
        serving = true;
        say(&Answer::Serving { id })?;
        log_as(&log, id)
    });
    match watched {
        Err(failure) if !serving => refuse(failure.into()),
        watched => watched,
    }
}

fn refuse(NoServer { failure, starved }: NoServer) -> Result<(), Failure> {
    say(&Answer::Refused {
        usage: matches!(failure, Failure::Usage(_)),
        possible: !matches!(failure, Failure::NotPossible(_)),
        starved,
        line: failure.line().unwrap_or_default(),
    })?;
    Err(failure)
}

fn say(answer: &Answer) -> Result<(), Failure> {
    let line = serde_json::to_string(answer).map_err(Failure::failed)?;
    output::text(&format!("{line}\n"))
}

/// Removes the log of a device that has ended well.
pub(super) fn forget_log(id: u32) {
    // Whoever removes the device and who served it both do this.
    let _ = fs::remove_file(Directory::of(id).log_path());
}

/// Has this process and those that it starts log to a file. It has no name before there is a device,
/// so that nothing is left where none comes to be.
fn log() -> Result<File, Failure> {
    let made = make_base().and_then(|()| {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let log = rustix::fs::open(DIRECTORY, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::stdio::dup2_stderr(&log)?;
        Ok(log.into())
    });
    made.map_err(|error| Failure::failed(format!("{DIRECTORY}: {error}")))
}

/// Gives the log its name, and lets go of the pipe to whoever started this.
fn log_as(log: &File, id: u32) -> Result<(), Failure> {
    let path = Directory::of(id).log_path();
    let named = || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::fs::linkat(log, "", CWD, &path, AtFlags::EMPTY_PATH)?;
        // There is a page that can be held.
        writeln!(&mut &*log, "device {id}")?;
        rustix::stdio::dup2_stdout(&File::options().write(true).open("/dev/null")?)?;
        Ok(())
    };
    named().map_err(|error: io::Error| Failure::failed(format!("{}: {error}", path.display())))
}

/// Starts a supervisor that outlives this process, and returns the device's number.
pub(super) fn detach(task: &Task) -> Result<u32, Failure> {
    let mut command = process("supervise", task)?;
    command.stderr(Stdio::null()).current_dir("/");
    // SAFETY: between fork and exec only setsid and sigaction, which are safe there.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            // Nor is it meant by what a session is told when it ends.
            handoff_sys::hangup::ignore()
        });
    }
    let (_, id) = begin(command, None)?;
    Ok(id)
}

fn process(role: &str, task: &Task) -> Result<Command, Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program is not found: {error}")))?;
    let task = serde_json::to_string(task).map_err(Failure::failed)?;
    let mut command = Command::new(this);
    command.args(["blk", role, &task]).stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// The process that waits until its device has no server. It ends when this is dropped.
struct Spare {
    /// `None` where none is to wait.
    task: Option<Task>,
    /// With what becomes readable when it ends.
    waits: Option<(Child, OwnedFd)>,
    lives: Lives,
    /// When the next one may be started.
    next: Instant,
}

impl Spare {
    fn of(record: &Record, id: u32) -> Self {
        let task = Task { waits: true, ..Task::following(record.spec.clone(), id, record.made) };
        Self {
            task: record.spec.policy.is_none().then_some(task),
            waits: None,
            lives: Lives::new(),
            next: Instant::now(),
        }
    }

    /// Sees to it that one waits; for how long there is none, if one is to be started again.
    fn tend(&mut self, log: &mut Log<'_>) -> io::Result<Option<Duration>> {
        let Some(task) = &self.task else { return Ok(None) };
        if let Some((child, _)) = &mut self.waits {
            let Some(status) = child.try_wait()? else { return Ok(None) };
            self.waits = None;
            self.none_waits(log, &status.to_string());
        } else if Instant::now() >= self.next {
            self.lives.begin();
            let started = process("serve", task).and_then(|mut command| {
                let child = command.stdin(Stdio::piped()).spawn().map_err(Failure::failed)?;
                match ending(&child) {
                    Ok(ended) => Ok((child, ended)),
                    Err(error) => {
                        end(child);
                        Err(Failure::failed(error))
                    }
                }
            });
            match started {
                Ok(waits) => {
                    self.waits = Some(waits);
                    return Ok(None);
                }
                Err(failure) => self.none_waits(log, &failure.line().unwrap_or_default()),
            }
        }
        Ok(Some(self.next.saturating_duration_since(Instant::now())))
    }

    fn none_waits(&mut self, log: &mut Log<'_>, cause: &str) {
        self.lives.end();
        self.next = Instant::now() + pause_after(self.lives.short);
        log.say(&format!("no server waits any more, so another is started: {cause}"));
    }

    /// Has it take the device over; `None` if none waits.
    fn call(&mut self, stop: &Stop) -> Option<Result<(Child, u32), NoServer>> {
        let (mut child, _) = self.waits.take()?;
        // One that has ended reads nothing, and has no answer.
        let _ = child.stdin.take().expect("piped").write_all(b"\n");
        Some(answered(child, Some(stop)))
    }

    /// None waits from here on.
    fn dismiss(&mut self) {
        self.task = None;
        if let Some((child, _)) = self.waits.take() {
            end(child);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// How long the processes live that follow each other.
struct Lives {
    /// So many in a row were short.
    short: u32,
    since: Instant,
}

impl Lives {
    fn new() -> Self {
        Self { short: 0, since: Instant::now() }
    }

    fn begin(&mut self) {
        self.since = Instant::now();
    }

    fn end(&mut self) {
        self.short = if self.since.elapsed() < SHORT_LIFE { self.short + 1 } else { 0 };
    }
}

/// The first pause, doubled so many times.
fn pause_after(doubled: u32) -> Duration {
    PAUSE.saturating_mul(1u32.checked_shl(doubled).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
}

/// What the supervisor says, and what is held in memory for the device: the page too that it says it on. While
/// the device has no server, a page that was put out to it does not come back.
struct Log<'a> {
    directory: &'a Directory,
    held: Held,
}

impl<'a> Log<'a> {
    fn of(directory: &'a Directory) -> Self {
        Self { directory, held: directory.hold() }
    }

    fn say(&mut self, what: &str) {
        tracing::warn!("{what}");
        self.hold();
    }

    /// Holds what lies there now.
    fn hold(&mut self) {
        self.held = self.directory.hold();
    }
}

/// Ends a process that has nothing that would have to be put back.
fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// What becomes readable when a process ends.
fn ending(child: &Child) -> io::Result<OwnedFd> {
    Ok(pidfd_open(id_of(child), PidfdFlags::empty())?)
}

fn id_of(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process")
}

/// Starts a process and reads its line.
fn begin(mut command: Command, stop: Option<&Stop>) -> Result<(Child, u32), NoServer> {
    let child = command.spawn().map_err(|error| NoServer {
        starved: matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)),
        failure: Failure::failed(format!("a process cannot be started: {error}")),
    })?;
    answered(child, stop)
}

/// A process that has said its line. With `stop`, one that has not when that is requested is ended.
fn answered(mut child: Child, stop: Option<&Stop>) -> Result<(Child, u32), NoServer> {
    let stdout = child.stdout.take().expect("piped");
    let heard = match stop.map(|stop| (stop, is_readable(&stdout, stop))) {
        Some((stop, Ok(false))) => Err(stop.failure()),
        Some((_, Err(failure))) => Err(failure),
        _ => Ok(()),
    };
    if let Err(failure) = heard {
        end(child);
        return Err(failure.into());
    }
    let mut line = String::new();
    // A process that ended without a word has an empty line.
    let _ = BufReader::new(stdout).read_line(&mut line);
    let refused = match serde_json::from_str(&line) {
        Ok(Answer::Serving { id }) => return Ok((child, id)),
        Ok(Answer::Refused { usage, possible, starved, line }) => {
            let failure = match (usage, possible) {
                (true, _) => Failure::Usage(line),
                (_, false) => Failure::NotPossible(line),
                _ => Failure::Failed(line),
            };
            Some(NoServer { failure, starved })
        }
        Err(_) => None,
    };
    let status = child.wait().map_err(Failure::failed)?;
    Err(refused.unwrap_or_else(|| NoServer {
        failure: Failure::failed(format!("the server ended before it served: {status}")),
        starved: is_starved(status),
    }))
}

/// Waits until there is something to read, or its end; not if we are asked to end before.
fn is_readable(fd: impl AsFd, stop: &Stop) -> Result<bool, Failure> {
    let wake = stop.fd();
    while !stop.requested() {
        let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => return Ok(!stop.requested()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::failed(io::Error::from(error))),
        }
    }
    Ok(false)
}

/// Whether a process may have been taken by the OOM killer, whose signal looks like anybody's.
fn is_starved(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Serves a device by processes that follow each other, until it is removed. `ready` is told when
/// it is there.
pub(super) fn watch(
    task: &Task,
    context: &Context,
    ready: impl FnOnce(u32, &Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    pressure::stand();
    let (mut child, id) = begin(process("serve", task)?, None)?;
    pressure::stay_in_memory();
    let directory = Directory::of(id);
    let record = directory
        .read()
        .map_err(|error| Failure::failed(format!("device {id} has no state: {error}")))?;
    ready(id, &record)?;
    let mut spare = Spare::of(&record, id);
    let mut log = Log::of(&directory);
    let mut lives = Lives::new();
    loop {
        let status = wait(&mut child, &mut spare, &mut log, context).map_err(Failure::failed)?;
        let Some(signal) = status.signal() else {
            spare.dismiss();
            if status.success() {
                if !is_another(&directory, &record) {
                    forget_log(id);
                }
                return Ok(());
            }
            return Err(Failure::failed(format!("the server of device {id} failed: {status}")));
        };
        let mut killed = Some(format!("the server of device {id} was killed by signal {signal}"));
        let mut starved = is_starved(status);
        let mut pause = Duration::ZERO;
        loop {
            lives.end();
            let too_short = lives.short.checked_sub(SHORT_LIVES);
            if let Some(more) = too_short.filter(|_| starved) {
                pause = pause_after(more);
            }
            rest(pause, context)?;
            if context.stop.requested() {
                spare.dismiss();
                if !is_another(&directory, &record) {
                    let mut control = Control::open()?;
                    control.stop(id)?;
                    control.remove(id)?;
                    directory.remove();
                    forget_log(id);
                }
                return Err(context.stop.failure());
            }
            if too_short.is_some() && !starved {
                return Err(Failure::failed(format!(
                    "{SHORT_LIVES} servers of device {id} ended at once: `handoff blk recover {id}` \
                     tries again"
                )));
            }
            lives.begin();
            // Before anything is said, which may take memory.
            let called = spare.call(&context.stop);
            if let Some(killed) = killed.take() {
                log.say(&killed);
            }
            let followed = match called {
                Some(followed) => followed,
                None => {
                    let task = successor(&directory, &record, id);
                    begin(process("serve", &task)?, Some(&context.stop))
                }
            };
            match followed {
                Ok((server, _)) => {
                    child = server;
                    log.hold();
                    break;
                }
                Err(_) if context.stop.requested() => {}
                // Removed while it had no server. Its number may be another device's by now.
                Err(_) if is_another(&directory, &record) => return Ok(()),
                // Where nothing can be asked, it may be there.
                Err(_) if matches!(Control::open().and_then(|mut it| it.find(id)), Ok(None)) => {
                    directory.remove();
                    return Ok(());
                }
                Err(none) => {
                    log.say(&none.failure.line().unwrap_or_default());
                    starved = none.starved;
                    pause = PAUSE;
                }
            }
        }
    }
}

/// Whether the number of a device that was removed has been given to another.
fn is_another(directory: &Directory, record: &Record) -> bool {
    directory.read().is_ok_and(|now| now.made != record.made)
}

/// What a server that follows is to do. Its policy may be another by now; of other devices nothing changes,
/// and what lies in `/run` may be out of memory, on this very device.
fn successor(directory: &Directory, record: &Record, id: u32) -> Task {
    let mut spec = record.spec.clone();
    if let (Some(_), Ok(now)) = (&spec.policy, directory.read()) {
        spec = now.spec;
    }
    Task::following(spec, id, record.made)
}

/// Waits for so long, or until we are asked to end.
fn rest(time: Duration, context: &Context) -> Result<(), Failure> {
    let stop = context.stop.fd();
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || context.stop.requested() {
            return Ok(());
        }
        let left = left.try_into().map_err(Failure::failed)?;
        match poll(&mut [PollFd::new(&stop, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::failed(io::Error::from(error))),
        }
    }
}

/// Waits for a server, which is asked to end when we are, and sees to it that another waits beside it.
fn wait(
    child: &mut Child,
    spare: &mut Spare,
    log: &mut Log<'_>,
    context: &Context,
) -> io::Result<ExitStatus> {
    let ended = ending(child)?;
    let stop = context.stop.fd();
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if context.stop.requested() && !asked {
            asked = true;
            spare.dismiss();
            // It may have ended, and its id waits for us.
            let _ = kill_process(id_of(child), Signal::TERM);
        }
        let pause =
            spare.tend(log)?.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut fds = vec![PollFd::new(&ended, PollFlags::IN)];
        // It stays readable.
        if !asked {
            fds.push(PollFd::new(&stop, PollFlags::IN));
        }
        fds.extend(spare.waits.iter().map(|(_, ended)| PollFd::new(ended, PollFlags::IN)));
        match poll(&mut fds, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
