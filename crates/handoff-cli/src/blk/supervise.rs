//! The processes behind a device.
//!
//! Contracts:
//! - each prints one line on its stdout: that the device is there, or why not, with the exit code;
//! - a server that ends by itself has removed its device; after a server that failed, its supervisor removes it. The
//!   supervisor ends with either. A killed server is replaced by another, which takes the device over;
//! - beside a server another one waits, prepared and in memory: without a server there may be no memory for
//!   a new process, because the kernel would first have to write to the device. A waiting server that ends
//!   is replaced, also one whose device has another policy by now; all end with the supervisor;
//! - a server that is called, or started after another, waits until the kernel has let go of the last one;
//! - if a server cannot start for lack of memory, descriptors or threads, the supervisor tries again as long
//!   as it takes;
//! - a supervisor opens the device's files, and hands them to its servers ([`Files`]). It starts them from the very
//!   program that it runs, whatever lies at its path by now. What is removed of the device's directory it puts back;
//! - a supervisor or server that is asked to end stops its device once nobody uses it, and serves on until then
//!   ([`Ending`]); a killed supervisor leaves the server, and `recover` makes a new one when that is gone too.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::Duration;

use handoff_block::state::{Directory, Record};
use handoff_block::{Control, ErrorKind, Files, Prepared, Start};
use handoff_command::stop::Stop;
use handoff_command::{Context, Failure, output};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use self::lifetimes::{Lifetimes, PAUSE, pause_after};
use self::log::Log;
pub(super) use self::process::{await_end, detach, processes};
use self::process::{begin, call_it_handoff, is_readable, is_starved, pidfd_of, server};
use self::spare::Spare;
pub(super) use self::task::Task;
use self::task::{Answer, NoServer, no_thread};
use super::ending::{self, Ending, Role};
use super::failure::failure;
use super::pressure;
use super::starting::Pace;

mod lifetimes;
mod log;
mod process;
mod spare;
mod task;

/// After so many short-lived servers the supervisor gives up, unless memory or descriptors were short: then it
/// pauses, each time twice as long as before, as between waiting servers.
const SHORT_LIFETIMES: u32 = 10;
/// How often to look at a server whose end cannot be waited for, and to retry what failed for lack of
/// resources.
const LOOK: Duration = Duration::from_millis(500);

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
    let mut task = args.task()?;
    call_it_handoff();
    // SAFETY: the supervisor that made this task has handed them on, and nobody here has taken them before.
    let files = task.files.take().map(|told| unsafe { Files::inherit(told) });
    // It runs in the background of the terminal to which its log may go.
    handoff_sys::hangup::write_in_background().map_err(Failure::failed)?;
    pressure::stand();
    pressure::stay_in_memory();
    let ending = match Ending::prepare(&context.stop, Role::Server) {
        Ok(ending) => ending,
        Err(error) => return refuse(no_thread(error)),
    };
    let start = task.recover.map_or(Start::New, Start::Recover);
    let prepared = Prepared::with(&task.spec, start, files);
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
            let starved = error.kind() == ErrorKind::Starved;
            return refuse(NoServer { failure: failure(error), starved });
        }
    };
    task.heard(say(&Answer::Serving { id: server.id() }))?;
    ending.of(server.record());
    server.wait().map_err(failure)
}

/// Whether a waiting server must take over; not if its supervisor is gone, nor if it is asked to end, which
/// would end the device later.
fn is_called(stop: &Stop) -> Result<bool, Failure> {
    if !is_readable(io::stdin(), stop).map_err(Failure::failed)? {
        return Ok(false);
    }
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).map_err(Failure::failed)?;
    Ok(read > 0 && !stop.requested())
}

/// `handoff blk supervise`.
pub(super) fn supervise(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    let task = args.task()?;
    call_it_handoff();
    let log = match log::open() {
        Ok(log) => log,
        Err(failure) => return refuse(failure.into()),
    };
    leave_session();
    let mut serving = false;
    let mut pace = Pace::default();
    let starting = |done, all| !pace.is_due() || say(&Answer::Starting { done, all }).is_ok();
    let watched = watch(&task, context, starting, |id, _| {
        // Before the line is printed: whoever hears of the device finds its log.
        log::name(&log, id)?;
        serving = true;
        task.heard(say(&Answer::Serving { id }))?;
        log::let_go_of_stdout()
    });
    match watched {
        Err(failure) if !serving => refuse(failure.into()),
        watched => watched,
    }
}

