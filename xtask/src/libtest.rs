//! Reads what `cargo test` prints, program by program, and counts.
//!
//! Contracts:
//! - a program's figures are those of its own `test result:` line; a program without one crashed or
//!   was cut short, and that is a failure;
//! - what a program says of its tests is read by [`Output`]; a skipped test is not passed;
//! - whatever cannot be attributed is never counted as passed.

use std::collections::{BTreeMap, BTreeSet};

use handoff_lab::testing::{Output, Sums};

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
    told: Output,
}

impl Reader {
    pub(crate) fn line(&mut self, line: &str) {
        if let Some((name, documentation)) = announced(line) {
            self.close(None);
            let program = Program { name, ..Program::default() };
            self.current = Some(Open { program, documentation, ..Open::default() });
        } else if let Some(open) = &mut self.current {
            open.line(line);
        }
    }

    /// All programs; `cut` is why the last was ended, if it was.
    pub(crate) fn finish(mut self, cut: Option<&str>) -> Vec<Program> {
        self.close(cut);
        self.done
    }

    fn close(&mut self, cut: Option<&str>) {
        self.done.extend(self.current.take().map(|open| open.close(cut)));
    }
}

impl Open {
    fn line(&mut self, line: &str) {
        self.program.output.push(line.to_owned());
        self.told.line(line);
    }

    fn close(self, cut: Option<&str>) -> Program {
        let Self { mut program, documentation, told } = self;
        program.failures = told.failures().map(str::to_owned).collect();
        // What a program has printed that was cut short may be the sums of another, see below.
        let Some(&last) = told.sums().last().filter(|_| cut.is_none()) else {
            let cause = cut.unwrap_or("crashed or hung");
            program.failures.insert(format!("ended without a result: it {cause}"));
            program.counts.failed = program.failures.len();
            return program;
        };
        // Tests may start programs like themselves, whose lines then come first; doc tests are run
        // in several rounds under one announcement.
        let sums = if documentation {
            told.sums().iter().fold(Sums::default(), |all, one| Sums {
                passed: all.passed + one.passed,
                failed: all.failed + one.failed,
                ignored: all.ignored + one.ignored,
            })
        } else {
            last
        };
        program.skips = told.skips();
        let skipped = program.skips.len();
        let Sums { passed, failed, ignored } = sums;
        program.counts = Counts {
            passed: passed.saturating_sub(skipped.saturating_sub(ignored)),
            failed,
            skipped: skipped.max(ignored),
        };
        if failed > 0 && program.failures.is_empty() {
            program.failures.insert(format!("{failed} without a name"));
        }
        program
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Program> {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        reader.finish(None)
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
    fn only_the_program_that_hung_is_said_to_have_hung() {
        let mut reader = Reader::default();
        for line in [
            "     Running tests/one.rs (target/debug/deps/one-0a1b)",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s",
            "     Running tests/two.rs (target/debug/deps/two-0a1b)",
            "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s",
            "test a ... ok",
        ] {
            reader.line(line);
        }
        let programs = reader.finish(Some("had printed nothing for 15m"));
        assert_eq!(programs[0].counts, counts(1, 0, 0));
        assert_eq!(programs[1].counts, counts(0, 1, 0));
        let cause = "ended without a result: it had printed nothing for 15m";
        assert!(programs[1].failures.contains(cause), "{:?}", programs[1].failures);
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
