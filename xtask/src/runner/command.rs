//! `cargo xtask run-tests`: the command line of the runner.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use handoff_lab::command::GuestOptions;
use handoff_lab::{Error, Result, StopFlag, Trying};
use rustix::fs::{FlockOperation, flock};

use crate::may_skip::MaySkip;
use crate::plan::Plan;
use crate::report::{TestResult, Verdict};
use crate::selection::{Part, Program, Stage, programs_from_cargo};

const AFTER_HELP: &str = "\
A stage is WHERE:NEEDS[:NAMES]. WHERE is host or a kernel's name. NEEDS are some of hermetic,
native, guest, linux73, lab and soak: the modules that a test's path names (none: hermetic).
NAMES are beginnings of the tests' names, with the program's name in front. A - in front leaves
those tests out.

Examples:
  cargo test --no-run --message-format=json | cargo xtask run-tests --stage host:hermetic,native,lab \\
      --stage 7.2:native,guest --stage bookworm:native:send:: --may-skip lab/may-skip.txt
  cargo xtask run-tests --stage 7.2:guest target/debug/deps/guest-0123456789abcdef

Exit code 0: all passed or were skipped as declared; 1: some failed.";

/// The arguments of `cargo xtask run-tests`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Where tests run, and which, as described below; may be repeated
    #[arg(long, required = true, value_name = "WHERE:NEEDS[:NAMES]")]
    pub stage: Vec<Stage>,
    /// Run only this one of so many parts of each stage's tests, for instance 2/3
    #[arg(long, value_name = "NUMBER/PARTS", default_value_t = Part::WHOLE)]
    pub part: Part,
    /// File of the skips that are foreseen; any other skip is a failure
    #[arg(long, value_name = "FILE")]
    pub may_skip: Option<PathBuf>,
    /// Seconds that one test may take; if a test in a guest takes longer, the reason shows where its tasks
    /// stood
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
    /// Run each test this many times
    #[arg(long, value_name = "TIMES", default_value_t = 1)]
    pub repeat: usize,
    /// Append each result to this file at once, and run only tests that have none there, so that an
    /// interrupted run of the same programs goes on
    #[arg(long, value_name = "FILE", conflicts_with = "repeat")]
    pub results: Option<PathBuf>,
    /// For each test that fails, write all that is known to a file in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub keep: Option<PathBuf>,
    /// Write the report as one JSON object to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The guest; the stage's kernel replaces --kernel.
    #[command(flatten)]
    pub guest: GuestOptions,
    /// Test programs; without any, the messages of cargo test --no-run --message-format=json are
    /// read from standard input
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}

/// Runs the tests, and returns the exit code: 0 if none failed.
///
/// # Errors
///
/// See [`Error`].
pub fn run(args: &Args, stop: &StopFlag) -> Result<u8> {
    let (programs, companions) = if args.programs.is_empty() {
        let mut messages = String::new();
        std::io::stdin().read_to_string(&mut messages).trying("standard input")?;
        programs_from_cargo(&messages)?
    } else {
        (args.programs.iter().map(|path| program(path)).collect::<Result<_>>()?, Vec::new())
    };
    let may_skip = match &args.may_skip {
        Some(path) => {
            let text = std::fs::read_to_string(path).trying(path.display())?;
            MaySkip::parse(&text)
                .map_err(|error| Error::Usage(format!("{}: {error}", path.display())))?
        }
        None => MaySkip::default(),
    };
    let (known, mut journal) = match &args.results {
        Some(path) => {
            let (known, journal) = earlier(path).trying(path.display())?;
            (known, Some(journal))
        }
        None => (Vec::new(), None),
    };
    let prepared = args.guest.prepare(stop)?;
    let plan = Plan {
        programs,
        companions,
        stages: args.stage.clone(),
        part: args.part,
        may_skip,
        timeout: Duration::from_secs(args.timeout),
        repeat: args.repeat,
        known,
        keep: args.keep.clone(),
        machine: prepared.machine.clone(),
    };
    let mut lost = None;
    let report = crate::workers::run(&plan, stop, |test| {
        show(test);
        if let (Some(journal), None, true) = (&mut journal, &lost, test.ran) {
            lost = append(journal, test).err();
        }
    })?;
    if let Some(path) = &args.report {
        let json = serde_json::to_vec(&report).map_err(Error::failed)?;
        std::fs::write(path, json).trying(path.display())?;
    }
    if let (Some(error), Some(path)) = (lost, &args.results) {
        return Err(error).trying(path.display());
    }
    println!("{report}");
    if let Some((place, reason)) = report.left_out.first_key_value() {
        return Err(Error::NotPossible(format!("no guest for {place}: {reason}")));
    }
    Ok(u8::from(report.failed > 0))
}

