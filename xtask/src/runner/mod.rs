//! Runs the workspace's test programs on the host and in guests, and counts the results.
//!
//! Contracts:
//! - the modules in a test's path say what it needs: `native` (root, namespaces, a recent kernel),
//!   `guest` (the lab's kernel), `linux73` (Linux 7.3), `lab` (boots guests itself), `soak` (hours),
//!   `fixture` (is the subject of another test, which runs it); a test with none of them is hermetic;
//! - a test passes, fails or skips; a test that cannot run in its place says so with
//!   [`skip!`](macro@handoff_testbed::skip), and counts as skipped with its reason, never as passed;
//! - a skip that the declaration ([`MaySkip`]) does not foresee is a failure;
//! - each test is a process of its own, on the host too: a kernel report, a hang, a crash or something
//!   left behind counts for the test that caused it, and the others still run; when a guest dies, the
//!   next test gets a new one;
//! - a run that was interrupted goes on: tests whose results it is given do not run again;
//! - for a test that failed, one file keeps its output, the guest's console, and where the guest's tasks
//!   stood.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use handoff_lab::{Error, KernelChoice, Machine, Result};
use serde::{Deserialize, Serialize};

pub mod command;
mod in_guest;
mod keep;
mod lanes;
mod libtest;
mod may_skip;
mod on_host;

pub use lanes::run;
pub use libtest::{Output, Sums};
pub use may_skip::MaySkip;

/// What a test may need, by the names of its modules.
const NEEDS: [&str; 6] = ["native", "guest", "linux73", "lab", "soak", "fixture"];
/// How a stage names the tests that need nothing.
const HERMETIC: &str = "hermetic";

/// A test program, built by Cargo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// First part of the names of its tests.
    pub name: String,
    /// The executable.
    pub path: PathBuf,
    /// Where Cargo would start it.
    pub directory: PathBuf,
}

/// Where tests run, and which.
///
/// ```
/// use xtask::runner::Stage;
///
/// let stage: Stage = "7.2:native,guest:send::,-send::udp".parse().unwrap();
/// assert_eq!(stage.place(), "7.2");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The kernel of the guest; `None` is the host.
    pub kernel: Option<KernelChoice>,
    /// What the tests may need: some of `hermetic`, `native`, `guest`, `linux73`, `lab`, `soak`,
    /// `fixture`.
    pub needs: BTreeSet<String>,
    /// Only tests whose name, the program's in front, begins with one of these; all tests if empty.
    pub beginnings: Vec<String>,
    /// Leave out tests whose name begins with one of these.
    pub except: Vec<String>,
}

impl FromStr for Stage {
    type Err = String;

    /// `WHERE:NEEDS[:NAMES]`, such as `host:hermetic,native` or `bookworm:native:send::,-send::udp`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.splitn(3, ':');
        let kernel = match parts.next().unwrap_or_default() {
            "host" => None,
            name => Some(name.parse().map_err(|error| format!("host, or {error}"))?),
        };
        let needs = parts.next().ok_or("expected WHERE:NEEDS, such as host:hermetic,native")?;
        let needs: BTreeSet<String> = needs.split(',').map(str::to_owned).collect();
        let known = |need: &String| need == HERMETIC || NEEDS.contains(&need.as_str());
        if let Some(unknown) = needs.iter().find(|need| !known(need)) {
            return Err(format!("'{unknown}' is none of {HERMETIC}, {}", NEEDS.join(", ")));
        }
        let (mut beginnings, mut except) = (Vec::new(), Vec::new());
        for name in parts.next().into_iter().flat_map(|names| names.split(',')) {
            match name.strip_prefix('-') {
                Some(name) => except.push(name.to_owned()),
                None => beginnings.push(name.to_owned()),
            }
        }
        Ok(Self { kernel, needs, beginnings, except })
    }
}

impl Stage {
    /// Where the tests run, as reports and the declaration of skips name it.
    pub fn place(&self) -> String {
        self.kernel.as_ref().map_or("host".to_owned(), KernelChoice::to_string)
    }

    /// The tests that it runs, program by program.
    fn selected<'a>(
        &self,
        listed: &'a [(&'a Program, Vec<String>)],
    ) -> Vec<(&'a Program, Vec<&'a str>)> {
        let of_program = |(program, tests): &'a (&'a Program, Vec<String>)| {
            let wanted = |test: &&str| self.selects(&program.name, test);
            (*program, tests.iter().map(String::as_str).filter(wanted).collect::<Vec<_>>())
        };
        listed.iter().map(of_program).filter(|(_, tests)| !tests.is_empty()).collect()
    }

    fn selects(&self, program: &str, test: &str) -> bool {
        let needs: Vec<&str> = test.split("::").filter(|module| NEEDS.contains(module)).collect();
        let granted = match needs.as_slice() {
            [] => self.needs.contains(HERMETIC),
            some => some.iter().all(|need| self.needs.contains(*need)),
        };
        let name = format!("{program}::{test}");
        let named = |beginning: &String| name.starts_with(beginning.as_str());
        let wanted = self.beginnings.is_empty() || self.beginnings.iter().any(named);
        granted && wanted && !self.except.iter().any(named)
    }
}

/// One of several parts of each stage's tests, which are alike in number.
///
/// ```
/// use xtask::runner::Part;
///
/// let part: Part = "2/3".parse().unwrap();
/// assert_eq!(part.to_string(), "2/3");
/// assert!(!part.is_first());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// All tests.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Whether it is the first; exactly one of the parts is.
    pub fn is_first(self) -> bool {
        self.number == 1
    }

    /// Whether a stage's test is in it. Neighbours, which may be alike, are in different parts.
    fn has(self, index: usize) -> bool {
        index % self.of + 1 == self.number
    }
}

