//! How a device ends: when nobody uses it any more, or all the same.
//!
//! Contracts:
//! - a process behind a device that is asked to end ([`Ending`]) stops the device as soon as nobody has it open, and
//!   says meanwhile who has. The device is served on until then, also by a next server;
//! - whoever insists (a second signal, `del --force`) gets an end ([`force`]): what file systems and the page cache
//!   still keep is written first, then users get I/O errors. A server that does not answer is killed;
//! - both end in time, whatever hangs: what may hang for ever is done by a process of its own ([`EndArgs`]).

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use handoff_block::state::{Directory, Record};
use handoff_block::{Control, remove};
use handoff_command::stop::Stop;
use handoff_command::{Context, Failure, service};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::failure::failure;
use super::holders::{self, Holder};

/// How often a device that is in use is tried again: the kernel tells only of mounts.
const TRY: Duration = Duration::from_millis(500);
/// How long requests that are under way may take when the end is insisted on, unless `--grace` says otherwise.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How long systemd may take to unmount file systems, when the machine is switched off.
const UNMOUNTING: Duration = Duration::from_secs(100);
/// How long writing back may take without an answer from the device, and in all.
const SILENCE: Duration = Duration::from_secs(4);
const WRITING: Duration = Duration::from_secs(300);
/// How long the driver may take after its server was killed.
const AFTER: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// This program, whatever lies at its path by now.
pub(super) const PROGRAM: &str = "/proc/self/exe";
/// The name that the processes of a device have: for its first character, systemd spares them when the machine ends,
/// until all file systems are unmounted.
pub(super) const SURVIVES: &str = "@handoff";

/// Who holds a device that was not stopped.
pub(super) fn listed(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "open, and not in a process that shows".to_owned();
    }
    holders.iter().map(Holder::to_string).collect::<Vec<_>>().join(", ")
}

/// Stops a device if nobody has it open; else returns who has.
pub(super) fn stop_unused(control: &mut Control, id: u32) -> Result<Option<Vec<Holder>>, Failure> {
    let tells_use = control.tells_use().map_err(failure)?;
    if tells_use && control.stop_unused(id).map_err(failure)? {
        return Ok(None);
    }
    let holders = holders::of(id);
    if !tells_use && holders.is_empty() {
        control.stop(id).map_err(failure)?;
        return Ok(None);
    }
    Ok(Some(holders))
}

/// Whose end it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Supervisor,
    Server,
}

impl Role {
    fn tell(self, what: &str) {
        tracing::warn!("{what}");
        if self == Self::Supervisor {
            service::status(what);
        }
    }

    /// Whether the machine is switched off, and only the last steps of that free the device: systemd then ends what is
    /// made of it, long after all services. The server goes on until then, without a supervisor.
    fn must_leave(self, holders: &[Holder], since: Instant) -> bool {
        let are_devices = holders.iter().all(|holder| matches!(holder, Holder::Device(_)));
        self == Self::Supervisor
            && (are_devices || since.elapsed() > UNMOUNTING)
            && service::machine_ends()
    }
}

/// A thread that ends the device of this process when the process is asked to end.
pub(super) struct Ending(Sender<Record>);

impl Ending {
    /// Starts it, before there is a device.
    pub(super) fn prepare(stop: &Stop, role: Role) -> Result<Self, io::Error> {
        let (device, devices) = mpsc::channel();
        stop.catch_second_signal();
        let stop = stop.clone();
        thread::Builder::new()
            .name("blk-ending".to_owned())
            .spawn(move || wait(&devices, &stop, role))?;
        Ok(Self(device))
    }

    /// Says which device it is.
    pub(super) fn of(&self, record: &Record) {
        // It lives as long as this does.
        let _ = self.0.send(record.clone());
    }
}

