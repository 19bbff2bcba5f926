//! Reads what `cargo test` prints, and counts.
//!
//! Contracts:
//! - a program's figures are those of its own `test result:` line; a program without one crashed,
//!   and that is a failure;
//! - a test that printed `HANDOFF-SKIP name: reason` and did not fail is skipped, not passed; so is
//!   one that the harness ignored;
//! - whatever cannot be attributed is never counted as passed.

use std::collections::{BTreeMap, BTreeSet};

/// How many tests went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// One test program's run.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// How cargo announced it.
    pub(crate) name: String,
    pub(crate) counts: Counts,
    /// Skipped tests with their reasons.
    pub(crate) skips: BTreeMap<String, String>,
    /// Names of failed tests, or what else went wrong.
    pub(crate) failures: BTreeSet<String>,
    /// All that it printed.
    pub(crate) output: Vec<String>,
}

impl Program {
    /// One failure that is not that of a test.
    pub(crate) fn failed(name: &str, problem: String, output: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            counts: Counts { failed: 1, ..Counts::default() },
            failures: [problem].into(),
            output,
            ..Self::default()
        }
    }
}

/// Takes lines, gives programs.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    done: Vec<Program>,
    current: Option<Open>,
}

/// A program whose output is being read.
#[derive(Debug, Default)]
struct Open {
    program: Program,
    documentation: bool,
    result: Option<(usize, usize, usize)>,
    tests: BTreeSet<String>,
    /// The test whose captured output is being listed.
    listed: Option<String>,
    /// `HANDOFF-SKIP` lines: the test, as far as known, and the reason.
    said: Vec<(String, String)>,
}

