//! `cargo xtask test`: checks, then tests on this machine and in guests, counted.
//!
//! Contracts:
//! - the modules in a test's path say what it needs: `native` (root, namespaces, a recent kernel), `lab`
//!   (boots guests), `guest` (the lab's kernel), `linux73` (Linux 7.3), `soak` (hours), `fixture` (another
//!   test runs it); a test with none of them is hermetic and passes on any Linux, as any user;
//! - format and lints come first; then everything is built once, and `cargo xtask run-tests` runs all tiers
//!   at the same time, each test in a process of its own;
//! - a failure does not stop the rest, and the last line is always `N passed, N failed, N skipped`, also
//!   in the file `target/test-summary`; `target/test.log` has all output, and `target/failures` has a
//!   file with everything known about each failed test;
//! - all steps run in a sandbox ([`crate::sandbox`]); what tests leave there is a failure; they have a network of
//!   their own, so what guests boot is fetched before;
//! - the whole run ends at its time limit; whatever had not ended then has failed, or belongs to the next part of a
//!   long run;
//! - a long run says at its start what it does, goes on where it was interrupted, and at its end adds its result to
//!   `docs/figures/long-runs.md` ([`soak`]).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use test_runner::{Output, Part, Report, Verdict};

use self::changed::Packages;
use self::soak::Soak;
use crate::run::{self, End};
use crate::sandbox;

mod changed;
mod soak;
mod stages;
mod times;

const LOG: &str = "target/test.log";
const SUMMARY: &str = "target/test-summary";
const WORKSHOP: &str = "target/debug/handoff-workshop";
const XTASK: &str = "target/debug/xtask";
/// What Cargo reports as built.
const PROGRAMS: &str = "target/test-programs.json";
const REPORT: &str = "target/test-report.json";
/// The directory with a file for each failed test.
const FAILURES: &str = "target/failures";
/// The expected skips; any other is a failure.
const MAY_SKIP: &str = "lab/may-skip.txt";
/// The packages that stay in this tree.
pub(crate) const NOT_PUBLISHED: [&str; 4] =
    ["handoff-contract", "handoff-examples", "handoff-kmod-tests", "xtask"];
/// The package of the library, whose loans are tested under the sanitizer, and whose threads are modelled.
const LIBRARY: &str = "handoff-io";
/// If set, tests run their long form.
const SOAK: &str = "HANDOFF_SOAK";
/// Where the packages are built.
const ARCHIVES: &str = "target/archives";
/// Installs the command from the packages of the registry, and uses it.
const INSTALLED: &str = "scripts/installed";
/// Cases of each property test in the long form; proptest's default is 256.
const SOAK_CASES: &str = "20000";
/// How long one test may take in its long form.
const SOAK_SECONDS: &str = "7200";
/// How often the progress is printed.
const TELL: Duration = Duration::from_secs(60);

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these tiers only
    #[arg(long, value_enum, value_delimiter = ',')]
    tier: Vec<Tier>,

    /// Run only what a change since REV can break: the tests of the packages that it touches and of
    /// those that use them, those that name a file that it touches, and those that read all pages and sources
    #[arg(long, value_name = "REV", num_args = 0..=1, default_missing_value = "HEAD")]
    changed: Option<String>,

    /// At the end, show what took how long, by step, program and test
    #[arg(long)]
    times: bool,

    /// Run the long forms: tests in modules named `soak` too, HANDOFF_SOAK=1, many property cases
    #[arg(long)]
    soak: bool,

    /// Run only this one of so many parts, which are alike in their number of tests, for instance 2/3; what is no test
    /// of a stage belongs to the first
    #[arg(long, value_name = "NUMBER/PARTS", default_value_t = Part::WHOLE)]
    part: Part,

    /// Minutes after which what still runs has failed; the long forms go on when you begin them again [default: 80,
    /// with --soak 720, with --soak --changed 60]
    #[arg(long, value_name = "MINUTES")]
    limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// Format and lints
    Checks,
    /// Tests that are green on any Linux, as any user
    Hermetic,
    /// Tests on this machine as root, and those that boot guests
    Native,
    /// Tests in guests
    Guest,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let limit = args.limit.unwrap_or(match (args.soak, &args.changed) {
        (false, _) => 80,
        (true, None) => 720,
        (true, Some(_)) => 60,
    });
    let tiers = if args.tier.is_empty() { Tier::value_variants() } else { &args.tier };
    let what = || format!("{tiers:?} {:?}", args.changed);
    let changed = args.changed.as_deref();
    let soak = args.soak.then(|| Soak::begin(args.part, changed, &what())).transpose()?;
    let mut session = Session::new(Duration::from_secs(limit * 60), args.part, soak)
        .map_err(|error| format!("{LOG}: {error}"))?;
    if let Some(soak) = &session.soak {
        println!(
            "The long forms: all tiers, tests in modules named soak too, HANDOFF_SOAK=1 and \
             PROPTEST_CASES={SOAK_CASES},\nfor at most {limit} minutes; the result is added to {}. {}\n",
            soak::FIGURES,
            soak.outlook(),
        );
    }
    let packages = changed.map(changed::packages).transpose()?;
    if let Some(packages) = &packages {
        println!("{packages}\n");
    }
    if tiers.contains(&Tier::Checks) && args.part.is_first() {
        session.checks();
        if args.soak && packages.is_none() {
            session.published();
        }
    }
    let stages = stages::of(tiers, args.soak);
    if !stages.is_empty() {
        let wanted = |manifest: &str, program: &str| {
            packages.as_ref().is_none_or(|packages| packages.has(manifest, program))
        };
        if session.build(wanted) {
            if tiers.contains(&Tier::Hermetic) && args.part.is_first() {
                session.documentation(packages.as_ref().map(Packages::documented));
                let library =
                    |packages: &Packages| packages.documented().iter().any(|name| name == LIBRARY);
                if args.soak && packages.as_ref().is_none_or(library) {
                    session.sanitized();
                    session.models();
                }
            }
            let images = stages::images(tiers, args.soak);
            if !images.is_empty() {
                session.images(&images);
            }
            session.tests(&stages);
        }
    }
    session.summary(args.times)
}