fn wait(devices: &Receiver<Record>, stop: &Stop, role: Role) {
    let Ok(record) = devices.recv() else { return };
    while !stop.requested() {
        // It is interrupted by signals of no concern, and never fails otherwise.
        let _ = poll(&mut [PollFd::new(&stop.fd(), PollFlags::IN)], None);
    }
    let since = Instant::now();
    let mut told = String::new();
    let mounts = fs::File::open("/proc/self/mountinfo");
    loop {
        let insists = stop.insisted();
        let tried = if insists { insist(&record, role) } else { end_unused(&record) };
        let now = match tried {
            Ok(None) => return,
            Ok(Some(holders)) if role.must_leave(&holders, since) => {
                role.tell("the device is served until the machine is off");
                std::process::exit(stop.failure().code().into());
            }
            Ok(Some(holders)) => format!(
                "/dev/ublkb{} is served until it is free: {}; a second signal ends it before",
                record.spec.id.unwrap_or_default(),
                listed(&holders)
            ),
            // As without memory or descriptors: another try may succeed.
            Err(failure) => failure.line().unwrap_or_default(),
        };
        if told != now {
            role.tell(&now);
            told = now;
        }
        // A file system that was unmounted is told at once.
        let changed = mounts.iter().map(|mounts| PollFd::new(mounts, PollFlags::PRI));
        let _ = poll(&mut changed.collect::<Vec<_>>(), Timespec::try_from(TRY).ok().as_ref());
    }
}

/// Ends the device unless it is in use: then returns who uses it.
fn end_unused(record: &Record) -> Result<Option<Vec<Holder>>, Failure> {
    let mut control = Control::open().map_err(failure)?;
    let Some(id) = number(record, &mut control)? else { return Ok(None) };
    let held = stop_unused(&mut control, id)?;
    if held.is_none() {
        // Before the number is free, and another device's.
        forget_log(id);
        remove(record).map_err(failure)?;
    }
    Ok(held)
}

/// Ends the device, or leaves its end to others.
fn insist(record: &Record, role: Role) -> Result<Option<Vec<Holder>>, Failure> {
    let Some(id) = number(record, &mut Control::open().map_err(failure)?)? else { return Ok(None) };
    role.tell(&format!("/dev/ublkb{id} ends while it is in use: {}", listed(&holders::of(id))));
    if let Forced::Hangs(what) = force(id, GRACE, &mut || Ok(()))? {
        role.tell(&what);
    }
    Ok(None)
}

/// The number of a device if it is there still; another may have it by now.
fn number(record: &Record, control: &mut Control) -> Result<Option<u32>, Failure> {
    let Some(id) = record.spec.id else { return Ok(None) };
    let is_another = Directory::of(id).read().is_ok_and(|now| now.made != record.made);
    Ok(if is_another { None } else { control.find(id).map_err(failure)?.map(|found| found.id) })
}

/// What came of [`force`].
pub(super) enum Forced {
    Ended,
    /// It ends when something else lets it; what and why.
    Hangs(String),
}