/// The results in a file, and the file to append more; nobody else may write to it. A last line that a killed run did
/// not finish is dropped.
fn earlier(path: &Path) -> io::Result<(Vec<TestResult>, File)> {
    const BEGIN: &[u8] = b"{\"place\":";
    let mut file = File::options().read(true).append(true).create(true).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let (mut known, mut whole) = (Vec::new(), 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let is_result = line.starts_with(BEGIN) || BEGIN.starts_with(line);
        if line.ends_with(b"\n") && is_result {
            known.push(serde_json::from_slice(line)?);
            whole += line.len();
        } else if !is_result {
            return Err(io::Error::other("it has something else than results of tests"));
        }
    }
    file.set_len(whole as u64)?;
    Ok((known, file))
}

fn append(journal: &mut File, test: &TestResult) -> io::Result<()> {
    let line = serde_json::to_string(test)? + "\n";
    journal.write_all(line.as_bytes())
}

fn show(test: &TestResult) {
    let TestResult { place, name, verdict, seconds, processor_seconds, kept, .. } = test;
    match verdict {
        Verdict::Passed => {
            println!("pass  [{place}] {name}  {seconds:.1} s, {processor_seconds:.1} computing")
        }
        Verdict::Skipped { reason } => println!("skip  [{place}] {name}: {reason}"),
        Verdict::Failed { reason } => {
            println!("FAIL  [{place}] {name}  {seconds:.1} s");
            for line in reason.lines() {
                println!("      {line}");
            }
            if let Some(kept) = kept {
                println!("      all that is known: {}", kept.display());
            }
        }
    }
}

/// A program, named by its path: Cargo puts a hash behind its name.
fn program(path: &Path) -> Result<Program> {
    let path = path
        .canonicalize()
        .map_err(|error| Error::Usage(format!("test program {}: {error}", path.display())))?;
    let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name).to_owned();
    let directory = std::env::current_dir().trying("working directory")?;
    Ok(Program { name, path, directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_outlive_a_run_that_was_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results");
        let result = |name: &str, verdict| TestResult {
            place: "host".to_owned(),
            name: name.to_owned(),
            verdict,
            seconds: 1.5,
            processor_seconds: 1.0,
            ran: true,
            kept: None,
        };
        let failed = Verdict::Failed { reason: "two\nlines".to_owned() };
        let all = [result("a::b", Verdict::Passed), result("a::c", failed)];
        let (known, mut journal) = earlier(&path).expect("opens");
        assert!(known.is_empty());
        for test in &all {
            append(&mut journal, test).expect("is written");
        }
        // Killed while it wrote.
        journal.write_all(b"{\"place\":\"ho").expect("is written");
        drop(journal);
        let (known, mut journal) = earlier(&path).expect("opens");
        assert_eq!(known, all);
        append(&mut journal, &all[0]).expect("is written");
        assert!(earlier(&path).is_err(), "two write to it");
        drop(journal);
        assert_eq!(earlier(&path).expect("opens").0.len(), 3);
        for other in ["no result\n", "{\"passed\":3}"] {
            std::fs::write(&path, other).expect("is written");
            assert!(earlier(&path).is_err(), "{other}");
            assert_eq!(std::fs::read_to_string(&path).expect("stays"), other);
        }
    }
}
