//! The processes behind a device.
//!
//! Contracts:
//! - each says one line on its stdout: that the device is there, or why not, with the exit code;
//! - a server that ends by itself has removed its device, and its supervisor ends with it; one that
//!   was killed is followed by another, which takes the device over;
//! - a server that does not come to be because memory is short is tried again for as long as it takes;
//! - a supervisor that is asked to end asks its server, which removes the device; a supervisor that
//!   is killed leaves the server, and `recover` makes a new one when that is gone too.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use handoff_block::state::{DIRECTORY, Directory, Record, make_base};
use handoff_block::{Control, Server, Spec, Start};
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
    let server = match Server::start(&task.spec, start) {
        Ok(server) => server,
        Err(error) => {
            let starved = matches!(error, handoff_block::Error::NoMemory(_));
            return refuse(NoServer { failure: error.into(), starved });
        }
    };
    say(&Answer::Serving { id: server.id() })?;
    Ok(server.wait(context.stop.flag())?)
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

/// Where the processes of a device log to.
fn log_path(id: u32) -> String {
    format!("{DIRECTORY}/{id}.log")
}

/// Removes the log of a device that has ended well.
pub(super) fn forget_log(id: u32) {
    // Whoever removes the device and who served it both do this.
    let _ = fs::remove_file(log_path(id));
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
    let path = log_path(id);
    let named = || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::fs::linkat(log, "", CWD, &path, AtFlags::EMPTY_PATH)?;
        rustix::stdio::dup2_stdout(&File::options().write(true).open("/dev/null")?)?;
        Ok(())
    };
    named().map_err(|error: io::Error| Failure::failed(format!("{path}: {error}")))
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

/// Starts a process and reads its line.
fn begin(mut command: Command) -> Result<(Child, u32), NoServer> {
    let mut child = command.spawn().map_err(|error| NoServer {
        starved: matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)),
        failure: Failure::failed(format!("a process cannot be started: {error}")),
    })?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    // A process that ended without a word has an empty line.
    let _ = BufReader::new(stdout).read_line(&mut line);
    match serde_json::from_str(&line) {
        Ok(Answer::Serving { id }) => Ok((child, id)),
        Ok(Answer::Refused { usage, possible, starved, line }) => {
            let _ = child.wait();
            let failure = match (usage, possible) {
                (true, _) => Failure::Usage(line),
                (_, false) => Failure::NotPossible(line),
                _ => Failure::Failed(line),
            };
            Err(NoServer { failure, starved })
        }
        Err(_) => {
            let status = child.wait().map_err(Failure::failed)?;
            let failure = Failure::failed(format!("the server ended before it served: {status}"));
            Err(NoServer { failure, starved: is_starved(status) })
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
    let mut short_lives = 0;
    let mut since = Instant::now();
    loop {
        let status = wait(&mut child, context).map_err(Failure::failed)?;
        let Some(signal) = status.signal() else {
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
                let mut control = Control::open()?;
                control.stop(id)?;
                control.remove(id)?;
                directory.remove();
                return Err(context.stop.failure());
            }
            since = Instant::now();
            // Its policy may be another by now.
            let spec = directory.read().map_or_else(|_| record.spec.clone(), |record| record.spec);
            match begin(process("serve", &Task { spec, recover: Some(id) })?) {
                Ok((server, _)) => {
                    child = server;
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
