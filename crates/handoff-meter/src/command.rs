//! The subcommand `handoff meter`.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use crate::counters::ReadError;
use crate::live::Live;
use crate::meter::{Meter, Unavailable};
use crate::options::Options;
use crate::report::Report;
use crate::scope::{self, Scope};

/// Where control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// How often a wait checks what it waits for.
const PAUSE: Duration = Duration::from_millis(20);

const AFTER_HELP: &str = "\
Without a process, a control group and a command, the meter counts the whole machine until
--duration is over or you press Ctrl-C. It counts a process until the process ends.

Exit codes: 0 done; 1 more than --fail-above was copied, or counting failed; 2 usage; 3 the
kernel refuses or lacks tracing. If COMMAND fails, its own exit code; 128 + N if signal N killed
it.

Examples:
  handoff meter -- cp big other                    what a command copies
  handoff meter --fail-above 0.01 -- ./server      fails if more than 1 % of the bytes was copied
  handoff meter -p 4242 --duration 10s             a running process and its children
  handoff meter --cgroup system.slice/nginx.service --every 1s   a service, as it goes
  handoff meter --live                             the whole machine, as it goes and where
  handoff meter --libc -- ./server                 with the copies that it makes itself
  handoff meter --duration 5s --json               the whole machine, for a program";

/// Count the bytes that the kernel's CPU copies, and where
///
/// Counts, by BPF, the bytes that the kernel copies from buffer to buffer for a process tree or for
/// the whole machine, beside the bytes that go through files and sockets.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct MeterArgs {
    /// Count for this process and all its descendants
    #[arg(short, long, value_name = "PID", conflicts_with = "command",
          value_parser = clap::value_parser!(u32).range(1..=i32::MAX as i64))]
    pub pid: Option<u32>,
    /// Count for the processes in this control group and those below it: its directory, or its path
    /// below /sys/fs/cgroup
    #[arg(short, long, value_name = "GROUP", conflicts_with_all = ["command", "pid"])]
    pub cgroup: Option<PathBuf>,
    /// Print the sums so far on standard error, at this interval, such as 1s
    #[arg(long, value_name = "TIME", value_parser = parse_pause)]
    pub every: Option<Duration>,
    /// Show on the terminal what was copied, lately and in all, and where: once a second, or at the interval
    /// of --every. If standard error is no terminal, print the lines of --every
    #[arg(short, long)]
    pub live: bool,
    /// Stop counting after this time, such as 10s or 2min; COMMAND then goes on uncounted
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Fail if more than this share of the moved bytes was copied, such as 0.01
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub fail_above: Option<f64>,
    /// Leave out call paths; counting then costs several times less
    #[arg(long)]
    pub no_paths: bool,
    /// Count what the C library copies in user space, too (memcpy, memmove, mempcpy); this slows down
    /// programs that call it
    #[arg(long)]
    pub libc: bool,
    /// The command to run and count for; with --json its standard output goes to standard error
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How the command is called.
pub struct Context<'a> {
    /// Whether to print one JSON object on `out` and nothing else.
    pub json: bool,
    /// Set when the user wants the command to end (SIGINT, SIGTERM).
    pub stop: &'a AtomicBool,
    /// Where the report goes.
    pub out: &'a mut dyn Write,
}

