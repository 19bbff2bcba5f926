//! The language of Rust's test programs: what they list, and what they print.

use std::collections::BTreeMap;

use super::{Program, Verdict};
use crate::error::Result;
use crate::skip::MARK;
use crate::tool::{self, StopFlag};

/// The names of all tests in a program, ignored ones too.
pub(super) fn list(program: &Program, stop: &StopFlag) -> Result<Vec<String>> {
    let mut list = std::process::Command::new(&program.path);
    list.args(["--list", "--format=terse"]).current_dir(&program.directory);
    Ok(names(&tool::run(list, stop, |_| {})?))
}

fn names(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The arguments that run exactly `tests`, also ignored ones, and show what each printed.
pub(super) fn arguments<'a>(tests: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["--exact", "--include-ignored", "--show-output", "--color=never"];
    arguments.extend(tests);
    arguments
}

/// What came of each of `tests`, from all that the program printed. `ended` tells how the program
/// itself ended, for tests that it says nothing about.
pub(super) fn verdicts(tests: &[&str], printed: &str, ended: &str) -> Vec<Verdict> {
    let mut output = Output::default();
    printed.lines().for_each(|line| output.line(line));
    let skips = output.skips();
    let verdict = |test: &&str| match (output.results.get(*test), skips.get(*test)) {
        (Some(Told::Passed | Told::Ignored(_)), Some(reason)) => {
            Verdict::Skipped { reason: reason.clone() }
        }
        (Some(Told::Passed), None) => Verdict::Passed,
        (Some(Told::Failed), _) => {
            let reason = output.printed.get(*test).map(|text| text.trim().to_owned());
            Verdict::Failed { reason: reason.unwrap_or_default() }
        }
        (Some(Told::Ignored(_)) | None, _) => {
            let tail: Vec<&str> = printed.lines().rev().take(20).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            let reason = format!("no result: the program {ended}\n{}", tail.join("\n"));
            Verdict::Failed { reason }
        }
    };
    tests.iter().map(verdict).collect()
}

/// What one test program has printed, read line by line.
///
/// Contracts:
/// - a test's result is what the harness says outside of the output of tests: what tests print,
///   other harnesses' results too, counts for nothing;
/// - a test that printed `HANDOFF-SKIP name: reason` and did not fail is skipped, and so is one that
///   the harness ignored. The test is the one whose output it stands in; where output is not told
///   apart, the one that the line names, perhaps with its crate in front or without its modules.
#[derive(Debug, Default)]
pub struct Output {
    results: BTreeMap<String, Told>,
    /// What each test has printed.
    printed: BTreeMap<String, String>,
    /// The test whose output is being listed.
    listed: Option<String>,
    /// Whether that output has come to another harness's, which ends with its sums.
    inner: bool,
    /// The skip lines: the test, as far as known, and the reason.
    said: Vec<(String, String)>,
    sums: Vec<Sums>,
}

/// What the harness says of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Passed,
    Failed,
    Ignored(String),
}

/// The figures of a `test result:` line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Tests that passed, or skipped by themselves.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that were not run.
    pub ignored: usize,
}

