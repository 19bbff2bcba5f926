//! The processes behind a device.
//!
//! Contracts:
//! - each says one line on its stdout: that the device is there, or why not, with the exit code;
//! - a server that ends by itself has removed its device, and its supervisor ends with it; one that
//!   was killed is followed by another, which takes the device over;
//! - beside a server another one waits, prepared and in memory: what a new process needs may not be had
//!   while the device is without a server, because the kernel would first have to write to it. It ends
//!   with the supervisor. Devices with a policy have none, since their policy may change meanwhile;
//! - a server that does not come to be because memory is short is tried again for as long as it takes;
//! - a supervisor that is asked to end asks its server, which removes the device; a supervisor that
//!   is killed leaves the server, and `recover` makes a new one when that is gone too.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use handoff_block::state::{DIRECTORY, Directory, Record, make_base};
use handoff_block::{Control, Prepared, Spec, Start};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};

use super::pressure;
use crate::{Context, Failure, output};

/// A server that lives for less than this has not served. After so many of them it is given up, unless
/// memory was short: then there are pauses, each twice as long as the last.
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
    /// Whether to be prepared and wait for a line on stdin.
    pub(super) waits: bool,
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
    if task.waits && prepared.is_ok() && !is_called()? {
        return Ok(());
    }
    let server = match prepared.and_then(Prepared::serve) {
        Ok(server) => server,
        Err(error) => {
            let starved = matches!(error, handoff_block::Error::NoMemory(_));
            return refuse(NoServer { failure: error.into(), starved });
        }
    };
    say(&Answer::Serving { id: server.id() })?;
    Ok(server.wait(context.stop.flag())?)
}

/// Whether a server that waits is to take over; not if its supervisor is gone.
fn is_called() -> Result<bool, Failure> {
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).map_err(Failure::failed)?;
    Ok(read > 0)
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
    let (_, id) = begin(command)?;
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

/// A process that waits until its device has no server. It ends when this is dropped.
struct Waiting(Option<Child>);

impl Waiting {
    /// Starts one. Without it, a process is started when it is needed.
    fn beside(spec: &Spec, id: u32) -> Option<Self> {
        if spec.policy.is_some() {
            return None;
        }
        let task = Task { spec: spec.clone(), recover: Some(id), waits: true };
        let started = process("serve", &task)
            .and_then(|mut command| command.stdin(Stdio::piped()).spawn().map_err(Failure::failed));
        let failed = |failure: Failure| {
            tracing::warn!("no server waits: {}", failure.line().unwrap_or_default());
        };
        started.map_err(failed).ok().map(|child| Self(Some(child)))
    }

    /// Has it take the device over; `None` if it ended without a word.
    fn call(mut self) -> Option<Result<(Child, u32), NoServer>> {
        let mut child = self.0.take()?;
        // One that has ended reads nothing.
        let called = child.stdin.take().expect("piped").write_all(b"\n");
        if let Some(answer) = called.ok().and_then(|()| answer_of(&mut child)) {
            return Some(answer.map(|id| (child, id)));
        }
        let status = child.wait().map_or_else(|error| error.to_string(), |it| it.to_string());
        tracing::warn!("the server that waited ended before it served: {status}");
        None
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It has nothing that would have to be put back.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a process and reads its line.
fn begin(mut command: Command) -> Result<(Child, u32), NoServer> {
    let mut child = command.spawn().map_err(|error| NoServer {
        starved: matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)),
        failure: Failure::failed(format!("a process cannot be started: {error}")),
    })?;
    match answer_of(&mut child) {
        Some(answer) => answer.map(|id| (child, id)),
        None => {
            let status = child.wait().map_err(Failure::failed)?;
            let failure = Failure::failed(format!("the server ended before it served: {status}"));
            Err(NoServer { failure, starved: is_starved(status) })
        }
    }
}

