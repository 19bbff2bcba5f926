//! The output of Rust's test programs: the list of tests, and their results.

use std::process::Command;

use handoff_lab::{Error, Result, Trying as _};
use handoff_testbed::skip::MARK;

use crate::report::Verdict;
use crate::selection::Program;

/// The names of all tests in a program, ignored ones too.
pub(super) fn list(program: &Program) -> Result<Vec<String>> {
    let mut list = Command::new(&program.path);
    list.args(["--list", "--format=terse"]).current_dir(&program.directory);
    let output = list.output().trying(program.path.display())?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let cause = format!("{} does not list its tests: {stderr}", program.path.display());
        return Err(Error::Failed(cause));
    }
    Ok(names(&String::from_utf8_lossy(&output.stdout)))
}

fn names(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The arguments that run exactly this test, even if it is ignored. Its output comes unbuffered, so
/// nothing is lost when the test crashes or hangs.
pub(super) fn arguments(test: &str) -> [&str; 5] {
    ["--exact", "--include-ignored", "--nocapture", "--color=never", test]
}

/// The result of a test that had a program to itself, from the program's whole output and from how it
/// ended: whether well, and in words.
pub(super) fn verdict(test: &str, printed: &str, well: bool, ended: &str) -> Verdict {
    let mut output = Output::default();
    printed.lines().for_each(|line| output.line(line));
    match (output.sums.last(), output.skips.first()) {
        (Some(Sums { passed: 1, failed: 0, .. }), skip) if well => match skip {
            Some((_, reason)) => Verdict::Skipped { reason: reason.clone() },
            None => Verdict::Passed,
        },
        // The harness ends like this when a test has failed.
        (Some(Sums { failed: 1, .. }), _) if !well => {
            Verdict::Failed { reason: words_of(test, printed) }
        }
        _ => {
            let reason = format!("no result: the program {ended}\n{}", words_of(test, printed));
            Verdict::Failed { reason }
        }
    }
}

/// The test's own output, without the harness's text around it.
fn words_of(test: &str, printed: &str) -> String {
    let (result, listed) = (format!("test {test} ... "), format!("    {test}"));
    let is_harness = |line: &str| {
        line.starts_with(&result)
            || line.starts_with("test result: ")
            || ["running 1 test", "failures:", &listed].contains(&line)
    };
    let words: Vec<&str> = printed.lines().filter(|line| !is_harness(line)).collect();
    words.join("\n").trim().to_owned()
}

/// The output of a test program, read line by line.
///
/// Contract: a test that printed `HANDOFF-SKIP name: reason` is skipped, and so is one that the harness
/// ignored.
#[derive(Debug, Default)]
pub struct Output {
    /// The skip lines and the ignored tests: the test and the reason.
    skips: Vec<(String, String)>,
    sums: Vec<Sums>,
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
        if let Some(skip) = skip(line).or_else(|| ignored(line)) {
            self.skips.push(skip);
        } else if let Some(sums) = sums(line) {
            self.sums.push(sums);
        }
    }

    /// All `test result:` lines, with those of harnesses that tests started; the program's own is the
    /// last. Without any, the program crashed.
    pub fn sums(&self) -> &[Sums] {
        &self.sums
    }

    /// The tests that skipped or were ignored, with their reasons.
    pub fn skips(&self) -> &[(String, String)] {
        &self.skips
    }
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
    // A harness with one thread printed `test name ... ` before it on the same line.
    let (_, rest) = line.split_once(MARK)?;
    let (name, reason) = rest.split_once(": ")?;
    Some((name.trim().to_owned(), reason.trim().to_owned()))
}

/// The test that a harness ignored, and the reason.
fn ignored(line: &str) -> Option<(String, String)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let reason = result.trim().strip_prefix("ignored")?.trim_start_matches([',', ' ']);
    Some((name.trim().to_owned(), if reason.is_empty() { "ignored" } else { reason }.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With another harness's text within, as from a test that starts its program again.
    const FAILED: &str = "
running 1 test
something
running 1 test
test a::b ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured
thread 'a::b' panicked at x.rs:1:2:
left is not right
test a::b ... FAILED

failures:

failures:
    a::b

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured
";

    #[test]
    fn three_results_are_told_apart() {
        let passed = "running 1 test\nsomething\ntest a::b ... ok\n
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n";
        let of = |printed: &str, well| verdict("a::b", printed, well, "was killed by signal 11");
        assert_eq!(of(passed, true), Verdict::Passed);
        let skipped = format!("HANDOFF-SKIP program::a::b: no such device: none\n{passed}");
        assert_eq!(
            of(&skipped, true),
            Verdict::Skipped { reason: "no such device: none".to_owned() }
        );
        let reason = |verdict| match verdict {
            Verdict::Failed { reason } => reason,
            other => panic!("{other:?}"),
        };
        let words = "something\nthread 'a::b' panicked at x.rs:1:2:\nleft is not right";
        assert_eq!(reason(of(FAILED, false)), words);
        let skipped = format!("HANDOFF-SKIP a::b: too late\n{FAILED}");
        assert!(reason(of(&skipped, false)).ends_with("not right"));
        // A program that ends before its harness does, or of which only a child has passed.
        for (printed, well) in [("words", true), ("words", false), (passed, false)] {
            let reason = reason(of(printed, well));
            assert!(reason.starts_with("no result: the program was killed by signal 11\n"));
            assert!(reason.ends_with(if printed == passed { "something" } else { "words" }));
        }
    }

    #[test]
    fn ignored_tests_have_their_reasons() {
        let mut output = Output::default();
        ["test a ... ok", "test b ... ignored", "test c - x (line 3) ... ignored, no time"]
            .iter()
            .for_each(|line| output.line(line));
        let skips = [("b", "ignored"), ("c - x (line 3)", "no time")];
        assert_eq!(output.skips(), skips.map(|(test, why)| (test.to_owned(), why.to_owned())));
    }

    #[test]
    fn listings_name_tests_only() {
        assert_eq!(names("a::b: test\nc: benchmark\n\n2 tests, 1 benchmark\n"), ["a::b"]);
    }
}
