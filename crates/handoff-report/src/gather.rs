//! Runs the benches, one after the other, and asks the probe what is available.
//!
//! Contracts:
//!
//! 1. A bench runs by the command line of `handoff bench`, which the page shows.
//! 2. A bench that cannot run, or fails, leaves its reason and does not stop the others.
//! 3. A stop ends everything, and leaves nothing behind.

use std::{
    io::{self, IsTerminal as _, Read},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use handoff_command::{Failure, Stop};
use handoff_lab::{
    Machine,
    command::{self, Carried},
};
use handoff_probe::Mechanism;
use handoff_sys::companion::PRODUCT;
use rustix::process::{Pid, Signal, kill_process};

use crate::findings::{Availability, Environment, Findings, Run};

/// The exit code of a bench that cannot run on this machine.
const NOT_POSSIBLE: i32 = 3;
/// The time between two checks of a wait.
const PAUSE: Duration = Duration::from_millis(20);

/// A bench, the mechanism that it cannot do without, and the runs that the page needs: its table, and
/// the runs for a curve.
type Bench = (&'static str, &'static str, &'static [&'static [&'static str]]);

const BENCHES: [Bench; 5] = [
    ("send", "network namespace", &[&[], &[SIZES, "--only=^copy$|tuned$|flush=no batch=8$"]]),
    ("recv", "network namespace", &[&[], &[CHUNKS, r"--only=gro=yes check=no zcrx chunk=\w+$"]]),
    ("splice", "io_uring", &[&[]]),
    ("rds", "network namespace", &[&[]]),
    ("block", "ublk", &[&[]]),
];
const SIZES: &str = "--sizes=1k,2k,4k,8k,16k,32k,64k";
const CHUNKS: &str = "--chunks=4k,8k,16k,32k,64k";

/// The names of all benches.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    BENCHES.iter().map(|(name, ..)| *name)
}

/// The mechanism that a bench cannot do without, by its name in `handoff doctor`.
pub(crate) fn mechanism(bench: &str) -> Option<&'static str> {
    BENCHES.iter().find(|(name, ..)| *name == bench).map(|(_, mechanism, _)| *mechanism)
}

/// What the user wants to run.
pub(crate) struct Wanted<'a> {
    /// Names of benches; empty means all.
    pub(crate) only: &'a [String],
    /// Whether to run the short forms.
    pub(crate) quick: bool,
    /// Whether to run in the lab's guest, too.
    pub(crate) lab: bool,
    /// Whether to count with the copy meter on this machine. In the guest the benches always do.
    pub(crate) meter: bool,
}

/// Runs the benches.
///
/// # Errors
///
/// [`Failure::Stopped`]; everything else is among the findings.
pub(crate) fn gather(wanted: &Wanted<'_>, stop: &Stop) -> Result<Findings, Failure> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let lines = command_lines(wanted);
    let asked = handoff_probe::all().iter().map(Mechanism::from).collect();
    let mut availability =
        vec![Availability { environment: Environment::Native, mechanisms: asked }];
    if wanted.lab {
        tell("handoff doctor, in the lab");
        if let Some(mechanisms) = ask_guest(stop)? {
            availability.push(Availability { environment: Environment::Emulated, mechanisms });
        }
    }
    let mut runs = Vec::with_capacity(lines.len());
    for (number, (environment, words)) in lines.iter().enumerate() {
        tell(&format!("{} of {}: handoff {}", number + 1, lines.len(), words.join(" ")));
        runs.push(run(*environment, words, stop)?);
    }
    Ok(Findings { version: env!("CARGO_PKG_VERSION").to_owned(), date, availability, runs })
}

/// Says on a terminal what takes so long.
fn tell(step: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{step}");
    }
}

/// The arguments of `handoff` for each run.
fn command_lines(wanted: &Wanted<'_>) -> Vec<(Environment, Vec<String>)> {
    let environments = Environment::ALL
        .into_iter()
        .filter(|&environment| environment == Environment::Native || wanted.lab);
    let asked = |name: &str| wanted.only.is_empty() || wanted.only.iter().any(|one| one == name);
    let of_environment = |environment| {
        let benches = BENCHES.into_iter().filter(|(name, ..)| asked(name));
        let line = move |name: &str, options: &[&str]| {
            let quick = wanted.quick.then_some("--quick");
            let beside = match environment {
                Environment::Emulated => Some("--lab"),
                Environment::Native => wanted.meter.then_some("--meter"),
            };
            let words = ["bench", name].into_iter().chain(beside).chain(quick);
            (environment, words.chain(options.iter().copied()).map(str::to_owned).collect())
        };
        benches.flat_map(move |(name, _, runs)| runs.iter().map(move |options| line(name, options)))
    };
    environments.flat_map(of_environment).collect()
}

