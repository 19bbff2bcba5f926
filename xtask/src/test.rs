//! `cargo xtask test`: checks, then tests in tiers, counted.
//!
//! Contracts:
//! - tiers run in order: checks (format and lints), hermetic (any Linux, no privileges), native
//!   (programs named `native_*`, which want root and this machine's kernel), guest (programs named
//!   `guest_*`, which want the lab's kernel), and with `--soak` those named `soak_*`;
//! - a failure does not stop the rest, and the last line is always `N passed, N failed, N skipped`,
//!   also in the file `target/test-summary`; everything printed is in `target/test.log`;
//! - the whole run ends at its time limit; what had not ended then has failed.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::Value;

use crate::libtest::{Counts, Program, Reader};
use crate::run::{self, End};

const LOG: &str = "target/test.log";
const SUMMARY: &str = "target/test-summary";
/// Cases of each property test in the long form; proptest's own default is 256.
const SOAK_CASES: &str = "20000";

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these tiers only
    #[arg(long, value_enum, value_delimiter = ',')]
    tier: Vec<Tier>,

    /// Run the long forms: programs named `soak_*` too, HANDOFF_SOAK=1, many property cases
    #[arg(long)]
    soak: bool,

    /// Minutes after which what still runs has failed [default: 18, with --soak 720]
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

    /// The tier that a test program of this name belongs to.
    fn of(program: &str) -> Self {
        if program.starts_with("native_") {
            Self::Native
        } else if program.starts_with("guest_") {
            Self::Guest
        } else if program.starts_with("soak_") {
            Self::Soak
        } else {
            Self::Hermetic
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let limit = args.limit.unwrap_or(if args.soak { 720 } else { 18 });
    let mut session = Session::new(Duration::from_secs(limit * 60), args.soak)
        .map_err(|error| format!("{LOG}: {error}"))?;
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
        match tier {
            Tier::Checks => session.checks(),
            _ => session.tests()?,
        }
    }
    session.summary()
}

/// One run of everything.
struct Session {
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
        self.check(
            "lints",
            "clippy",
            &["--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"],
        );
    }

    fn check(&mut self, name: &str, tool: &str, arguments: &[&str]) {
        let installed = Command::new("cargo").args([tool, "--version"]).output();
        if !installed.is_ok_and(|output| output.status.success()) {
            let reason = format!("cargo {tool} is not installed: rustup component add");
            return self.count(Program {
                name: name.to_owned(),
                counts: Counts { skipped: 1, ..Counts::default() },
                skips: [(name.to_owned(), reason)].into(),
                ..Program::default()
            });
        }
        let mut program = Program { name: name.to_owned(), ..Program::default() };
        let mut command = Command::new("cargo");
        command.arg(tool).args(arguments);
        match self.watch(&mut command, |line| program.output.push(line.to_owned())) {
            None => program.counts.passed = 1,
            Some(problem) => {
                program.counts.failed = 1;
                program.failures.insert(problem);
            }
        }
        self.count(program);
    }

    fn tests(&mut self) -> Result<(), String> {
        let programs: Vec<_> =
            test_programs()?.into_iter().filter(|name| Tier::of(name) == self.tier).collect();
        let mut targets: Vec<&str> = programs.iter().flat_map(|name| ["--test", name]).collect();
        if self.tier == Tier::Hermetic {
            targets.extend(["--lib", "--bins"]);
        }
        if targets.is_empty() {
            println!("{:9} no test programs", self.tier.name());
            return Ok(());
        }
        let build = [&["test", "--workspace", "--no-run", "--quiet"], &targets[..]].concat();
        let mut output = Vec::new();
        let mut command = Command::new("cargo");
        command.args(build);
        if let Some(problem) = self.watch(&mut command, |line| output.push(line.to_owned())) {
            self.count(Program {
                name: "build".to_owned(),
                counts: Counts { failed: 1, ..Counts::default() },
                failures: [problem].into(),
                output,
                ..Program::default()
            });
            return Ok(());
        }
        self.cargo_test(&targets);
        if self.tier == Tier::Hermetic {
            self.cargo_test(&["--doc"]);
        }
        Ok(())
    }

    fn cargo_test(&mut self, targets: &[&str]) {
        let mut command = Command::new("cargo");
        command.args(["test", "--workspace", "--no-fail-fast", "--color=never"]).args(targets);
        command.args(["--", "--show-output"]);
        if self.soak {
            command.envs([("HANDOFF_SOAK", "1"), ("PROPTEST_CASES", SOAK_CASES)]);
        }
        let mut reader = Reader::default();
        let problem = self.watch(&mut command, |line| reader.line(line));
        let programs = reader.finish();
        let failed = programs.iter().any(|program| program.counts.failed > 0);
        for program in programs {
            self.count(program);
        }
        // A refusal of cargo itself, or a program that left with an error after its last test.
        if let Some(problem) = problem.filter(|_| !failed) {
            self.count(Program {
                name: format!("cargo test {}", targets.join(" ")),
                counts: Counts { failed: 1, ..Counts::default() },
                failures: [problem].into(),
                ..Program::default()
            });
        }
    }

    /// Runs a command with its output in the log too; `Some` says what was wrong.
    fn watch(&mut self, command: &mut Command, mut take: impl FnMut(&str)) -> Option<String> {
        let log = &mut self.log;
        let end = run::lines(command, self.deadline, &self.stop, |line| {
            // Losing the log must not lose the verdict.
            let _ = writeln!(log, "{line}");
            take(line);
        });
        match end {
            Ok(End::Success) => None,
            Ok(End::Failure) => Some("ended with an error".to_owned()),
            Ok(End::TimedOut) => Some("had not ended at the time limit".to_owned()),
            Ok(End::Stopped) => Some("stopped by a signal".to_owned()),
            Err(error) => Some(format!("could not be run: {error}")),
        }
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
        println!("\n{line}");
        Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The names of the workspace's test programs.
fn test_programs() -> Result<Vec<String>, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version=1"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(integration_tests(&metadata))
}

fn integration_tests(metadata: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = list(&metadata["packages"])
        .iter()
        .flat_map(|package| list(&package["targets"]))
        .filter(|target| list(&target["kind"]).iter().any(|kind| kind == "test"))
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    // `--test NAME` means every package's program of that name.
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_decide_the_tier() {
        assert_eq!(Tier::of("native_send"), Tier::Native);
        assert_eq!(Tier::of("guest_ublk"), Tier::Guest);
        assert_eq!(Tier::of("soak_send"), Tier::Soak);
        assert_eq!(Tier::of("probe"), Tier::Hermetic);
    }

    #[test]
    fn integration_tests_are_found() {
        let target = |name: &str, kind: &str| json!({"name": name, "kind": [kind]});
        let metadata = json!({"packages": [
            {"targets": [target("handoff", "lib"), target("probe", "test")]},
            {"targets": [target("native_send", "test"), target("probe", "test")]},
        ]});
        assert_eq!(integration_tests(&metadata), ["native_send", "probe"]);
    }

    #[test]
    fn this_workspace_has_tests() {
        assert!(test_programs().expect("cargo answers").contains(&"probe".to_owned()));
    }
}