/// When a session ends, systemd kills what is in the session's control group: also when the machine is switched off, and
/// before file systems are unmounted. A device outlives the session that made it, so its processes leave that group.
fn leave_session() {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if Path::new("/run/systemd/system").exists() && groups.contains(":/user.slice/") {
        let left = fs::write("/sys/fs/cgroup/cgroup.procs", std::process::id().to_string());
        if let Err(error) = left {
            tracing::warn!("the device ends with the session: {error}");
        }
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

/// Serves a device by one process after another, until it is removed. Calls `ready` when the device is
/// there, and before that `starting`, if it takes long: with the bytes done, and of all. It returns whether somebody still
/// wants the device.
pub(super) fn watch(
    task: &Task,
    context: &Context,
    mut starting: impl FnMut(u64, u64) -> bool,
    ready: impl FnOnce(u32, &Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    pressure::stand();
    let ending = Ending::prepare(&context.stop, Role::Supervisor);
    let ending = ending.map_err(|error| no_thread(error).failure)?;
    let mut files = match task.recover {
        None => {
            let mut watch = |done, all| starting(done, all) && !context.stop.requested();
            let opened = Files::open_watched(&task.spec, &mut watch);
            // Nobody has a device yet.
            context.stop.check()?;
            opened.map_err(failure)?
        }
        Some(id) => Files::of_device(id).map_err(failure)?,
    };
    let told = files.hand_on().map_err(Failure::failed)?;
    let (mut child, id) = begin(server(&Task { files: Some(told), ..task.clone() })?)?;
    pressure::stay_in_memory();
    let directory = Directory::of(id);
    let record = directory
        .read()
        .map_err(|error| Failure::failed(format!("device {id} has no state: {error}")))?;
    if let Err(failure) = ready(id, &record) {
        // Nobody would watch it. It removes a device that it has made; one that was taken over has its users, and waits
        // again.
        let signal = if task.recover.is_none() { Signal::TERM } else { Signal::KILL };
        let _ = kill_process(Pid::from_child(&child), signal);
        let _ = child.wait();
        ending::forget_log(id);
        return Err(failure);
    }
    files.belong_to(record.clone());
    ending.of(&record);
    let following = Task::following(&record, id, files.hand_on().map_err(Failure::failed)?);
    let mut spare = Spare::of(&following);
    let mut log = Log::of(&directory, &files);
    let mut lifetimes = Lifetimes::new();
    loop {
        let status = wait(&mut child, &mut spare, &mut log).map_err(Failure::failed)?;
        let Some(signal) = status.signal() else {
            spare.dismiss();
            if status.success() {
                if !is_another(&directory, &record) {
                    ending::forget_log(id);
                }
                return context.stop.check();
            }
            // Its log stays.
            while let Err(error) = handoff_block::remove(&record) {
                log.say(&error.to_string());
                let starved = error.kind() == ErrorKind::Starved;
                if !starved || context.stop.insisted() {
                    break;
                }
                thread::sleep(PAUSE);
            }
            return Err(Failure::failed(format!("the server of device {id} failed: {status}")));
        };
        let mut killed = Some(format!("the server of device {id} was killed by signal {signal}"));
        let mut starved = is_starved(status);
        let mut pause = Duration::ZERO;
        loop {
            lifetimes.end();
            let too_short = lifetimes.short.checked_sub(SHORT_LIFETIMES);
            if let Some(more) = too_short.filter(|_| starved) {
                pause = pause_after(more);
            }
            thread::sleep(pause);
            if too_short.is_some() && !starved {
                return Err(Failure::failed(format!(
                    "{SHORT_LIFETIMES} servers of device {id} ended at once: `handoff blk recover {id}` \
                     tries again"
                )));
            }
            lifetimes.begin();
            // Before anything is printed, which may take memory.
            let called = spare.call();
            if let Some(killed) = killed.take() {
                log.say(&killed);
            }
            let followed = match called {
                Some(followed) => followed,
                None => begin(server(&following)?),
            };
            match followed {
                Ok((server, _)) => {
                    child = server;
                    log.hold();
                    break;
                }
                // Removed while it had no server. Its number may be another device's by now.
                Err(_) if is_another(&directory, &record) => return context.stop.check(),
                // If nobody can be asked, it may be there.
                Err(_) if matches!(Control::open().and_then(|mut it| it.find(id)), Ok(None)) => {
                    directory.remove();
                    return context.stop.check();
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

/// Whether a removed device's number now belongs to another.
fn is_another(directory: &Directory, record: &Record) -> bool {
    directory.read().is_ok_and(|now| now.made != record.made)
}

/// Waits for a server, and keeps another waiting beside it.
fn wait(child: &mut Child, spare: &mut Spare, log: &mut Log<'_>) -> io::Result<ExitStatus> {
    let mut ended = None;
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let pause = spare.tend(log)?;
        if log.lacks() {
            log.hold();
        }
        if ended.is_none() {
            match pidfd_of(child) {
                Ok(fd) => ended = Some(fd),
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        log.say(&format!("the server is looked at twice a second: {error}"));
                    }
                }
            }
        }
        let look = (ended.is_none() || log.lacks() || spare.lacks()).then_some(LOOK);
        let pause = pause.into_iter().chain(look).min();
        let pause = pause.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let own = ended.as_ref().map(OwnedFd::as_fd).into_iter();
        let mut fds: Vec<_> = own
            .chain(spare.wakes())
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
