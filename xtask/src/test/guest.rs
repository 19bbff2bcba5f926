//! The guest tier: `handoff lab test` runs test programs on the lab's kernels and reports.
//!
//! The programs are those of the whole workspace; the stages say which tests of them run where.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{SOAK, Session, WHOLE, cargo};
use crate::libtest::{Counts, Program};
use crate::run::End;

const HANDOFF: &str = "target/debug/handoff";
const MESSAGES: &str = "target/test-programs.json";
const REPORT: &str = "target/guest-report.json";
/// The skips that are foreseen; any other is a failure.
const MAY_SKIP: &str = "lab/may-skip.txt";

/// How long one test may take in its long form.
const SOAK_SECONDS: &str = "7200";

/// Programs whose tests need nothing that a kernel may lack, and are about what kernels do: sending,
/// receiving, waiting. They run on this machine among the hermetic ones, and on each of the lab's
/// kernels.
const OF_KERNELS: [&str; 21] = [
    "allocations",
    "crowd",
    "descriptor",
    "files",
    "handoff_lab::topology",
    "kernels",
    "memlock",
    "no_ring",
    "order",
    "overflow",
    "own_loop",
    "peers",
    "probe",
    "probe_memlock",
    "receive",
    "registration",
    "send",
    "stages",
    "tokio_runtime",
    "veth",
    "wakers",
];

/// Tests of the command that depend on what an old kernel lacks.
const OF_OLD_KERNELS: &str = "cp::peers::,cp::refused::needs_root_a_user";

/// What has a guest to itself, since stages run beside each other: block devices; and the tests of
/// our own RDS engine, which wants the port that the kernel's takes in every namespace once a test has
/// loaded it, and unloading it can hang, with others that wait much.
const APART: [&[&str]; 2] = [
    &["blk::", "devices::"],
    &[
        "early_return::",
        "own_engine::native::",
        "rds_command::guest::seed::by_our_own_engine",
        "rds_command::native::",
        "rx_queue::",
    ],
];

/// What a guest shows nothing of that this machine does not, or another of its tests does.
const ONLY_HERE: [&str; 5] = [
    "published::native::rds",
    "published::native::recv",
    "published::native::send",
    "published::native::splice",
    "tour::native::",
];

/// Which tests run on which kernel: all that want root or a guest on the lab's, and the above there
/// and on Debian 12's.
fn stages() -> Vec<String> {
    let names = OF_KERNELS.map(|name| format!("{name}::")).join(",");
    let apart = APART.map(|names| format!("7.2:native,guest:{}", names.join(",")));
    let elsewhere = APART.concat().into_iter().chain(ONLY_HERE);
    let rest: Vec<_> = elsewhere.map(|name| format!("-{name}")).collect();
    // The longest first.
    vec![
        format!("7.2:native,guest:{}", rest.join(",")),
        apart[0].clone(),
        apart[1].clone(),
        format!("bookworm:hermetic,native:{names},{OF_OLD_KERNELS}"),
        format!("7.2:hermetic:{names}"),
    ]
}

/// The lab's exit code where this machine cannot run it, for want of QEMU for instance.
const NOT_POSSIBLE: i32 = 3;

pub(super) fn tests(session: &mut Session) {
    match run(session) {
        Ok(programs) => programs.into_iter().for_each(|program| session.count(program)),
        Err(program) => session.count(program),
    }
}

fn run(session: &mut Session) -> Result<Vec<Program>, Program> {
    let failed = |problem: String| Program::failed("lab", problem, Vec::new());
    let trouble = |file: &'static str| move |error| failed(format!("{file}: {error}"));

    let mut output = Vec::new();
    let mut build = cargo();
    build.args(["test", "--no-run", "--message-format=json"]).args(WHOLE);
    let end = session.watch(&mut build, None, |line| output.push(line.to_owned()));
    fs::write(MESSAGES, output.join("\n")).map_err(trouble(MESSAGES))?;
    if let Some(problem) = end.problem() {
        output.retain(|line| !line.starts_with('{'));
        return Err(Program::failed("build", problem, output));
    }

    match fs::remove_file(REPORT) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(trouble(REPORT)(error));
        }
        _ => {}
    }
    let mut lab = Command::new(HANDOFF);
    lab.args(["lab", "test", "--report", REPORT]);
    if Path::new(MAY_SKIP).exists() {
        lab.args(["--may-skip", MAY_SKIP]);
    }
    if session.soak {
        lab.env(SOAK, "1").args(["--timeout", SOAK_SECONDS]);
    }
    lab.args(stages().iter().flat_map(|stage| ["--stage", stage]));
    lab.stdin(Stdio::from(File::open(MESSAGES).map_err(trouble(MESSAGES))?));
    let mut output = Vec::new();
    let end = session.watch(&mut lab, session.silence(), |line| output.push(line.to_owned()));
    if end == End::Failure(Some(NOT_POSSIBLE)) {
        let reason = output.last().cloned().unwrap_or_default();
        return Ok(vec![Program {
            name: "lab".to_owned(),
            counts: Counts { skipped: 1, ..Counts::default() },
            skips: [("every test in a guest".to_owned(), reason)].into(),
            ..Program::default()
        }]);
    }
    match (fs::read(REPORT), end.problem()) {
        (Ok(report), _) => serde_json::from_slice(&report)
            .map(|report: Value| programs(&report))
            .map_err(|error| failed(format!("{REPORT}: {error}"))),
        (Err(_), Some(problem)) => Err(Program::failed("lab", problem, output)),
        (Err(error), None) => Err(trouble(REPORT)(error)),
    }
}

/// The report's tests, gathered by the kernel that they ran on.
fn programs(report: &Value) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    for test in report["tests"].as_array().into_iter().flatten() {
        let text = |key: &str| test[key].as_str().unwrap_or_default().to_owned();
        let name = format!("on {}", text("place"));
        let index = programs.iter().position(|program| program.name == name).unwrap_or_else(|| {
            programs.push(Program { name, ..Program::default() });
            programs.len() - 1
        });
        let program = &mut programs[index];
        match test["result"].as_str() {
            Some("passed") => program.counts.passed += 1,
            Some("skipped") => {
                program.counts.skipped += 1;
                program.skips.insert(text("name"), text("reason"));
            }
            _ => {
                program.counts.failed += 1;
                program.output.push(format!("{}: {}", text("name"), text("reason")));
                program.failures.insert(text("name"));
            }
        }
    }
    programs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_counted_by_kernel() {
        let test = |place: &str, name: &str, result: &str| json!({"place": place, "name": name, "result": result, "reason": "why"});
        let programs = programs(&json!({"tests": [
            test("7.2", "send::guest::a", "passed"),
            test("7.2", "send::guest::b", "failed"),
            test("bookworm", "send::native::c", "skipped"),
            test("7.2", "send::guest::d", "an unheard-of result"),
        ]}));
        assert_eq!(programs[0].name, "on 7.2");
        assert_eq!(programs[0].counts, Counts { passed: 1, failed: 2, skipped: 0 });
        assert_eq!(programs[1].counts, Counts { passed: 0, failed: 0, skipped: 1 });
        assert_eq!(programs[1].skips["send::native::c"], "why");
    }
}