impl Output {
    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        if let Some((name, reason)) = skip(line) {
            self.said.push((self.listed.clone().unwrap_or(name), reason));
        } else if let Some(sums) = sums(line) {
            self.sums.push(sums);
            self.inner = false;
        } else if self.inner {
            // What another harness says of its tests.
        } else if self.listed.is_some() && line.starts_with("running ") {
            self.inner = line.ends_with(" test") || line.ends_with(" tests");
        } else if line == "successes:" || line == "failures:" {
            self.listed = None;
            return;
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.listed = Some(name.to_owned());
            return;
        } else if self.listed.is_none()
            && let Some((name, result)) =
                line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            self.result(name, result.trim());
        }
        if let Some(name) = &self.listed {
            let printed = self.printed.entry(name.clone()).or_default();
            printed.push_str(line);
            printed.push('\n');
        }
    }

    fn result(&mut self, name: &str, result: &str) {
        // "should panic" stands behind the name.
        let name = name.split(" - should panic").next().unwrap_or(name).trim().to_owned();
        let told = if result.starts_with("FAILED") {
            Told::Failed
        } else if let Some(reason) = result.strip_prefix("ignored") {
            let reason = reason.trim_start_matches([',', ' ']);
            Told::Ignored(if reason.is_empty() { "ignored" } else { reason }.to_owned())
        } else if result == "ok" {
            Told::Passed
        } else {
            return;
        };
        self.results.insert(name, told);
    }

    /// All `test result:` lines, those of harnesses that tests have started among them; the
    /// program's own is the last. None: it crashed.
    pub fn sums(&self) -> &[Sums] {
        &self.sums
    }

    /// The tests that failed.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.results.iter().filter(|(_, told)| **told == Told::Failed).map(|(name, _)| &name[..])
    }

    /// The tests that skipped or were ignored, with their reasons.
    pub fn skips(&self) -> BTreeMap<String, String> {
        let mut skips: BTreeMap<String, String> = BTreeMap::new();
        for (name, told) in &self.results {
            if let Told::Ignored(reason) = told {
                skips.insert(name.clone(), reason.clone());
            }
        }
        for (said, reason) in &self.said {
            let name = self.results.keys().find(|test| alike(test, said)).unwrap_or(said);
            if self.results.get(name) != Some(&Told::Failed) {
                skips.entry(name.clone()).or_insert_with(|| reason.clone());
            }
        }
        skips
    }
}

/// Whether a test named itself so, perhaps with its crate in front or without its modules.
fn alike(test: &str, said: &str) -> bool {
    let said = said.trim_end_matches("::{{closure}}");
    test == said
        || said.strip_suffix(test).is_some_and(|front| front.ends_with("::"))
        || test.strip_suffix(said).is_some_and(|front| front.ends_with("::"))
}

fn sums(line: &str) -> Option<Sums> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, rest) = rest.split_once(". ")?;
    let mut figures = rest.split("; ");
    let mut next = |word: &str| figures.next()?.strip_suffix(word)?.trim().parse::<usize>().ok();
    Some(Sums { passed: next("passed")?, failed: next("failed")?, ignored: next("ignored")? })
}

/// The test and the reason of a skip line.
fn skip(line: &str) -> Option<(String, String)> {
    // A harness with one thread has printed `test name ... ` before it on the same line.
    let (_, rest) = line.split_once(MARK)?;
    let (name, reason) = rest.split_once(": ")?;
    Some((name.trim().to_owned(), reason.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "
running 5 tests
test a::good ... ok
test a::bad ... FAILED
test a::elsewhere ... ok
test a::panics - should panic ... ok
test a::inner ... FAILED

successes:

---- a::elsewhere stdout ----
something
HANDOFF-SKIP program::a::elsewhere: no such device: none


successes:
    a::good

failures:

---- a::bad stdout ----
thread 'a::bad' panicked at x.rs:1:2:
left is not right

---- a::inner stdout ----
running 1 test
test a::inner ... FAILED
failures:
    a::inner
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured
HANDOFF-SKIP a::inner: too late

failures:
    a::bad
    a::inner

test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured
";

    #[test]
    fn three_results_are_told_apart() {
        let tests = ["a::good", "a::bad", "a::elsewhere", "a::panics", "a::lost", "a::inner"];
        let verdicts = verdicts(&tests, PRINTED, "was killed by signal 11");
        assert_eq!(verdicts[0], Verdict::Passed);
        assert!(
            matches!(&verdicts[1], Verdict::Failed { reason } if reason.ends_with("not right"))
        );
        assert_eq!(verdicts[2], Verdict::Skipped { reason: "no such device: none".to_owned() });
        assert_eq!(verdicts[3], Verdict::Passed);
        assert!(matches!(&verdicts[4], Verdict::Failed { reason } if reason.contains("signal 11")));
        assert!(matches!(&verdicts[5], Verdict::Failed { reason } if reason.contains("too late")));
        assert!(
            matches!(&verdicts[5], Verdict::Failed { reason } if reason.contains("running 1 test"))
        );
    }

    #[test]
    fn listings_name_tests_only() {
        assert_eq!(names("a::b: test\nc: benchmark\n\n2 tests, 1 benchmark\n"), ["a::b"]);
    }
}
