//! `cargo xtask test`: checks, then tests in tiers, counted.
//!
//! Contracts:
//! - the modules in a test's path say what it needs: `native` (root, namespaces, a recent kernel),
//!   `guest` (the lab's kernel), `soak` (hours); a test with none of them is hermetic and green on
//!   any Linux, as any user;
//! - tiers run in order: checks (format and lints), hermetic and native on this machine, guest in
//!   the lab; soak only when asked for;
//! - a failure does not stop the rest, and the last line is always `N passed, N failed, N skipped`,
//!   also in the file `target/test-summary`; everything printed is in `target/test.log`;
//! - tests that print nothing for too long are ended and have failed, but not the tiers after them;
//! - the whole run ends at its time limit; what had not ended then has failed;
//! - a long run says at its beginning what it does, and at its end adds its result to
//!   `docs/figures.md`.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::libtest::{Counts, Program, Reader};
use crate::run::{self, End};
use clap::ValueEnum;

mod guest;
mod record;

const LOG: &str = "target/test.log";
const SUMMARY: &str = "target/test-summary";
/// All of the project, with what is optional in it.
const WHOLE: [&str; 2] = ["--workspace", "--all-features"];
/// Set, it asks tests for their long form.
const SOAK: &str = "HANDOFF_SOAK";
/// Cases of each property test in the long form; proptest's own default is 256.
const SOAK_CASES: &str = "20000";

