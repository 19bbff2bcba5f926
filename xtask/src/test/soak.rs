//! A long run: it may be interrupted and go on later, and its result is added to the figures.
//!
//! Contracts:
//! - steps that have ended, and each test's result, are kept below `target/soak`, apart for each part; the next run of
//!   the same part does only what is left, if nothing has changed outside `docs`;
//! - the result is one row, once all has ended: the last row of the last table in the file.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use test_runner::Part;

pub(super) const FIGURES: &str = "docs/figures/long-runs.md";

const DIRECTORY: &str = "target/soak";
const STATE: &str = "state.json";

pub(super) struct Soak {
    directory: PathBuf,
    command: String,
    begin: Instant,
    state: State,
}

/// What is kept of an interrupted run.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    /// The tree, and what of it runs; `None` where nobody can go on with it.
    run: Option<String>,
    seconds: u64,
    /// The lines of steps that have ended well.
    passed: BTreeMap<String, Vec<String>>,
    /// A line for each failure, the step's name in front.
    failures: Vec<String>,
}

impl Soak {
    /// Goes on with an interrupted run of this part of `what` of the tree, or begins one. A run of what has changed
    /// since a revision leaves an interrupted run of all as it is.
    pub(super) fn begin(part: Part, changed: Option<&str>, what: &str) -> Result<Self, String> {
        let run = tree().map(|tree| format!("{tree} {what}"));
        let mut name = part.to_string().replace('/', "-");
        let mut command = "make soak".to_owned();
        if part != Part::WHOLE {
            command += &format!(" PART={part}");
        }
        if let Some(revision) = changed {
            name += "-changed";
            command += &format!(" CHANGED={revision}");
        }
        let directory = Path::new(DIRECTORY).join(name);
        let mut soak = Self { directory, command, begin: Instant::now(), state: State::default() };
        let state = || serde_json::from_slice::<State>(&fs::read(soak.file(STATE)).ok()?).ok();
        let earlier = state().filter(|state| state.run.is_some() && state.run == run);
        if earlier.is_none() {
            super::gone(fs::remove_dir_all(&soak.directory))
                .and_then(|()| fs::create_dir_all(&soak.directory))
                .map_err(|error| soak.failed(error))?;
        }
        soak.state = earlier.unwrap_or(State { run, ..State::default() });
        soak.save()?;
        Ok(soak)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn failed(&self, error: io::Error) -> String {
        format!("{}: {error}", self.directory.display())
    }

    /// Tells the user whether it goes on, or can.
    pub(super) fn outlook(&self) -> String {
        let before = humantime::format_duration(Duration::from_secs(self.state.seconds));
        match (&self.state.run, self.state.seconds) {
            (None, _) => {
                "Not all is committed, so it can't go on after an interruption.".to_owned()
            }
            (Some(_), 0) => "After an interruption it goes on when you begin it again.".to_owned(),
            (Some(_), _) => format!("It goes on after {before}."),
        }
    }

    /// What the user types to go on with it.
    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Where the tests' results are kept.
    pub(super) fn results(&self) -> PathBuf {
        self.file("results")
    }

    /// Where everything known about failed tests is kept.
    pub(super) fn kept(&self) -> PathBuf {
        self.file("failures")
    }

    /// The lines of a step that has ended well.
    pub(super) fn passed(&self, step: &str) -> Option<&[String]> {
        self.state.passed.get(step).map(Vec::as_slice)
    }

    pub(super) fn failures(&self) -> &[String] {
        &self.state.failures
    }

    /// Keeps that a step has ended well, with these lines.
    pub(super) fn pass(&mut self, step: &str, lines: &[String]) -> Result<(), String> {
        self.state.passed.insert(step.to_owned(), lines.to_vec());
        self.save()
    }

    /// Keeps a failure.
    pub(super) fn fail(&mut self, line: &str) -> Result<(), String> {
        self.state.failures.push(line.to_owned());
        self.save()
    }

    /// All has ended: adds a row with the commit, the machine, the time and the result.
    pub(super) fn end(self, result: &str) -> Result<(), String> {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let machine = format!(
            "{} processors, Linux {}",
            thread::available_parallelism().map_or(1, usize::from),
            rustix::system::uname().release().to_string_lossy(),
        );
        let took = Duration::from_secs(self.seconds());
        let row = row([&date[..10], &commit(), &self.command, &machine], took, result);
        // Nobody goes on with it. What is known of its failures stays until the next begins.
        fs::remove_file(self.file(STATE)).map_err(|error| self.failed(error))?;
        OpenOptions::new()
            .append(true)
            .open(FIGURES)
            .and_then(|mut file| file.write_all(row.as_bytes()))
            .map_err(|error| format!("{FIGURES}: {error}"))
    }

    fn seconds(&self) -> u64 {
        self.state.seconds + self.begin.elapsed().as_secs()
    }

    /// Keeps the time until now, too. Whoever is killed meanwhile leaves the state before.
    pub(super) fn save(&self) -> Result<(), String> {
        let state = State { seconds: self.seconds(), ..self.state.clone() };
        let new = self.file("state.new");
        let json = serde_json::to_vec(&state).map_err(io::Error::from);
        json.and_then(|json| fs::write(&new, json))
            .and_then(|()| fs::rename(&new, self.file(STATE)))
            .map_err(|error| self.failed(error))
    }
}

fn row([date, commit, command, machine]: [&str; 4], took: Duration, result: &str) -> String {
    let minutes = took.as_secs().div_ceil(60);
    format!("| {date} | {commit} | `{command}` | {machine} | {minutes} min | {result} |\n")
}

/// What ran, as a row names it. A row of another part leaves `docs` changed.
fn commit() -> String {
    let known = tree().and_then(|commit| git(&["rev-parse", "--short", &commit]));
    known.or_else(|| git(&["describe", "--always", "--dirty"])).unwrap_or("unknown".to_owned())
}

/// The last commit that changed something outside `docs`; `None` where files differ from it.
fn tree() -> Option<String> {
    // A property test that fails writes down its case.
    const CODE: [&str; 4] = ["--", ".", ":!docs", ":!*proptest-regressions*"];
    let changes = git(&[&["status", "--porcelain"][..], &CODE].concat())?;
    let commit = git(&[&["log", "-1", "--format=%H"][..], &CODE].concat())?;
    changes.is_empty().then_some(commit)
}

/// What git says, if it can.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_columns_of_the_table() {
        let figures = include_str!("../../../docs/figures/long-runs.md");
        let header = figures.lines().rfind(|line| line.starts_with("| date")).expect("a table");
        let texts = ["now", "abc", "make soak", "a machine"];
        let row = row(texts, Duration::from_secs(61), "1 passed");
        assert_eq!(row.matches('|').count(), header.matches('|').count());
        assert!(row.contains("| 2 min |") && row.ends_with("|\n"));
        // An addition at the end of the file belongs to the table.
        let last = figures.lines().next_back().expect("a line");
        assert!(last.starts_with('|') && figures.ends_with('\n'));
    }
}