/// Runs one bench in a process of its own: for users other than root it enters a user namespace, which
/// nothing else should be in.
fn run(environment: Environment, words: &[String], stop: &Stop) -> Result<Run, Failure> {
    let not_run = |error: io::Error| {
        Failure::Failed(format!("handoff {} cannot be run: {error}", words.join(" ")))
    };
    let mut child = Command::new("/proc/self/exe")
        .arg("--json")
        .args(words)
        // A terminal's signals come to us, and we pass on the first: a second would stop the bench's clean-up.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (status, out, err) = thread::scope(|scope| {
        let out = scope.spawn(|| read(out));
        let err = scope.spawn(|| read(err));
        let status = wait(&mut child, stop);
        (status, out.join().unwrap_or_default(), err.join().unwrap_or_default())
    });
    let status = status.map_err(not_run)?;
    if stop.requested() {
        return Err(stop.failure());
    }
    let stderr = String::from_utf8_lossy(&err).into_owned();
    let reason = || {
        let line = stderr.lines().rev().find_map(|line| line.strip_prefix("handoff: "));
        line.map_or_else(|| format!("the bench ended with {status}"), str::to_owned)
    };
    Ok(Run {
        environment,
        bench: words[1].clone(),
        origin: format!("handoff {}", words.join(" ")),
        // A bench that failed in some rows has printed the others.
        report: serde_json::from_slice(&out).ok(),
        failed: !matches!(status.code(), Some(0 | NOT_POSSIBLE)),
        problem: (!status.success()).then(reason),
    })
}

/// Reads a pipe to its end.
fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // After an error, take what came before it.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

/// Waits until the child has ended. A stop asks the child to end.
fn wait(child: &mut Child, stop: &Stop) -> io::Result<ExitStatus> {
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.requested() && !asked {
            kill_process(Pid::from_child(child), Signal::TERM)?;
            asked = true;
        }
        thread::sleep(PAUSE);
    }
}

/// Asks `handoff doctor` in the guest. Returns `None` where the lab cannot run; the benches then say why.
fn ask_guest(stop: &Stop) -> Result<Option<Vec<Mechanism>>, Failure> {
    let (machine, nothing) = (Machine::default(), Carried::default());
    match command::run_program(&machine, &nothing, PRODUCT, ["doctor", "--json"], None, stop.flag())
    {
        Ok((_, output)) => Ok(serde_json::from_slice(&output).ok()),
        Err(handoff_lab::Error::Stopped) => Err(stop.failure()),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use handoff_bench::command::BenchArgs;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    #[test]
    fn every_command_line_is_understood() {
        for quick in [false, true] {
            let wanted = Wanted { only: &[], quick, lab: true, meter: quick };
            let lines = command_lines(&wanted);
            assert_eq!(
                lines.len(),
                2 * BENCHES.iter().map(|(_, _, runs)| runs.len()).sum::<usize>()
            );
            for (environment, words) in lines {
                let line = Line::try_parse_from(&words).unwrap_or_else(|error| panic!("{error}"));
                let debug = format!("{:?}", line.args);
                assert!(
                    debug.contains(&format!("lab: {}", environment == Environment::Emulated)),
                    "{debug}"
                );
                assert!(debug.contains(&format!("quick: {quick}")), "{debug}");
                let meter = quick && environment == Environment::Native;
                assert!(debug.contains(&format!("meter: {meter}")), "{debug}");
            }
        }
    }

    #[test]
    fn doctor_knows_what_a_bench_cannot_do_without() {
        let known = handoff_probe::general();
        for mechanism in names().map(|name| mechanism(name).unwrap()) {
            assert!(known.iter().any(|one| one.mechanism == mechanism), "{mechanism}");
        }
    }

    #[test]
    fn only_what_is_asked_for_is_run() {
        let only = ["block".to_owned()];
        let lines = command_lines(&Wanted { only: &only, quick: true, lab: false, meter: false });
        assert_eq!(
            lines,
            [(Environment::Native, vec!["bench".into(), "block".into(), "--quick".into()])]
        );
    }
}