/// One run of everything.
struct Session {
    begin: Instant,
    deadline: Instant,
    stop: Arc<AtomicBool>,
    part: Part,
    log: File,
    soak: Option<Soak>,
    passed: usize,
    skips: Vec<String>,
    failures: Vec<String>,
    /// It was interrupted before all had run.
    cut: bool,
    /// What took how long, apart from tests.
    steps: Vec<(&'static str, Duration)>,
    report: Report,
}

impl Session {
    fn new(limit: Duration, part: Part, soak: Option<Soak>) -> io::Result<Self> {
        fs::create_dir_all("target")?;
        // Leftovers of an interrupted run must not pass for a result.
        for file in [SUMMARY, REPORT] {
            gone(fs::remove_file(file))?;
        }
        gone(fs::remove_dir_all(FAILURES))?;
        Ok(Self {
            begin: Instant::now(),
            deadline: Instant::now() + limit,
            stop: run::stop_flag()?,
            part,
            log: File::create(LOG)?,
            passed: 0,
            skips: Vec::new(),
            failures: soak.as_ref().map_or(Vec::new(), |soak| soak.failures().to_vec()),
            soak,
            cut: false,
            steps: Vec::new(),
            report: Report::default(),
        })
    }

    fn checks(&mut self) {
        const HOW: [&str; 4] = ["--all-targets", "--quiet", "--", "--deny=warnings"];
        self.check("format", &["fmt", "--all", "--check"]);
        let whole = ["clippy", "--workspace", "--all-features"];
        self.check("lints", &[&whole[..], &HOW].concat());
        // The one package with features.
        let bare = ["clippy", "--package=handoff-io"];
        self.check("lints without features", &[&bare[..], &HOW].concat());
    }

    /// Packs what is published, builds it from its archives, and uses the installed command.
    fn published(&mut self) {
        let is_packed = |soak: &Soak| soak.passed("packages").is_some();
        if !self.soak.as_ref().is_some_and(is_packed) {
            self.failures.extend(forget_archives().err());
        }
        // Each builds from its archive, with the archives of the packages that it uses.
        let mut packages = vec!["package", "--workspace", "--allow-dirty", "--quiet"];
        packages.extend(["--target-dir", ARCHIVES]);
        packages.extend(NOT_PUBLISHED.iter().flat_map(|name| ["--exclude", name]));
        if self.long_step("packages", &mut cargo(&packages)).is_some() {
            self.passed += 1;
            let mut installed = sandboxed(&["--network"], INSTALLED);
            installed.arg(format!("{ARCHIVES}/package"));
            let installed = self.long_step("installed command", &mut installed);
            self.passed += usize::from(installed.is_some());
        }
    }