impl Reader {
    pub(crate) fn line(&mut self, line: &str) {
        if let Some((name, documentation)) = announced(line) {
            self.close();
            let program = Program { name, ..Program::default() };
            self.current = Some(Open { program, documentation, ..Open::default() });
        } else if let Some(open) = &mut self.current {
            open.line(line);
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Program> {
        self.close();
        self.done
    }

    fn close(&mut self) {
        self.done.extend(self.current.take().map(Open::close));
    }
}

impl Open {
    fn line(&mut self, line: &str) {
        self.program.output.push(line.to_owned());
        if let Some((name, reason)) = skip(line) {
            let name = self.listed.clone().unwrap_or(name);
            self.said.push((name, reason));
        } else if let Some(figures) = result(line) {
            // Tests may start programs like themselves, whose lines then come first; doc tests are
            // run in several rounds under one announcement.
            self.result = Some(match (self.result, self.documentation) {
                (Some(sum), true) => (sum.0 + figures.0, sum.1 + figures.1, sum.2 + figures.2),
                _ => figures,
            });
            self.listed = None;
        } else if line == "successes:" || line == "failures:" {
            self.listed = None;
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.listed = Some(name.to_owned());
        } else if let Some((name, outcome)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
            && self.listed.is_none()
        {
            self.outcome(name, outcome);
        }
    }

    fn outcome(&mut self, name: &str, outcome: &str) {
        // "should panic" and "compile fail" stand behind the name.
        let name = name.split(" - should panic").next().unwrap_or(name).trim().to_owned();
        if outcome.starts_with("FAILED") {
            self.program.failures.insert(name.clone());
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches([',', ' ']);
            let reason = if reason.is_empty() { "ignored" } else { reason };
            self.program.skips.insert(name.clone(), reason.to_owned());
        }
        self.tests.insert(name);
    }

    fn close(mut self) -> Program {
        let Some((passed, failed, ignored)) = self.result else {
            self.program.failures.insert("ended without a result: it crashed or hung".to_owned());
            self.program.counts.failed = self.program.failures.len();
            return self.program;
        };
        let mut skipped = 0;
        for (said, reason) in std::mem::take(&mut self.said) {
            let name = self.known(&said);
            if self.program.failures.contains(&name) || self.program.skips.contains_key(&name) {
                continue;
            }
            self.program.skips.insert(name, reason);
            skipped += 1;
        }
        self.program.counts =
            Counts { passed: passed.saturating_sub(skipped), failed, skipped: ignored + skipped };
        if failed > 0 && self.program.failures.is_empty() {
            self.program.failures.insert(format!("{failed} without a name"));
        }
        self.program
    }

    /// The harness's name for a test that named itself, perhaps with its crate in front or without
    /// its modules.
    fn known(&self, said: &str) -> String {
        let said = said.trim_end_matches("::{{closure}}");
        let alike = |test: &&String| {
            *test == said
                || said.strip_suffix(test.as_str()).is_some_and(|front| front.ends_with("::"))
                || test.strip_suffix(said).is_some_and(|front| front.ends_with("::"))
        };
        self.tests.iter().find(alike).map_or(said, String::as_str).to_owned()
    }
}

/// Cargo's announcement of a test program: its name, and whether it is documentation.
fn announced(line: &str) -> Option<(String, bool)> {
    let trimmed = line.trim_start();
    // Cargo indents its announcements; a program that prints the same word does not.
    if trimmed.len() == line.len() {
        return None;
    }
    if let Some(package) = trimmed.strip_prefix("Doc-tests ") {
        return Some((format!("{} documentation", package.trim()), true));
    }
    let (source, binary) = trimmed.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let stem = binary.rsplit('/').next()?;
    let stem = stem.rsplit_once('-').map_or(stem, |(stem, _)| stem);
    Some(match source.strip_prefix("unittests ") {
        Some(source) => (format!("{stem} {source}"), false),
        None => (source.to_owned(), false),
    })
}

/// The passed, failed and ignored of a `test result:` line.
fn result(line: &str) -> Option<(usize, usize, usize)> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, rest) = rest.split_once(". ")?;
    let mut figures = rest.split("; ");
    let mut next = |word: &str| figures.next()?.strip_suffix(word)?.trim().parse::<usize>().ok();
    Some((next("passed")?, next("failed")?, next("ignored")?))
}

/// The test and the reason of a skip line.
fn skip(line: &str) -> Option<(String, String)> {
    // A harness with one thread has printed `test name ... ` before it on the same line.
    let (_, rest) = line.split_once("HANDOFF-SKIP ")?;
    let (name, reason) = rest.split_once(": ")?;
    Some((name.trim().to_owned(), reason.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Program> {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        reader.finish()
    }

    fn counts(passed: usize, failed: usize, skipped: usize) -> Counts {
        Counts { passed, failed, skipped }
    }

    #[test]
    fn skips_are_not_passes() {
        let programs = read(
            "
     Running unittests src/lib.rs (target/debug/deps/handoff_lab-0a1b)

running 4 tests
test topology::tests::pair ... ok

HANDOFF-SKIP handoff_lab::topology::tests::netem: no netem here
test topology::tests::netem ... ok
test plain ... ok
test slow ... ignored, takes an hour

successes:

---- plain stdout ----
HANDOFF-SKIP plain: no kernel: for that
HANDOFF-SKIP plain: said twice

successes:
    plain

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(programs.len(), 1);
        assert_eq!(programs[0].name, "handoff_lab src/lib.rs");
        assert_eq!(programs[0].counts, counts(1, 0, 3));
        let skips: Vec<_> = programs[0].skips.iter().map(|(a, b)| (&a[..], &b[..])).collect();
        assert_eq!(
            skips,
            [
                ("plain", "no kernel: for that"),
                ("slow", "takes an hour"),
                ("topology::tests::netem", "no netem here"),
            ]
        );
    }

    #[test]
    fn a_failure_stays_one_whatever_it_says() {
        let programs = read(
            "
     Running tests/send.rs (target/debug/deps/send-0a1b)
running 2 tests
test a ... FAILED
test b ... ok

successes:

failures:

---- a stdout ----
HANDOFF-SKIP a: half way
thread 'a' panicked

failures:
    a

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(programs[0].name, "tests/send.rs");
        assert_eq!(programs[0].counts, counts(1, 1, 0));
        assert!(programs[0].skips.is_empty());
        assert!(programs[0].failures.contains("a"));
    }

    #[test]
    fn a_crash_is_a_failure() {
        let programs = read(
            "
     Running tests/one.rs (target/debug/deps/one-0a1b)
running 2 tests
test a ... ok
     Running tests/two.rs (target/debug/deps/two-0a1b)
running 1 test
test a ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(programs[0].counts, counts(0, 1, 0));
        assert_eq!(programs[1].counts, counts(1, 0, 0));
    }

    #[test]
    fn inner_programs_do_not_count_and_documentation_adds_up() {
        let programs = read(
            "
     Running tests/ui.rs (target/debug/deps/ui-0a1b)
running 1 test
test tests/ui/moved.rs ... ok
test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
test ui ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
   Doc-tests handoff
running 2 tests
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
running 1 test
test src/lib.rs - (line 3) - compile fail ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(programs[0].counts, counts(1, 0, 0));
        assert_eq!(
            (&programs[1].name[..], programs[1].counts),
            ("handoff documentation", counts(3, 0, 0))
        );
    }
}
