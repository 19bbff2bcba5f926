//! `handoff lab run` and `handoff lab shell`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use handoff_sys::hangup;

use super::guest_options::{GuestOptions, split_pair};
use crate::console::Fault;
use crate::error::{Error, Result};
use crate::guest::{self, Guest};
use crate::job::{self, Ending, Input, Job, Outcome, Stream};
use crate::machine::Machine;
use crate::tool::StopFlag;

/// Exit code where a command in a guest was ended at its time-out, or hung together with its guest.
pub const TIMED_OUT: u8 = 124;

const AFTER_HELP: &str = "\
Examples:
  handoff lab run -- handoff doctor
  handoff lab run --put data.bin --get result.txt -- sh -c 'sha256sum data.bin > result.txt'
  handoff lab run --timeout 60 --keep -- sh -c 'modprobe ublk_drv && handoff doctor'

Exit codes: those of the command in the guest, 128 + N when signal N killed it, and
  124  it was ended at its time-out
  125  the kernel reported a warning, an oops, a stall, a hung task or a panic (shown on stderr)
  126  it could not be started
  1, 2, 3, 130  the lab failed, was used wrongly, is not possible on this machine, was stopped";

/// The arguments of `handoff lab run`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestOptions,
    /// At the end, copy a file or directory of the guest to TARGET on the host, or to the current directory; may
    /// be repeated
    #[arg(long, value_name = "PATH[:TARGET]")]
    pub get: Vec<String>,
    /// Set an environment variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// End the command after this many seconds that the host left to the guest, and show where its tasks stood
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// After a failure, open a shell in the guest before it is switched off
    #[arg(long)]
    pub keep: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// The arguments of `handoff lab shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestOptions,
}

pub(super) fn run(args: &RunArgs, stop: &StopFlag) -> Result<u8> {
    let prepared = args.guest.prepare(stop)?;
    let mut guest = Guest::boot(&prepared.machine, stop)?;
    let job = Job {
        arguments: args.command.iter().map(|word| word.clone().into_vec()).collect(),
        environment: args.env.clone(),
        input: Input::Inherit,
        timeout: args.timeout.map(Duration::from_secs),
        tracks: false,
    };
    let outcome = guest.run(&job, pass_on)?;
    if alive(&outcome.ending) {
        for pair in &args.get {
            let (source, target) = split_pair(pair);
            guest.get(&Path::new("/root").join(source), &PathBuf::from(target.unwrap_or(".")))?;
        }
        if args.keep && !outcome.success() && guest::on_terminal() {
            hangup::say("handoff lab: the command failed; a shell in the guest, leave it to end:");
            guest.run(&shell_job(), pass_on)?;
        }
    }
    conclude(guest, outcome)
}

/// Boots a guest for one command with our standard input, and ends the command at its time-out, if any;
/// `output` gets the command's output.
pub(super) fn run_once(
    machine: &Machine,
    arguments: Vec<Vec<u8>>,
    timeout: Option<Duration>,
    stop: &StopFlag,
    output: impl FnMut(Stream, &[u8]) -> io::Result<()>,
) -> Result<u8> {
    let mut guest = Guest::boot(machine, stop)?;
    let job = Job { arguments, input: Input::Inherit, timeout, ..Job::default() };
    let outcome = guest.run(&job, output)?;
    conclude(guest, outcome)
}

/// Says what went wrong, switches the guest off, and finds the exit code.
fn conclude(guest: Guest, outcome: Outcome) -> Result<u8> {
    let Outcome { ending, mut fault, .. } = outcome;
    match &ending {
        Ending::Hung(hang) => explain("the guest hung and was ended", &hang.to_string()),
        Ending::GuestDied(lines) if fault.is_none() => {
            explain("the guest died; its last console lines:", &lines.join("\n"));
        }
        Ending::NotStarted(reason) => {
            hangup::say(format_args!("handoff lab: the command could not be started: {reason}"));
        }
        Ending::TimedOut(tasks) => {
            explain("the command was ended at its time-out", job::where_tasks_stood(tasks));
        }
        Ending::GuestDied(_) | Ending::Exited(_) | Ending::Killed(_) => {}
    }
    if alive(&ending) {
        let late = guest.power_off()?;
        fault = fault.or(late);
    }
    match fault {
        Some(fault) => {
            report(&fault);
            Ok(125)
        }
        None => Ok(code_of(&ending)),
    }
}

fn alive(ending: &Ending) -> bool {
    !matches!(ending, Ending::Hung(_) | Ending::GuestDied(_))
}

pub(super) fn shell(args: &ShellArgs, stop: &StopFlag) -> Result<u8> {
    if !guest::on_terminal() {
        return Err(Error::Usage(
            "a shell needs a terminal; without one, use: handoff lab run -- COMMAND".to_owned(),
        ));
    }
    let prepared = args.guest.prepare(stop)?;
    let mut guest = Guest::boot(&prepared.machine, stop)?;
    hangup::say(format_args!("handoff lab: {} is up; Ctrl-D or exit ends it", guest.release));
    let outcome = guest.run(&shell_job(), pass_on)?;
    conclude(guest, outcome)
}

fn shell_job() -> Job {
    Job { input: Input::Terminal, ..Job::new(["bash", "-i"]) }
}

fn code_of(ending: &Ending) -> u8 {
    match ending {
        Ending::Exited(code) => *code,
        Ending::Killed(signal) => 128 + signal,
        Ending::NotStarted(_) => 126,
        Ending::TimedOut(_) | Ending::Hung(_) => TIMED_OUT,
        Ending::GuestDied(_) => 125,
    }
}

/// To our own standard output and error.
pub(super) fn pass_on(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Output => {
            let mut output = io::stdout().lock();
            output.write_all(bytes)?;
            output.flush()
        }
        Stream::Error => io::stderr().lock().write_all(bytes),
    }
}

fn explain(what: &str, text: &str) {
    hangup::say(format_args!("handoff lab: {what}"));
    for line in text.lines() {
        hangup::say(format_args!("  {line}"));
    }
}

fn report(fault: &Fault) {
    hangup::say(format_args!("handoff lab: the kernel reported: {}", fault.headline));
    for line in &fault.lines {
        hangup::say(format_args!("  {line}"));
    }
}