/// The line of a process; `None` if it ended without one.
fn answer_of(child: &mut Child) -> Option<Result<u32, NoServer>> {
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    // A process that ended without a word has an empty line.
    let _ = BufReader::new(stdout).read_line(&mut line);
    match serde_json::from_str(&line).ok()? {
        Answer::Serving { id } => Some(Ok(id)),
        Answer::Refused { usage, possible, starved, line } => {
            let _ = child.wait();
            let failure = match (usage, possible) {
                (true, _) => Failure::Usage(line),
                (_, false) => Failure::NotPossible(line),
                _ => Failure::Failed(line),
            };
            Some(Err(NoServer { failure, starved }))
        }
    }
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
    let (mut child, id) = begin(process("serve", task)?)?;
    pressure::stay_in_memory();
    let directory = Directory::of(id);
    let record = directory
        .read()
        .map_err(|error| Failure::failed(format!("device {id} has no state: {error}")))?;
    ready(id, &record)?;
    let mut waiting = Waiting::beside(&record.spec, id);
    // Without a server, nothing comes back that was put out to the device.
    let mut _held = directory.hold();
    let mut short_lives = 0;
    let mut since = Instant::now();
    loop {
        let status = wait(&mut child, context).map_err(Failure::failed)?;
        let Some(signal) = status.signal() else {
            drop(waiting);
            if status.success() {
                forget_log(id);
                return Ok(());
            }
            return Err(Failure::failed(format!("the server of device {id} failed: {status}")));
        };
        tracing::warn!("the server of device {id} was killed by signal {signal}");
        let mut starved = is_starved(status);
        let mut pause = Duration::ZERO;
        loop {
            short_lives = if since.elapsed() < SHORT_LIFE { short_lives + 1 } else { 0 };
            if short_lives >= SHORT_LIVES {
                if !starved {
                    return Err(Failure::failed(format!(
                        "{SHORT_LIVES} servers of device {id} ended at once: `handoff blk recover \
                         {id}` tries again"
                    )));
                }
                let times = 1u32.checked_shl(short_lives - SHORT_LIVES).unwrap_or(u32::MAX);
                pause = PAUSE.saturating_mul(times).min(LONGEST_PAUSE);
            }
            rest(pause, context)?;
            if context.stop.requested() {
                drop(waiting);
                let mut control = Control::open()?;
                control.stop(id)?;
                control.remove(id)?;
                directory.remove();
                return Err(context.stop.failure());
            }
            since = Instant::now();
            let followed = match waiting.take().and_then(Waiting::call) {
                Some(followed) => followed,
                None => begin(process("serve", &successor(&directory, &record, id))?),
            };
            match followed {
                Ok((server, _)) => {
                    child = server;
                    waiting = Waiting::beside(&record.spec, id);
                    _held = directory.hold();
                    break;
                }
                // Removed while it had no server. Where nothing can be asked, it may be there.
                Err(_) if matches!(Control::open().and_then(|mut it| it.find(id)), Ok(None)) => {
                    directory.remove();
                    return Ok(());
                }
                Err(none) => {
                    tracing::warn!("{}", none.failure.line().unwrap_or_default());
                    starved = none.starved;
                    pause = PAUSE;
                }
            }
        }
    }
}

/// What a server that follows is to do. Its policy may be another by now; of other devices nothing changes,
/// and what lies in `/run` may be out of memory, on this very device.
fn successor(directory: &Directory, record: &Record, id: u32) -> Task {
    let mut spec = record.spec.clone();
    if let (Some(_), Ok(now)) = (&spec.policy, directory.read()) {
        spec = now.spec;
    }
    Task { spec, recover: Some(id), waits: false }
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

/// Waits for a server, which is asked to end when we are.
fn wait(child: &mut Child, context: &Context) -> io::Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let stop = context.stop.fd();
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if context.stop.requested() && !asked {
            asked = true;
            // It may have ended, and its id waits for us.
            let _ = kill_process(pid, Signal::TERM);
        }
        let mut fds = vec![PollFd::new(&ended, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
        // It stays readable.
        fds.truncate(if asked { 1 } else { 2 });
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