    fn check(&mut self, name: &'static str, arguments: &[&str]) {
        let tool = arguments[0];
        let installed = Command::new("cargo").args([tool, "--version"]).output();
        if !installed.is_ok_and(|output| output.status.success()) {
            let reason = format!("cargo {tool} is not installed: rustup component add");
            return self.skips.push(format!("{name}: {reason}"));
        }
        if self.step(name, &mut cargo(arguments)).is_some() {
            self.passed += 1;
        }
    }

    /// Builds all test programs and the command, and passes the wanted ones to the tests.
    fn build(&mut self, wanted: impl Fn(&str, &str) -> bool) -> bool {
        let arguments =
            ["test", "--no-run", "--workspace", "--all-features", "--message-format=json"];
        let Some(mut messages) = self.step("build", &mut cargo(&arguments)) else {
            self.cut = true;
            return false;
        };
        messages.retain(|line| {
            let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            let (manifest, name) =
                (text(&message["manifest_path"]), text(&message["target"]["name"]));
            message["profile"]["test"] != true || wanted(&manifest, &name)
        });
        let written = fs::write(PROGRAMS, messages.join("\n"));
        if let Err(error) = &written {
            self.failures.push(format!("{PROGRAMS}: {error}"));
        }
        written.is_ok()
    }

    /// Runs the tests in the documentation of these packages, or of all.
    fn documentation(&mut self, packages: Option<&[String]>) {
        let mut command = sandboxed(&[], "cargo");
        command.args(["test", "--doc", "--all-features", "--color=never"]);
        match packages {
            Some([]) => return,
            Some(names) => command.args(names.iter().map(|name| format!("--package={name}"))),
            None => command.arg("--workspace"),
        };
        self.tests_by_cargo("documentation", &mut command);
    }

    /// The random tests of what is lent once more, built with the address sanitizer, which is part of the compiler.
    fn sanitized(&mut self) {
        let mut command = sandboxed(&[], "cargo");
        command.args(["test", "--package", LIBRARY, "--all-features"]);
        command.args(["--test=loans", "--test=frozen"]);
        // With a target of their own, build scripts and macros stay as they are.
        command.args([
            "--target=host-tuple",
            "--target-dir=target/sanitized",
            "--",
            "--skip=guest::",
        ]);
        command.envs([
            ("RUSTC_BOOTSTRAP", "1"),
            ("RUSTFLAGS", "-Zsanitizer=address"),
            ("HANDOFF_ADDRESS_SANITIZER", "1"),
            // A driver that goes too early leaves some memory to the kernel for good.
            ("ASAN_OPTIONS", "detect_leaks=0"),
            (SOAK, "1"),
        ]);
        self.tests_by_cargo("loans and frozen under the sanitizer", &mut command);
    }

    /// The models of what threads share, which loom runs in all orders that a bound allows.
    fn models(&mut self) {
        const TESTS: [&str; 5] =
            ["--package", LIBRARY, "--all-features", "--lib", "--target-dir=target/loom"];
        let flags = ("RUSTFLAGS", "--cfg handoff_loom");
        let mut build = cargo(&["test", "--no-run", "--quiet"]);
        if self.long_step("build of the models", build.args(TESTS).envs([flags])).is_some() {
            let mut command = sandboxed(&[], "cargo");
            // A model that fails may abort: one at a time, so that the last name is its own.
            command
                .arg("test")
                .args(TESTS)
                .args(["models::", "--", "--test-threads=1"])
                .envs([flags]);
            self.tests_by_cargo("models", &mut command);
        }
    }

    /// Runs tests outside the lab, and counts them.
    fn tests_by_cargo(&mut self, name: &'static str, command: &mut Command) {
        let Some(lines) = self.long_step(name, command) else { return };
        let mut told = Output::default();
        lines.iter().for_each(|line| told.line(line));
        self.passed += told.sums().iter().map(|sums| sums.passed).sum::<usize>();
        let left = lines.iter().filter(|line| line.starts_with(sandbox::LEFT));
        self.failures.extend(left.map(|line| format!("{name}: {line}")));
        let ignored = told.skips().iter();
        self.skips.extend(ignored.map(|(test, reason)| format!("{name}: {test}: {reason}")));
    }

    /// As [`step`](Self::step), but what ended before a long run was interrupted does not run again.
    fn long_step(&mut self, name: &'static str, command: &mut Command) -> Option<Vec<String>> {
        if let Some(soak) = &self.soak {
            if let Some(lines) = soak.passed(name) {
                println!("{name:40} passed before");
                return Some(lines.to_vec());
            }
            let begin = format!("{name}: ");
            if soak.failures().iter().any(|line| line.starts_with(&begin)) {
                println!("{name:40} failed before");
                return None;
            }
        }
        let lines = self.step(name, command);
        let kept = match (&mut self.soak, &lines, self.failures.last()) {
            (Some(soak), Some(lines), _) => soak.pass(name, lines),
            (Some(soak), None, Some(line)) if !self.cut => soak.fail(line),
            _ => Ok(()),
        };
        self.failures.extend(kept.err());
        lines
    }