/// How long a tier's tests may print nothing. Each that ends has a line, and libtest has another for
/// one that takes a minute; the longest takes below four minutes, and a busy machine is three times as
/// slow. Building is silent for longer, and so are the long forms: they have the whole run's limit only.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these tiers only
    #[arg(long, value_enum, value_delimiter = ',')]
    tier: Vec<Tier>,

    /// Run the long forms: tests in modules named `soak` too, HANDOFF_SOAK=1, many property cases
    #[arg(long)]
    soak: bool,

    /// Minutes after which what still runs has failed [default: 60, with --soak 720]
    #[arg(long, value_name = "MINUTES")]
    limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    Checks,
    Hermetic,
    Native,
    Guest,
    Soak,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Self::Checks => "checks",
            Self::Hermetic => "hermetic",
            Self::Native => "native",
            Self::Guest => "guest",
            Self::Soak => "soak",
        }
    }

    /// The harness's arguments that select the tier's tests on this machine.
    fn filter(self) -> &'static [&'static str] {
        match self {
            Self::Native => &["native::", "--skip=guest::", "--skip=soak::"],
            Self::Soak => &["soak::", "--skip=guest::"],
            Self::Checks | Self::Hermetic | Self::Guest => {
                &["--skip=native::", "--skip=guest::", "--skip=soak::"]
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let limit = args.limit.unwrap_or(if args.soak { 720 } else { 60 });
    let mut session = Session::new(Duration::from_secs(limit * 60), args.soak)
        .map_err(|error| format!("{LOG}: {error}"))?;
    if args.soak {
        println!(
            "The long forms: all tiers, tests in modules named soak too, HANDOFF_SOAK=1 and \
             PROPTEST_CASES={SOAK_CASES} on this machine,\nfor at most {limit} minutes; the result \
             is added to {}.\n",
            record::FIGURES,
        );
    }
    for tier in Tier::value_variants() {
        let wanted = if args.tier.is_empty() {
            args.soak || *tier != Tier::Soak
        } else {
            args.tier.contains(tier)
        };
        if !wanted {
            continue;
        }
        if session.stop.load(Ordering::Acquire) {
            break;
        }
        session.tier = *tier;
        let (before, begin) = (session.counts, Instant::now());
        match tier {
            Tier::Checks => session.checks(),
            Tier::Guest => guest::tests(&mut session),
            Tier::Hermetic | Tier::Native | Tier::Soak => session.tests(),
        }
        if session.counts == before {
            println!("{:9} no tests", tier.name());
        }
        let took = Duration::from_secs(begin.elapsed().as_secs());
        println!("{:9} took {}", tier.name(), humantime::format_duration(took));
    }
    session.summary()
}

/// One run of everything.
struct Session {
    begin: Instant,
    deadline: Instant,
    stop: Arc<AtomicBool>,
    log: fs::File,
    soak: bool,
    tier: Tier,
    counts: Counts,
    skips: Vec<String>,
    failures: Vec<String>,
}

impl Session {
    fn new(limit: Duration, soak: bool) -> io::Result<Self> {
        fs::create_dir_all("target")?;
        // What an interrupted run leaves must not be taken for a result.
        match fs::remove_file(SUMMARY) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self {
            begin: Instant::now(),
            deadline: Instant::now() + limit,
            stop: run::stop_flag()?,
            log: fs::File::create(LOG)?,
            soak,
            tier: Tier::Checks,
            counts: Counts::default(),
            skips: Vec::new(),
            failures: Vec::new(),
        })
    }

    fn checks(&mut self) {
        self.check("format", "fmt", &["--all", "--check"]);
        const HOW: [&str; 5] = ["--all-targets", "--quiet", "--", "--deny", "warnings"];
        self.check("lints", "clippy", &[&WHOLE[..], &HOW].concat());
        // The one package with features.
        self.check(
            "lints without features",
            "clippy",
            &[&["--package=handoff"], &HOW[..]].concat(),
        );
    }

    fn check(&mut self, name: &str, tool: &str, arguments: &[&str]) {
        let installed = cargo().args([tool, "--version"]).output();
        if !installed.is_ok_and(|output| output.status.success()) {
            let reason = format!("cargo {tool} is not installed: rustup component add");
            return self.count(Program {
                name: name.to_owned(),
                counts: Counts { skipped: 1, ..Counts::default() },
                skips: [(name.to_owned(), reason)].into(),
                ..Program::default()
            });
        }
        let mut output = Vec::new();
        let mut command = cargo();
        command.arg(tool).args(arguments);
        let end = self.watch(&mut command, None, |line| output.push(line.to_owned()));
        self.count(match end.problem() {
            Some(problem) => Program::failed(name, problem, output),
            None => Program {
                name: name.to_owned(),
                counts: Counts { passed: 1, ..Counts::default() },
                ..Program::default()
            },
        });
    }

    fn tests(&mut self) {
        const PROGRAMS: [&str; 3] = ["--lib", "--bins", "--tests"];
        let build = [&["test", "--no-run", "--quiet"], &WHOLE[..], &PROGRAMS].concat();
        let mut output = Vec::new();
        let end = self.watch(cargo().args(build), None, |line| output.push(line.to_owned()));
        if let Some(problem) = end.problem() {
            return self.count(Program::failed("build", problem, output));
        }
        self.cargo_test(&PROGRAMS);
        if self.tier == Tier::Hermetic {
            self.cargo_test(&["--doc"]);
        }
    }

    fn cargo_test(&mut self, targets: &[&str]) {
        let mut command = cargo();
        command.args(["test", "--no-fail-fast", "--color=never"]).args(WHOLE).args(targets);
        command.args(["--", "--show-output"]).args(self.tier.filter());
        if self.soak {
            command.envs([(SOAK, "1"), ("PROPTEST_CASES", SOAK_CASES)]);
        }
        let mut reader = Reader::default();
        let end = self.watch(&mut command, self.silence(), |line| reader.line(line));
        let problem = end.problem();
        // Where we have ended cargo, the last program is the one that hung.
        let programs = reader.finish(problem.as_deref().filter(|_| end.cut()));
        let failed = programs.iter().any(|program| program.counts.failed > 0);
        for program in programs {
            self.count(program);
        }
        // A refusal of cargo itself, or a program that left with an error after its last test.
        if let Some(problem) = problem.filter(|_| !failed) {
            let name = format!("cargo test {}", targets.join(" "));
            self.count(Program::failed(&name, problem, Vec::new()));
        }
    }

    /// How long the tier's tests may print nothing.
    fn silence(&self) -> Option<Duration> {
        (!self.soak && self.tier != Tier::Soak).then_some(SILENCE)
    }

    /// Runs a command with its output in the log too; where there is a limit to its `silence`, not for
    /// longer than it keeps talking.
    fn watch(
        &mut self,
        command: &mut Command,
        silence: Option<Duration>,
        mut take: impl FnMut(&str),
    ) -> End {
        let log = &mut self.log;
        let end = run::lines(command, self.deadline, silence, &self.stop, |line| {
            // Losing the log must not lose the verdict.
            let _ = writeln!(log, "{line}");
            take(line);
        });
        end.unwrap_or_else(|error| {
            take(&format!("{}: {error}", command.get_program().display()));
            End::Failure(None)
        })
    }

    fn count(&mut self, program: Program) {
        let Counts { passed, failed, skipped } = program.counts;
        if passed + failed + skipped == 0 {
            return;
        }
        let tier = self.tier.name();
        println!(
            "{tier:9} {:40} {passed:4} passed {failed:3} failed {skipped:3} skipped",
            program.name
        );
        if failed > 0 {
            for line in &program.output {
                println!("    | {line}");
            }
        }
        let place = |what: &str| format!("{tier}: {}: {what}", program.name);
        self.skips
            .extend(program.skips.iter().map(|(name, reason)| place(&format!("{name}: {reason}"))));
        self.failures.extend(program.failures.iter().map(|what| place(what)));
        self.counts += program.counts;
    }

    fn summary(mut self) -> Result<ExitCode, String> {
        if self.stop.load(Ordering::Acquire) && self.counts.failed == 0 {
            self.counts.failed = 1;
            self.failures.push("stopped by a signal before the end".to_owned());
        }
        for (title, list) in [("skipped", &self.skips), ("failed", &self.failures)] {
            if !list.is_empty() {
                println!("\n{title}:");
                list.iter().for_each(|line| println!("  {line}"));
            }
        }
        let Counts { passed, failed, skipped } = self.counts;
        let line = format!("{passed} passed, {failed} failed, {skipped} skipped");
        fs::write(SUMMARY, format!("{line}\n")).map_err(|error| format!("{SUMMARY}: {error}"))?;
        if self.soak {
            record::soak(&line, self.begin.elapsed())?;
        }
        println!("\n{line}");
        Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Cargo, which is to ask nothing.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.stdin(Stdio::null());
    command
}