impl FromStr for Part {
    type Err = String;

    /// `NUMBER/PARTS`, such as `2/3`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        let is_one = |part: &Self| (1..=part.of).contains(&part.number);
        numbers.filter(is_one).ok_or("expected NUMBER/PARTS, such as 2/3".to_owned())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.number, self.of)
    }
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "lowercase")]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed; why, with its output.
    Failed {
        /// What it printed, or what happened to it.
        reason: String,
    },
    /// It could not run here; why.
    Skipped {
        /// Its own words.
        reason: String,
    },
}

/// A test that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// Where: `host` or a kernel's name.
    pub place: String,
    /// Program and path of the test.
    pub name: String,
    /// Its result.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
    /// False if it failed because there was no guest for it.
    pub ran: bool,
    /// The file with everything known about a failed test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

/// The results of all stages.
///
/// [`run`] returns it.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that skipped.
    pub skipped: usize,
    /// Every test, in the order in which they ended.
    pub tests: Vec<TestResult>,
    /// The places where this machine cannot boot a guest, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub left_out: BTreeMap<String, String>,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Report {
    fn add(&mut self, test: TestResult) {
        match test.verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed { .. } => self.failed += 1,
            Verdict::Skipped { .. } => self.skipped += 1,
        }
        self.tests.push(test);
    }
}

/// A run of tests.
#[derive(Debug)]
pub struct Plan {
    /// The test programs.
    pub programs: Vec<Program>,
    /// Other programs that tests start by their absolute path; guests have them at that path and on the
    /// `PATH`.
    pub companions: Vec<PathBuf>,
    /// Where to run which tests.
    pub stages: Vec<Stage>,
    /// Which of their tests.
    pub part: Part,
    /// The skips that are foreseen.
    pub may_skip: MaySkip,
    /// How long one test may take.
    pub timeout: Duration,
    /// How often each test runs.
    pub repeat: usize,
    /// Results of an earlier run of these programs: part of the report, without running these tests again.
    pub known: Vec<TestResult>,
    /// The directory for files about failed tests, if you want any.
    pub keep: Option<PathBuf>,
    /// The guests; the stages set their kernel and their files.
    pub machine: Machine,
}

/// The test programs and other programs in the messages of
/// `cargo test --no-run --message-format=json`.
///
/// # Errors
///
/// If `messages` is something else.
pub fn programs_from_cargo(messages: &str) -> Result<(Vec<Program>, Vec<PathBuf>)> {
    let (mut programs, mut companions) = (Vec::new(), Vec::new());
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value =
            serde_json::from_str(line).map_err(|error| Error::Usage(error.to_string()))?;
        let Some(executable) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] == true {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            programs.push(Program {
                name: message["target"]["name"].as_str().unwrap_or_default().replace('-', "_"),
                path: executable.into(),
                directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
            });
        } else {
            companions.push(executable.into());
        }
    }
    if programs.is_empty() {
        return Err(Error::Usage(
            "no test programs; expected the output of cargo test --no-run --message-format=json"
                .to_owned(),
        ));
    }
    Ok((programs, companions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_say_what_a_test_needs() {
        let host: Stage = "host:hermetic,native".parse().expect("a stage");
        assert!(host.selects("handoff", "send::tests::plain"));
        assert!(host.selects("handoff", "native::send"));
        assert!(!host.selects("handoff", "guest::send"));
        assert!(!host.selects("handoff", "native::soak::send"));
        assert!(host.selects("handoff", "send::not_the_guest_module"), "a module is a whole word");
        let old: Stage =
            "bookworm:native:send::,order::native::a,-send::native::b".parse().expect("a stage");
        assert!(old.selects("send", "native::plain"));
        assert!(!old.selects("send", "native::bare"));
        assert!(old.selects("order", "native::a_stream"));
        assert!(!old.selects("order", "native::other"));
        assert!(!old.selects("handoff", "native::send::other"));
        assert!(!old.selects("send", "native::lab::plain"));
        assert!(!old.selects("send", "plain"));
    }

    #[test]
    fn each_test_is_in_one_part() {
        let parts = ["1/3", "2/3", "3/3"].map(|text| text.parse::<Part>().expect("a part"));
        for index in 0..10 {
            assert_eq!(parts.iter().filter(|part| part.has(index)).count(), 1);
        }
        assert_eq!(parts.map(Part::is_first), [true, false, false]);
        assert!(Part::WHOLE.has(0) && Part::WHOLE.has(7) && Part::WHOLE.is_first());
        for wrong in ["", "2", "0/3", "4/3", "1/0", "a/b", "1/2/3"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn stages_are_checked() {
        for wrong in ["", "host", "host:everything", "nowhere:native", "host:"] {
            assert!(wrong.parse::<Stage>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn programs_are_found_in_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/x/a/Cargo.toml","target":{"name":"some-lib"},"profile":{"test":true},"executable":"/x/target/some_lib-1"}
{"reason":"compiler-artifact","manifest_path":"/x/a/Cargo.toml","target":{"name":"tool"},"profile":{"test":false},"executable":"/x/target/tool"}
{"reason":"compiler-artifact","target":{"name":"dep"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
        let (programs, companions) = programs_from_cargo(messages).expect("messages");
        assert_eq!(programs.len(), 1);
        assert_eq!(programs[0].name, "some_lib");
        assert_eq!(programs[0].directory, Path::new("/x/a"));
        assert_eq!(companions, [PathBuf::from("/x/target/tool")]);
        assert!(programs_from_cargo("no json").is_err());
    }
}
