//! What took how long.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use test_runner::{Report, TestResult, Verdict};

/// How many of the longest tests are shown.
const LONGEST: usize = 20;

/// Prints a line for each program and place: its tests' results, and how long they took.
pub(super) fn programs(report: &Report) {
    for (place, name, tests) in by_program(report) {
        let count = |wanted: fn(&Verdict) -> bool| {
            tests.iter().filter(|test| wanted(&test.verdict)).count()
        };
        let passed = count(|verdict| matches!(verdict, Verdict::Passed));
        let failed = count(|verdict| matches!(verdict, Verdict::Failed { .. }));
        let skipped = count(|verdict| matches!(verdict, Verdict::Skipped { .. }));
        println!(
            "{place:9} {name:30} {passed:4} passed {failed:3} failed {skipped:3} skipped {:7.1} s, {:.1} \
             computing",
            sum(&tests).took,
            sum(&tests).computing,
        );
    }
}

/// What the steps, the places, the longest programs and the longest tests took.
pub(super) fn tables(steps: &[(&str, Duration)], report: &Report) -> String {
    let mut text = "\n| step | seconds |\n|---|---|\n".to_owned();
    for (name, took) in steps {
        text += &format!("| {name} | {:.1} |\n", took.as_secs_f64());
    }
    let mut places: BTreeMap<&str, Vec<&TestResult>> = BTreeMap::new();
    for test in &report.tests {
        places.entry(&test.place).or_default().push(test);
    }
    text += "\nTests run beside each other and wait for each other; `computing` is time on a processor:\n\n\
             | place | computing | seconds |\n|---|---|---|\n";
    for (place, tests) in places {
        text += &format!("| {place} | {} |\n", sum(&tests).cells());
    }
    let (boots, computing) = (report.boots, report.boots_processor_seconds);
    text += &format!("| {boots} boots for them | {computing:.1} | |\n");
    let mut programs = by_program(report);
    programs.sort_by(|(.., a), (.., b)| sum(b).by_computing(&sum(a)));
    text += "\n| place | program | tests | computing | seconds |\n|---|---|---|---|---|\n";
    for (place, name, tests) in programs.iter().take(LONGEST) {
        text += &format!("| {place} | {name} | {} | {} |\n", tests.len(), sum(tests).cells());
    }
    let mut tests: Vec<_> = report.tests.iter().collect();
    tests.sort_by(|a, b| sum(&[b]).by_computing(&sum(&[a])));
    text += "\n| place | test | computing | seconds |\n|---|---|---|---|\n";
    for test in tests.iter().take(LONGEST) {
        text += &format!("| {} | {} | {} |\n", test.place, test.name, sum(&[test]).cells());
    }
    text
}

/// The tests of each program at each place.
fn by_program(report: &Report) -> Vec<(&str, &str, Vec<&TestResult>)> {
    let mut programs: BTreeMap<(&str, &str), Vec<&TestResult>> = BTreeMap::new();
    for test in &report.tests {
        let program = test.name.split("::").next().unwrap_or_default();
        programs.entry((&test.place, program)).or_default().push(test);
    }
    programs.into_iter().map(|((place, program), tests)| (place, program, tests)).collect()
}

/// Seconds of tests.
struct Sum {
    computing: f64,
    took: f64,
}

impl Sum {
    fn cells(&self) -> String {
        format!("{:.1} | {:.1}", self.computing, self.took)
    }

    fn by_computing(&self, other: &Self) -> Ordering {
        self.computing.total_cmp(&other.computing)
    }
}

fn sum(tests: &[&TestResult]) -> Sum {
    Sum {
        computing: tests.iter().map(|test| test.processor_seconds).sum(),
        took: tests.iter().map(|test| test.seconds).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(place: &str, name: &str, seconds: f64, processor_seconds: f64) -> TestResult {
        TestResult {
            place: place.to_owned(),
            name: name.to_owned(),
            verdict: Verdict::Passed,
            seconds,
            processor_seconds,
            ran: true,
            kept: None,
        }
    }

    #[test]
    fn the_tables_have_steps_places_programs_and_the_tests_that_compute_most() {
        let mut tests = vec![
            ran("host", "cp::local::pipes", 3.0, 4.0),
            ran("7.2", "cp::guest::lease", 5.0, 4.5),
            ran("7.2", "blk::guest::leases", 9.5, 9.0),
            ran("7.2", "cp::guest::nic", 16.0, 1.0),
        ];
        tests.extend((0..LONGEST).map(|number| ran("7.2", &format!("short::{number}"), 0.2, 0.1)));
        let report = Report { tests, boots: 2, boots_processor_seconds: 6.5, ..Report::default() };
        let text = tables(&[("build", Duration::from_millis(1_250))], &report);
        let expected = "\n| step | seconds |\n|---|---|\n| build | 1.2 |\n\
            \nTests run beside each other and wait for each other; `computing` is time on a processor:\n\n\
            | place | computing | seconds |\n|---|---|---|\n| 7.2 | 16.5 | 34.5 |\n\
            | host | 4.0 | 3.0 |\n| 2 boots for them | 6.5 | |\n\
            \n| place | program | tests | computing | seconds |\n|---|---|---|---|---|\n\
            | 7.2 | blk | 1 | 9.0 | 9.5 |\n| 7.2 | cp | 2 | 5.5 | 21.0 |\n\
            | host | cp | 1 | 4.0 | 3.0 |\n| 7.2 | short | 20 | 2.0 | 4.0 |\n\
            \n| place | test | computing | seconds |\n|---|---|---|---|\n\
            | 7.2 | blk::guest::leases | 9.0 | 9.5 |\n| 7.2 | cp::guest::lease | 4.5 | 5.0 |\n\
            | host | cp::local::pipes | 4.0 | 3.0 |\n| 7.2 | cp::guest::nic | 1.0 | 16.0 |\n\
            | 7.2 | short::0 | 0.1 | 0.2 |\n";
        assert!(text.starts_with(expected), "{text}");
        let longest = text.rsplit("|---|---|---|---|\n").next().map(|rows| rows.lines().count());
        assert_eq!(longest, Some(LONGEST));
    }
}