    /// Runs a step to its end and returns its lines; `None` if it failed, which is counted.
    fn step(&mut self, name: &'static str, command: &mut Command) -> Option<Vec<String>> {
        if self.stop.load(Ordering::Acquire) {
            self.cut = true;
            return None;
        }
        let begin = Instant::now();
        let mut lines = Vec::new();
        let end = self.watch(command, |line| lines.push(line.to_owned()));
        self.ended(name, begin, end == End::Success);
        let Some(problem) = end.problem() else { return Some(lines) };
        // Cargo's messages about programs are not for people.
        for line in lines.iter().filter(|line| !line.starts_with('{')) {
            println!("    | {line}");
        }
        self.failures.push(format!("{name}: {problem}"));
        None
    }

    /// Says that a step has ended.
    fn ended(&mut self, name: &'static str, begin: Instant, well: bool) {
        let took = begin.elapsed();
        self.steps.push((name, took));
        let verdict = if well { "passed" } else { "failed" };
        println!("{:40} {verdict}  {:6.1} s", name, took.as_secs_f64());
    }

    /// Fetches what guests boot, unless it is in the cache. Tests tell what this machine cannot have.
    fn images(&mut self, images: &[&str]) {
        let (begin, failed) = (Instant::now(), self.failures.len());
        for image in images {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            let mut lab = sandboxed(&["--network"], WORKSHOP);
            lab.args(["lab", "image", image]);
            let mut last = String::new();
            let end = self.watch(&mut lab, |line| line.clone_into(&mut last));
            if end != End::Failure(Some(run::NOT_POSSIBLE)) {
                let problem = end.problem();
                self.failures.extend(problem.map(|it| format!("images: {image}: {it}: {last}")));
            }
        }
        self.ended("images", begin, self.failures.len() == failed);
    }

    fn tests(&mut self, stages: &[String]) {
        // One of the long forms fetches what guests boot anew.
        let network: &[&str] = if self.soak.is_some() { &["--network"] } else { &[] };
        let mut lab = sandboxed(network, XTASK);
        lab.args(["run-tests", "--report", REPORT, "--may-skip", MAY_SKIP, "--keep"]);
        if let Some(soak) = &self.soak {
            lab.envs([(SOAK, "1"), ("PROPTEST_CASES", SOAK_CASES)]);
            lab.arg(soak.kept()).arg("--results").arg(soak.results());
            lab.args(["--timeout", SOAK_SECONDS]);
        } else {
            lab.arg(FAILURES);
        }
        lab.arg("--part").arg(self.part.to_string());
        lab.args(stages.iter().flat_map(|stage| ["--stage", stage]));
        match File::open(PROGRAMS) {
            Ok(programs) => lab.stdin(Stdio::from(programs)),
            Err(error) => return self.failures.push(format!("{PROGRAMS}: {error}")),
        };
        let begin = Instant::now();
        let mut last = String::new();
        let mut progress = Progress::default();
        let mut left = Vec::new();
        let end = self.watch(&mut lab, |line| {
            if let Some(track) = line.strip_prefix(sandbox::LEFT) {
                left.push(format!("tests: {line}"));
                println!("left behind: {track}");
            } else {
                progress.line(line);
                line.clone_into(&mut last);
            }
        });
        self.steps.push(("tests", begin.elapsed()));
        if let (Some(soak), false) = (&mut self.soak, self.cut) {
            let kept = left.iter().try_for_each(|line| soak.fail(line));
            self.failures.extend(kept.err());
        }
        self.failures.extend(left);
        match fs::read(REPORT).map_err(|error| error.to_string()).and_then(|bytes| {
            serde_json::from_slice::<Report>(&bytes).map_err(|error| error.to_string())
        }) {
            Ok(report) => self.take(report),
            Err(error) => {
                let problem = end.problem().unwrap_or(error);
                self.failures.push(format!("tests: {problem}: {last}"));
                self.cut = true;
            }
        }
    }

