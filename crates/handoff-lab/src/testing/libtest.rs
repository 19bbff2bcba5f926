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
    let results = results(printed);
    let outputs = outputs(printed);
    tests
        .iter()
        .map(|test| {
            let output = outputs.get(test).map(String::as_str).unwrap_or_default();
            match results.get(test) {
                Some(true) => match skip_reason(output) {
                    Some(reason) => Verdict::Skipped { reason },
                    None => Verdict::Passed,
                },
                Some(false) => Verdict::Failed { reason: output.trim().to_owned() },
                None => {
                    let tail: Vec<&str> = printed.lines().rev().take(20).collect();
                    let tail: Vec<&str> = tail.into_iter().rev().collect();
                    let reason = format!("no result: the program {ended}\n{}", tail.join("\n"));
                    Verdict::Failed { reason }
                }
            }
        })
        .collect()
}

/// `test NAME ... ok` and `... FAILED`; with a note after the name for tests that should panic.
fn results(printed: &str) -> BTreeMap<&str, bool> {
    let mut results = BTreeMap::new();
    for line in printed.lines() {
        let Some((name, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        else {
            continue;
        };
        let name = name.split(" - ").next().unwrap_or(name);
        match result.trim() {
            "ok" => drop(results.insert(name, true)),
            other if other.starts_with("FAILED") => drop(results.insert(name, false)),
            _ => {}
        }
    }
    results
}

/// The sections `---- NAME stdout ----`.
fn outputs(printed: &str) -> BTreeMap<&str, String> {
    let mut outputs: BTreeMap<&str, String> = BTreeMap::new();
    let mut current = None;
    for line in printed.lines() {
        let head = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if head.is_some() {
            current = head;
        } else if line == "successes:" || line == "failures:" {
            current = None;
        } else if let Some(name) = current {
            let output = outputs.entry(name).or_default();
            output.push_str(line);
            output.push('\n');
        }
    }
    outputs
}

fn skip_reason(output: &str) -> Option<String> {
    let said = output.lines().find_map(|line| line.strip_prefix(MARK))?;
    // The name in front is for runners that do not know whose output this is.
    Some(said.split_once(": ").map_or(said, |(_, reason)| reason).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "
running 4 tests
test a::good ... ok
test a::bad ... FAILED
test a::elsewhere ... ok
test a::panics - should panic ... ok

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

failures:
    a::bad

test result: FAILED. 3 passed; 1 failed; 0 ignored
";

    #[test]
    fn three_results_are_told_apart() {
        let tests = ["a::good", "a::bad", "a::elsewhere", "a::panics", "a::lost"];
        let verdicts = verdicts(&tests, PRINTED, "was killed by signal 11");
        assert_eq!(verdicts[0], Verdict::Passed);
        assert!(
            matches!(&verdicts[1], Verdict::Failed { reason } if reason.ends_with("not right"))
        );
        assert_eq!(verdicts[2], Verdict::Skipped { reason: "no such device: none".to_owned() });
        assert_eq!(verdicts[3], Verdict::Passed);
        assert!(matches!(&verdicts[4], Verdict::Failed { reason } if reason.contains("signal 11")));
    }

    #[test]
    fn listings_name_tests_only() {
        assert_eq!(names("a::b: test\nc: benchmark\n\n2 tests, 1 benchmark\n"), ["a::b"]);
    }
}
