//! What took how long.

use std::collections::BTreeMap;
use std::time::Duration;

use handoff_lab::testing::{Report, TestResult, Verdict};

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
            "{place:9} {name:30} {passed:4} passed {failed:3} failed {skipped:3} skipped {:7.1} s",
            sum(&tests),
        );
    }
}

/// Prints what the steps, the places, the longest programs and the longest tests took.
pub(super) fn table(steps: &[(&str, Duration)], report: &Report) {
    println!("\n| step | seconds |\n|---|---|");
    for (name, took) in steps {
        println!("| {name} | {:.1} |", took.as_secs_f64());
    }
    let mut places: BTreeMap<&str, f64> = BTreeMap::new();
    for test in &report.tests {
        *places.entry(&test.place).or_default() += test.seconds;
    }
    println!("\nTests run beside each other, so these add up to more than they took:\n");
    println!("| place | seconds |\n|---|---|");
    for (place, seconds) in places {
        println!("| {place} | {seconds:.1} |");
    }
    let mut programs = by_program(report);
    programs.sort_by(|(.., a), (.., b)| sum(b).total_cmp(&sum(a)));
    println!("\n| place | program | tests | seconds |\n|---|---|---|---|");
    for (place, name, tests) in programs.iter().take(LONGEST) {
        println!("| {place} | {name} | {} | {:.1} |", tests.len(), sum(tests));
    }
    let mut tests: Vec<_> = report.tests.iter().collect();
    tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("\n| place | test | seconds |\n|---|---|---|");
    for test in tests.iter().take(LONGEST) {
        println!("| {} | {} | {:.1} |", test.place, test.name, test.seconds);
    }
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

fn sum(tests: &[&TestResult]) -> f64 {
    tests.iter().map(|test| test.seconds).sum()
}