/// Ends a device that may be in use: writes what is still to be written, stops and removes it. Requests that are under
/// way for longer than `grace` fail, and the device's server is killed. Calls `check` while it waits.
pub(super) fn force(
    id: u32,
    grace: Duration,
    check: &mut impl FnMut() -> Result<(), Failure>,
) -> Result<Forced, Failure> {
    let files = Directory::of(id).read().map(|record| record.spec.files).unwrap_or_default();
    let silent = write_back(id, grace, check)?;
    let grace = grace.saturating_sub(silent);
    let mut child = start(id, false)?;
    let mut ends_in = |time| match ends_within(&mut child, time, check)? {
        Some(status) if !status.success() => {
            let mut stderr = String::new();
            let _ = child.stderr.take().map(|mut errors| errors.read_to_string(&mut stderr));
            Err(Failure::failed(format!("/dev/ublkb{id} is not ended ({status}): {stderr}")))
        }
        ended => Ok(ended.is_some()),
    };
    if ends_in(grace)? {
        return Ok(Forced::Ended);
    }
    let servers = holders::servers(id);
    let ours = std::process::id();
    for server in servers.iter().filter(|pid| **pid != ours) {
        tracing::warn!(
            "the server of device {id}, process {server}, does not answer, and is killed"
        );
        kill(*server);
    }
    if servers.contains(&ours) {
        // The other process goes on.
        kill(ours);
    }
    if ends_in(AFTER)? {
        return Ok(Forced::Ended);
    }
    let listed = |all: Vec<String>| all.join(", ");
    let below = listed(files.iter().map(|file| file.display().to_string()).collect());
    let servers = listed(servers.iter().map(u32::to_string).collect());
    Ok(Forced::Hangs(format!(
        "/dev/ublkb{id} is still there: its server (process {servers}) was killed, and cannot end before {below} \
         answers; the device goes then"
    )))
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Writes what is still to be written, as long as the device answers; returns how long it has not answered.
fn write_back(
    id: u32,
    grace: Duration,
    check: &mut impl FnMut() -> Result<(), Failure>,
) -> Result<Duration, Failure> {
    let silence = SILENCE.min(grace);
    let mut child = start(id, true)?;
    let over = Instant::now() + WRITING;
    let answered = || {
        let counts = fs::read_to_string(format!("/sys/block/ublkb{id}/stat")).unwrap_or_default();
        let counts: Vec<_> = counts.split_whitespace().map(str::to_owned).collect();
        // Requests that were answered: reads, writes, discards, flushes.
        [0, 4, 11, 15].map(|place| counts.get(place).cloned())
    };
    loop {
        let before = answered();
        if ends_within(&mut child, silence, check)?.is_some() {
            return Ok(Duration::ZERO);
        }
        let answers = before != answered();
        if !answers || Instant::now() > over {
            tracing::warn!(
                "not all that is to be written to /dev/ublkb{id} is: it does not answer"
            );
            let _ = child.kill();
            return Ok(if answers { Duration::ZERO } else { silence });
        }
    }
}

/// Starts this program for a part of an end. It may hang, and then nobody waits for it.
fn start(id: u32, writes: bool) -> Result<Child, Failure> {
    let mut command = Command::new(PROGRAM);
    command.arg0(SURVIVES).args(["blk", "end", &id.to_string()]);
    if writes {
        command.arg("--write-back");
    }
    // A signal to a terminal's programs does not reach it. Whoever reads what this process says need not wait for it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only close_range, which is safe there.
    unsafe {
        command.pre_exec(|| {
            handoff_sys::inherited::keep_from_programs();
            Ok(())
        });
    }
    command
        .spawn()
        .map_err(|error| Failure::failed(format!("a process cannot be started: {error}")))
}

/// Waits for its end, at most this long.
fn ends_within(
    child: &mut Child,
    time: Duration,
    check: &mut impl FnMut() -> Result<(), Failure>,
) -> Result<Option<ExitStatus>, Failure> {
    let deadline = Instant::now() + time;
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok();
    loop {
        if let Some(status) = child.try_wait().map_err(Failure::failed)? {
            return Ok(Some(status));
        }
        check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let step = Timespec::try_from(left.min(if ended.is_some() { TRY } else { LOOK })).ok();
        let mut fds: Vec<_> = ended.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, step.as_ref());
    }
}

/// Arguments of a process for a part of an end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples: none; `handoff blk del --force` starts it.")]
pub struct EndArgs {
    /// Number of the device
    id: u32,
    /// Write what is still to be written, instead of stopping and removing the device
    #[arg(long)]
    write_back: bool,
}

/// `handoff blk end`.
pub(super) fn run(args: &EndArgs, _: &Context) -> Result<(), Failure> {
    let id = args.id;
    if args.write_back {
        holders::write_back(id);
        return Ok(());
    }
    let mut control = Control::open().map_err(failure)?;
    control.stop(id).map_err(failure)?;
    forget(&mut control, id)
}

/// Removes a device that has stopped. Its number is free when nobody has it open any more.
pub(super) fn forget(control: &mut Control, id: u32) -> Result<(), Failure> {
    // Before the number is free, and another device's.
    Directory::of(id).remove();
    forget_log(id);
    control.remove(id).map_err(failure)
}

/// Removes the log of a device that has ended well.
pub(super) fn forget_log(id: u32) {
    // Both whoever removes the device and its processes do this.
    let _ = fs::remove_file(Directory::of(id).log_path());
}