/// Why `handoff meter` fails. Each text is one line.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// The command line makes no sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The kernel refuses or lacks tracing: exit code 3.
    #[error(transparent)]
    NotPossible(#[from] Unavailable),
    /// Counting failed: exit code 1.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// More was copied than `--fail-above` allows: exit code 1. The report has been written.
    #[error("{0}")]
    AboveLimit(String),
    /// The counted command failed with this code and printed its own message. The report has been
    /// written.
    #[error("the command ended with exit code {0}")]
    Ended(u8),
    /// The report could not be written to `out`.
    #[error("the result could not be written: {0}")]
    Output(#[source] io::Error),
}

/// Counts, and writes the report.
///
/// A stop ends the counting; the report is still written.
///
/// # Errors
///
/// See [`MeterError`].
pub fn run(args: &MeterArgs, context: &mut Context<'_>) -> Result<(), MeterError> {
    let deadline = Cell::new(None);
    let attach = |scope| {
        let meter = Meter::attach_with(Options { scope, paths: !args.no_paths, libc: args.libc })?;
        // Attaching itself takes a while.
        deadline.set(args.duration.and_then(|duration| Instant::now().checked_add(duration)));
        Ok::<_, Unavailable>(meter)
    };
    let over = || {
        context.stop.load(Ordering::Acquire)
            || deadline.get().is_some_and(|deadline| Instant::now() >= deadline)
    };
    let (report, status) = match (args.pid, args.command.split_first()) {
        (None, None) => {
            let scope = match &args.cgroup {
                Some(group) => Scope::Cgroup(directory_of(group)?),
                None => Scope::Machine,
            };
            let meter = attach(scope)?;
            let mut live = Live::new(&meter, args.live, args.every);
            while !over() {
                thread::sleep(PAUSE);
                live.tell()?;
            }
            live.end();
            (meter.read()?, None)
        }
        (Some(pid), _) => {
            if !scope::is_alive(pid) {
                return Err(MeterError::Usage(format!("there is no process {pid}")));
            }
            let meter = attach(Scope::Tree(pid))?;
            let mut live = Live::new(&meter, args.live, args.every);
            while scope::is_alive(pid) && !over() {
                thread::sleep(PAUSE);
                live.tell()?;
            }
            live.end();
            (meter.read()?, None)
        }
        (None, Some((program, arguments))) => {
            let meter = attach(Scope::ChildrenOf(std::process::id()))?;
            let mut child = start(program, arguments, context.json)?;
            let mut live = Live::new(&meter, args.live, args.every);
            let mut ended = None;
            while ended.is_none() && !over() {
                thread::sleep(PAUSE);
                live.tell()?;
                ended = child.try_wait().map_err(MeterError::Output)?;
            }
            live.end();
            let report = meter.read()?;
            drop(meter);
            (report, Some(finish(child, ended, context.stop)?))
        }
    };
    write(&report, context).map_err(MeterError::Output)?;
    match status.map(code_of) {
        Some(code) if code != 0 => return Err(MeterError::Ended(code)),
        _ => {}
    }
    match args.fail_above {
        Some(limit) if report.totals.exceeds(limit) => {
            Err(MeterError::AboveLimit(above(&report, limit)))
        }
        _ => Ok(()),
    }
}

/// The directory of a control group, given as a path, or as a path below the mount point.
fn directory_of(group: &Path) -> Result<PathBuf, MeterError> {
    let below = || Path::new(CGROUPS).join(group.strip_prefix("/").unwrap_or(group));
    // Every control group has this file.
    let is_one = |path: &Path| path.join("cgroup.procs").exists();
    [group.to_path_buf(), below()].into_iter().find(|path| is_one(path)).ok_or_else(|| {
        MeterError::Usage(format!(
            "{} is no control group, nor is {}: `systemd-cgls` or `ls {CGROUPS}` shows which there are",
            group.display(),
            below().display()
        ))
    })
}

fn start(program: &OsString, arguments: &[OsString], json: bool) -> Result<Child, MeterError> {
    let mut command = Command::new(program);
    command.args(arguments);
    if json {
        let errors = io::stderr().as_fd().try_clone_to_owned().map_err(MeterError::Output)?;
        command.stdout(Stdio::from(errors));
    }
    command.spawn().map_err(|error| {
        MeterError::Usage(format!("{} cannot be started: {error}", program.display()))
    })
}

/// Waits for the command, and asks it to end when we are asked.
fn finish(
    mut child: Child,
    ended: Option<ExitStatus>,
    stop: &AtomicBool,
) -> Result<ExitStatus, MeterError> {
    let mut asked = false;
    let mut ended = ended;
    loop {
        if let Some(status) = ended {
            return Ok(status);
        }
        if stop.load(Ordering::Acquire) && !asked {
            asked = true;
            let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // It may have ended; its id stays taken until we wait for it.
            let _ = process.map(|process| kill_process(process, Signal::TERM));
        }
        thread::sleep(PAUSE);
        ended = child.try_wait().map_err(MeterError::Output)?;
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn write(report: &Report, context: &mut Context<'_>) -> io::Result<()> {
    if context.json {
        serde_json::to_writer_pretty(&mut *context.out, report)?;
        context.out.write_all(b"\n")?;
    } else {
        context.out.write_all(report.table().as_bytes())?;
    }
    context.out.flush()
}

fn above(report: &Report, limit: f64) -> String {
    let share = match report.share {
        Some(share) => format!("a share of {share:.4} was copied"),
        None => format!("{} bytes were copied and none moved", report.totals.copied_bytes),
    };
    let most = report.places.first().map_or_else(String::new, |place| {
        format!("; most of it, {} bytes, by {}", place.bytes, place.function)
    });
    format!("{share}, above {limit}{most}")
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < PAUSE { Err(format!("the shortest is {} ms", PAUSE.as_millis())) } else { Ok(time) }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share.is_finite() && share >= 0.0 => Ok(share),
        _ => Err("expected a share of the moved bytes, such as 0.01".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;
    use crate::report::{Place, Totals};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        meter: MeterArgs,
    }

    fn parse(line: &str) -> Result<MeterArgs, clap::Error> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.meter)
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let args = parse("x --duration 2s --fail-above 0.01 -- cp -p a b").expect("parses");
        assert_eq!(args.command, ["cp", "-p", "a", "b"]);
        assert_eq!(args.duration, Some(Duration::from_secs(2)));
        assert_eq!(args.fail_above, Some(0.01));
        assert_eq!(args.pid, None);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "x -p 1 -- true",
            "x -p 0",
            "x --fail-above -1",
            "x --fail-above nan",
            "x ls",
            "x --every 1ms",
            "x --cgroup a -p 1",
            "x --live 1s",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_failure_names_share_limit_and_place() {
        let totals = Totals { copied_bytes: 50, moved_bytes: 100, ..Totals::default() };
        let place = Place { function: "copy".to_owned(), path: Vec::new(), bytes: 50, calls: 1 };
        let report =
            Report { totals, share: totals.share(), places: vec![place], ..Report::default() };
        let line = above(&report, 0.01);
        assert_eq!(line, "a share of 0.5000 was copied, above 0.01; most of it, 50 bytes, by copy");
    }

    #[test]
    fn what_is_no_control_group_is_said() {
        let error = directory_of(Path::new("/proc")).expect_err("it is none").to_string();
        assert!(error.contains("/proc") && error.contains(CGROUPS), "{error}");
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(code_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code_of(ExitStatus::from_raw(15)), 128 + 15);
        assert_eq!(code_of(ExitStatus::from_raw(0)), 0);
    }
}
