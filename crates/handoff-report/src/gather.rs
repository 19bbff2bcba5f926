//! Runs the benches, one after the other, and asks what is available.
//!
//! Contracts:
//!
//! 1. A bench runs as `handoff bench` runs it, by the same command line, which the page names.
//! 2. One that cannot run, or fails, leaves its reason and does not keep the others from running.
//! 3. A stop ends all, and leaves behind what the benches leave: nothing.

use std::{
    io::{self, IsTerminal as _, Read},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::Ordering,
    thread,
    time::{Duration, SystemTime},
};

use handoff_bench::context::BenchError;
use handoff_lab::{
    Machine, StopFlag,
    command::{self, Carried},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    availability::Mechanism,
    findings::{Availability, Findings, Place, Run},
};

/// The exit code of a bench that this machine cannot run.
const NOT_POSSIBLE: i32 = 3;
/// How often what we wait for is looked at.
const PAUSE: Duration = Duration::from_millis(20);

/// A bench, the mechanism that it can't do without, and the runs that the page wants of it: its table,
/// and what draws a curve.
type Bench = (&'static str, &'static str, &'static [&'static [&'static str]]);

const BENCHES: [Bench; 5] = [
    ("send", "network namespace", &[&[], &[SIZES, "--only=^copy$|tuned$|flush=no batch=8$"]]),
    ("recv", "network namespace", &[&[], &[CHUNKS, "--only=gro=yes check=no zcrx chunk"]]),
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

/// What `handoff doctor` calls that which a bench can't do without.
pub(crate) fn mechanism(bench: &str) -> Option<&'static str> {
    BENCHES.iter().find(|(name, ..)| *name == bench).map(|(_, mechanism, _)| *mechanism)
}

/// What is to be run.
pub(crate) struct Wanted<'a> {
    /// Names of benches; none means all.
    pub(crate) only: &'a [String],
    /// In short forms.
    pub(crate) quick: bool,
    /// In the lab's guest too.
    pub(crate) lab: bool,
    /// With the copy meter's count here; in the guest it always is.
    pub(crate) meter: bool,
}

/// Runs what is wanted.
///
/// # Errors
///
/// [`BenchError::Stopped`]; all else is among the findings.
pub(crate) fn gather(wanted: &Wanted<'_>, stop: &StopFlag) -> Result<Findings, BenchError> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let lines = command_lines(wanted);
    let asked = handoff_probe::all().iter().map(Mechanism::from).collect();
    let mut availability = vec![Availability { place: Place::Native, mechanisms: asked }];
    if wanted.lab {
        tell("handoff doctor, in the lab");
        if let Some(mechanisms) = ask_guest(stop)? {
            availability.push(Availability { place: Place::Emulated, mechanisms });
        }
    }
    let mut runs = Vec::with_capacity(lines.len());
    for (number, (place, words)) in lines.iter().enumerate() {
        tell(&format!("{} of {}: handoff {}", number + 1, lines.len(), words.join(" ")));
        runs.push(run(*place, words, stop)?);
    }
    Ok(Findings { version: env!("CARGO_PKG_VERSION").to_owned(), date, availability, runs })
}

/// What takes so long, on a terminal.
fn tell(step: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{step}");
    }
}

/// What follows `handoff`, for each run.
fn command_lines(wanted: &Wanted<'_>) -> Vec<(Place, Vec<String>)> {
    let places = Place::ALL.into_iter().filter(|&place| place == Place::Native || wanted.lab);
    let asked = |name: &str| wanted.only.is_empty() || wanted.only.iter().any(|one| one == name);
    let of_place = |place| {
        let benches = BENCHES.into_iter().filter(|(name, ..)| asked(name));
        let line = move |name: &str, options: &[&str]| {
            let quick = wanted.quick.then_some("--quick");
            let beside = match place {
                Place::Emulated => Some("--lab"),
                Place::Native => wanted.meter.then_some("--meter"),
            };
            let words = ["bench", name].into_iter().chain(beside).chain(quick);
            (place, words.chain(options.iter().copied()).map(str::to_owned).collect())
        };
        benches.flat_map(move |(name, _, runs)| runs.iter().map(move |options| line(name, options)))
    };
    places.flat_map(of_place).collect()
}

/// Runs one bench, as a process of its own: users other than root enter a user namespace in it, which
/// nothing else is to be in.
fn run(place: Place, words: &[String], stop: &StopFlag) -> Result<Run, BenchError> {
    let not_run = |error: io::Error| {
        BenchError::Failed(format!("handoff {} cannot be run: {error}", words.join(" ")))
    };
    let mut child = Command::new("/proc/self/exe")
        .arg("--json")
        .args(words)
        // A terminal's signals come to us, who pass on the first: a second would keep it from
        // cleaning up.
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
    if stop.load(Ordering::Relaxed) {
        return Err(BenchError::Stopped);
    }
    let said = String::from_utf8_lossy(&err).into_owned();
    let reason = || {
        let line = said.lines().rev().find_map(|line| line.strip_prefix("handoff: "));
        line.map_or_else(|| format!("the bench ended with {status}"), str::to_owned)
    };
    Ok(Run {
        place,
        bench: words[1].clone(),
        origin: format!("handoff {}", words.join(" ")),
        // One that failed in some of its rows has printed the others.
        report: serde_json::from_slice(&out).ok(),
        failed: !matches!(status.code(), Some(0 | NOT_POSSIBLE)),
        problem: (!status.success()).then(reason),
    })
}

/// What a pipe carries, to its end.
fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What came before an error is all there is.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

/// Until it has ended, which a stop asks it for.
fn wait(child: &mut Child, stop: &StopFlag) -> io::Result<ExitStatus> {
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !asked {
            kill_process(Pid::from_child(child), Signal::TERM)?;
            asked = true;
        }
        thread::sleep(PAUSE);
    }
}

/// None where the lab cannot run; the benches then say why.
fn ask_guest(stop: &StopFlag) -> Result<Option<Vec<Mechanism>>, BenchError> {
    let words = ["doctor", "--json"];
    let nothing = Carried::default();
    match command::run_ourselves(&Machine::default(), &nothing, words, None, stop) {
        Ok((_, output)) => Ok(serde_json::from_slice(&output).ok()),
        Err(handoff_lab::Error::Stopped) => Err(BenchError::Stopped),
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
            for (place, words) in lines {
                let line = Line::try_parse_from(&words).unwrap_or_else(|error| panic!("{error}"));
                let debug = format!("{:?}", line.args);
                assert!(debug.contains(&format!("lab: {}", place == Place::Emulated)), "{debug}");
                assert!(debug.contains(&format!("quick: {quick}")), "{debug}");
                let meter = quick && place == Place::Native;
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
            [(Place::Native, vec!["bench".into(), "block".into(), "--quick".into()])]
        );
    }
}
