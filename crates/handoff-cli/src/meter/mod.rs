//! `handoff meter`: counts the bytes that the kernel's CPU copies.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use handoff_command::{Context, Failure, Stop, output};
use handoff_meter::{Meter, Options, Report, Scope, is_alive};
use rustix::process::{Pid, Signal, kill_process};

mod live;

use live::Live;

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
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
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

/// Counts, and writes the report.
///
/// A stop ends the counting; the report is still written.
///
/// # Errors
///
/// [`Failure::NotPossible`] where the kernel refuses or lacks tracing; [`Failure::Failed`] if more was copied than
/// `--fail-above` allows; [`Failure::Ended`] if the counted command failed. The report is then printed all the same.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let deadline = Cell::new(None);
    let attach = |scope| {
        let options = Options { scope, paths: !args.no_paths, libc: args.libc };
        let meter = Meter::attach_with(options).map_err(Failure::not_possible)?;
        // Attaching itself takes a while.
        deadline.set(args.duration.and_then(|duration| Instant::now().checked_add(duration)));
        Ok::<_, Failure>(meter)
    };
    let over = || {
        context.stop.requested()
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
                live.tell().map_err(Failure::failed)?;
            }
            live.end();
            (meter.read().map_err(Failure::failed)?, None)
        }
        (Some(pid), _) => {
            if !is_alive(pid) {
                return Err(Failure::Usage(format!("there is no process {pid}")));
            }
            let meter = attach(Scope::Tree(pid))?;
            let mut live = Live::new(&meter, args.live, args.every);
            while is_alive(pid) && !over() {
                thread::sleep(PAUSE);
                live.tell().map_err(Failure::failed)?;
            }
            live.end();
            (meter.read().map_err(Failure::failed)?, None)
        }
        (None, Some((program, arguments))) => {
            let meter = attach(Scope::ChildrenOf(std::process::id()))?;
            let mut child = start(program, arguments, context.json)?;
            let mut live = Live::new(&meter, args.live, args.every);
            let mut ended = None;
            while ended.is_none() && !over() {
                thread::sleep(PAUSE);
                live.tell().map_err(Failure::failed)?;
                ended = child.try_wait().map_err(Failure::failed)?;
            }
            live.end();
            let report = meter.read().map_err(Failure::failed)?;
            drop(meter);
            (report, Some(finish(child, ended, &context.stop)?))
        }
    };
    if context.json { output::json(&report) } else { output::text(&report.table()) }?;
    match status.map(code_of) {
        Some(code) if code != 0 => return Err(Failure::Ended(code)),
        _ => {}
    }
    match args.fail_above {
        Some(limit) if report.totals.exceeds(limit) => Err(Failure::Failed(above(&report, limit))),
        _ => Ok(()),
    }
}

/// The directory of a control group, given as a path, or as a path below the mount point.
fn directory_of(group: &Path) -> Result<PathBuf, Failure> {
    let below = || Path::new(CGROUPS).join(group.strip_prefix("/").unwrap_or(group));
    // Every control group has this file.
    let is_one = |path: &Path| path.join("cgroup.procs").exists();
    [group.to_path_buf(), below()].into_iter().find(|path| is_one(path)).ok_or_else(|| {
        Failure::Usage(format!(
            "{} is no control group, nor is {}: `systemd-cgls` or `ls {CGROUPS}` shows which there are",
            group.display(),
            below().display()
        ))
    })
}

fn start(program: &OsString, arguments: &[OsString], json: bool) -> Result<Child, Failure> {
    let mut command = Command::new(program);
    command.args(arguments);
    if json {
        let errors = io::stderr().as_fd().try_clone_to_owned().map_err(Failure::failed)?;
        command.stdout(Stdio::from(errors));
    }
    command.spawn().map_err(|error| {
        Failure::Usage(format!("{} cannot be started: {error}", program.display()))
    })
}

/// Waits for the command, and asks it to end when we are asked.
fn finish(mut child: Child, ended: Option<ExitStatus>, stop: &Stop) -> Result<ExitStatus, Failure> {
    let mut asked = false;
    let mut ended = ended;
    loop {
        if let Some(status) = ended {
            return Ok(status);
        }
        if stop.requested() && !asked {
            asked = true;
            let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // It may have ended; its id stays taken until we wait for it.
            let _ = process.map(|process| kill_process(process, Signal::TERM));
        }
        thread::sleep(PAUSE);
        ended = child.try_wait().map_err(Failure::failed)?;
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
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
    use handoff_meter::{Place, Totals};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        meter: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
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
        let error =
            directory_of(Path::new("/proc")).expect_err("it is none").line().expect("a line");
        assert!(error.contains("/proc") && error.contains(CGROUPS), "{error}");
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(code_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code_of(ExitStatus::from_raw(15)), 128 + 15);
        assert_eq!(code_of(ExitStatus::from_raw(0)), 0);
    }
}