    fn take(&mut self, report: Report) {
        times::programs(&report);
        let left_out = report.left_out.iter();
        self.skips.extend(left_out.map(|(place, reason)| format!("{place}: every test: {reason}")));
        for test in &report.tests {
            self.cut |= !test.ran;
            let place = || format!("{}: {}", test.place, test.name);
            match &test.verdict {
                Verdict::Passed => self.passed += 1,
                Verdict::Skipped { reason } => self.skips.push(format!("{}: {reason}", place())),
                Verdict::Failed { .. } => {
                    let kept = test.kept.as_ref().map(|kept| format!(", see {}", kept.display()));
                    self.failures.push(format!("{}{}", place(), kept.unwrap_or_default()));
                }
            }
        }
        self.report = report;
    }

    /// Runs a command with its output in the log too.
    fn watch(&mut self, command: &mut Command, mut take: impl FnMut(&str)) -> End {
        let log = &mut self.log;
        let end = run::lines(command, self.deadline, &self.stop, |line| {
            // Losing the log must not lose the verdict.
            let _ = writeln!(log, "{line}");
            take(line);
        });
        let end = end.unwrap_or_else(|error| {
            take(&format!("{}: {error}", command.get_program().display()));
            End::Failure(None)
        });
        self.cut |= matches!(end, End::TimedOut | End::Stopped);
        end
    }

    fn summary(mut self, with_times: bool) -> Result<ExitCode, String> {
        if self.stop.load(Ordering::Acquire) && self.failures.is_empty() {
            self.failures.push("stopped by a signal before the end".to_owned());
        }
        if with_times {
            print!("{}", times::tables(&self.steps, &self.report));
        }
        for (title, list) in [("skipped", &self.skips), ("failed", &self.failures)] {
            if !list.is_empty() {
                println!("\n{title}:");
                list.iter().for_each(|line| println!("  {line}"));
            }
        }
        let (passed, failed, skipped) = (self.passed, self.failures.len(), self.skips.len());
        let line = format!("{passed} passed, {failed} failed, {skipped} skipped");
        fs::write(SUMMARY, format!("{line}\n")).map_err(|error| format!("{SUMMARY}: {error}"))?;
        match self.soak {
            Some(soak) if self.cut => {
                soak.save()?;
                println!(
                    "\nNot all has run. The next {} goes on, if nothing changes outside docs.",
                    soak.command()
                );
            }
            Some(soak) => soak.end(&line)?,
            None => {}
        }
        let took = Duration::from_secs(self.begin.elapsed().as_secs());
        println!("\ntook {}\n{line}", humantime::format_duration(took));
        Ok(if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Prints the progress now and then, and a failed test at once.
#[derive(Debug, Default)]
struct Progress {
    done: usize,
    failed: usize,
    told: Option<Instant>,
    /// Whether the last test failed; its text follows.
    failing: bool,
}

impl Progress {
    fn line(&mut self, line: &str) {
        let verdict = ["pass  [", "skip  [", "FAIL  ["].iter().find(|kind| line.starts_with(*kind));
        if let Some(kind) = verdict {
            self.done += 1;
            self.failing = kind.starts_with("FAIL");
            self.failed += usize::from(self.failing);
        }
        if self.failing {
            println!("{line}");
        }
        if self.told.get_or_insert_with(Instant::now).elapsed() >= TELL {
            println!("{} tests have ended, {} of them failed", self.done, self.failed);
            self.told = Some(Instant::now());
        }
    }
}

/// Removes what Cargo has unpacked and built of our archives: it takes that for the next archive of the same version.
/// It unpacks them into the directory of a registry that has no host, so that directory's name begins with a hyphen.
fn forget_archives() -> Result<(), String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let sources = home.ok_or("no home directory")?.join("registry/src");
    let inside = |directory: PathBuf, beginning: &'static str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter(move |entry| {
            entry.file_name().as_encoded_bytes().starts_with(beginning.as_bytes())
        })
    };
    let registries = inside(sources, "-");
    let unpacked = registries.flat_map(|registry| inside(registry.path(), "handoff-"));
    for directory in unpacked.map(|entry| entry.path()).chain([PathBuf::from(ARCHIVES)]) {
        gone(fs::remove_dir_all(&directory))
            .map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    Ok(())
}

/// The error of a removal, unless nothing was there.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Cargo, which may have to fetch something.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = sandboxed(&["--network"], "cargo");
    command.args(arguments);
    command
}

/// A program in the sandbox, with these options of the sandbox.
fn sandboxed(options: &[&str], program: &str) -> Command {
    let mut command = Command::new(sandbox::OURSELVES);
    command.arg("sandbox").args(options).args(["--", program]).stdin(Stdio::null());
    command
}
