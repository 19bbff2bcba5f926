//! Runs one test on this machine.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use handoff_lab::{Error, KeptWaiting, Result, StopFlag, Trying, processor_time};
use handoff_testbed::die_with_us;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::libtest;
use crate::plan::Plan;
use crate::report::Ran;
use crate::selection::Program;

const LOOK: Duration = Duration::from_millis(5);
/// How long a test may take to clean up.
const GRACE: Duration = Duration::from_secs(2);

pub(super) fn run(program: &Program, test: &str, plan: &Plan, stop: &StopFlag) -> Result<Ran> {
    // A file, not a pipe: a process that the test leaves running may keep its output open for ever.
    let mut output: File = tempfile::tempfile().trying("file for test output")?;
    let share = |file: &File| file.try_clone().map(Stdio::from).trying("file for test output");
    let mut command = Command::new(&program.path);
    command.args(libtest::arguments(test)).current_dir(&program.directory);
    // As Cargo sets it.
    command.env("CARGO_MANIFEST_DIR", &program.directory);
    command.stdin(Stdio::null()).stdout(share(&output)?).stderr(share(&output)?);
    command.process_group(0);
    die_with_us(&mut command, Signal::KILL);
    let begin = Instant::now();
    let (status, computed) = wait(&mut command, plan.timeout, stop)?;
    let ended = match status {
        Some(status) => format!("ended with {status}"),
        None => format!("was ended after {} s", plan.timeout.as_secs()),
    };
    let took = begin.elapsed();
    let mut printed = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut printed)).trying("test output")?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let well = status.is_some_and(|status| status.success());
    let verdict = libtest::verdict(test, &printed, well, &ended);
    let details = vec![("all that it printed", printed)];
    Ok(Ran { verdict, took, computed, ran: true, details })
}

/// How the command ended, and how long it was on a processor; `None` if it took longer than `limit`, and we ended it.
/// Time in which it was kept from running does not count, up to three times the limit.
fn wait(
    command: &mut Command,
    limit: Duration,
    stop: &StopFlag,
) -> Result<(Option<ExitStatus>, Duration)> {
    let what = command.get_program().display().to_string();
    let mut child = command.spawn().trying(&what)?;
    let group = Pid::from_child(&child);
    let (begin, mut kept_waiting) = (Instant::now(), KeptWaiting::of(child.id()));
    loop {
        // Its time is known until somebody has waited for it.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(group), look).map_err(io::Error::from).trying(&what)?;
        if ended.is_some() {
            let computed = processor_time(child.id());
            return Ok((Some(child.wait().trying(&what)?), computed));
        }
        let stopped = stop.load(Ordering::Acquire);
        if stopped || begin.elapsed() > limit + kept_waiting.total().min(3 * limit) {
            // A group that is gone already is fine.
            let _ = kill_process_group(group, Signal::TERM);
            let deadline = Instant::now() + GRACE;
            while Instant::now() < deadline && child.try_wait().trying(&what)?.is_none() {
                thread::sleep(LOOK);
            }
            let _ = kill_process_group(group, Signal::KILL);
            let computed = processor_time(child.id());
            child.wait().trying(&what)?;
            return if stopped { Err(Error::Stopped) } else { Ok((None, computed)) };
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use handoff_lab::Machine;

    use super::*;
    use crate::may_skip::MaySkip;
    use crate::report::{Report, TestResult, Verdict};
    use crate::selection::Part;
    use crate::workers::run;

    /// The ways in which a test ends.
    mod fixture {
        use rustix::process::{Signal, getpid, kill_process};

        #[test]
        #[ignore = "fixture: crashes on purpose"]
        fn crashes() {
            println!("words of one that crashes");
            kill_process(getpid(), Signal::KILL).expect("is there");
        }

        #[test]
        #[ignore = "fixture: ends its program on purpose"]
        fn ends_its_program() {
            println!("words of one that ends its program");
            std::process::exit(0);
        }

        #[test]
        #[ignore = "fixture: fails on purpose"]
        fn fails() {
            panic!("words of one that fails");
        }

        #[test]
        #[ignore = "fixture: hangs on purpose"]
        fn hangs() {
            println!("words of one that hangs");
            std::thread::sleep(std::time::Duration::from_secs(3600));
        }

        #[test]
        #[ignore = "fixture: passes behind the others"]
        fn passes() {}

        #[test]
        #[ignore = "fixture: skips on purpose"]
        fn skips() {
            handoff_testbed::skip!("no such {}", "device");
        }
    }

    const FIXTURES: &str = "test_runner::on_host::tests::fixture::";

    /// To run the fixtures with these names.
    fn plan(names: &str, seconds: u64, keep: &Path) -> Plan {
        let path = std::env::current_exe().expect("our path");
        Plan {
            programs: vec![Program { name: "test_runner".to_owned(), path, directory: "/".into() }],
            companions: Vec::new(),
            stages: vec![format!("host:fixture:{FIXTURES}{names}").parse().expect("a stage")],
            may_skip: MaySkip::parse(&format!("host {FIXTURES}skips on purpose")).expect("a rule"),
            timeout: Duration::from_secs(seconds),
            part: Part::WHOLE,
            repeat: 1,
            known: Vec::new(),
            keep: Some(keep.to_owned()),
            machine: Machine::default(),
        }
    }

    #[test]
    fn parts_have_each_test_once() {
        let kept = tempfile::tempdir().expect("a directory");
        let names = format!("passes,{FIXTURES}skips");
        let ran = ["1/2", "2/2"].map(|part| {
            let part = part.parse().expect("a part");
            let plan = Plan { part, ..plan(&names, 60, kept.path()) };
            let report = run(&plan, &StopFlag::default(), |_| {}).expect("runs");
            report.tests.into_iter().map(|test| test.name).collect::<Vec<_>>()
        });
        assert_eq!(ran, ["passes", "skips"].map(|name| vec![format!("{FIXTURES}{name}")]));
    }

    /// The results of the fixtures with these names, and the kept output.
    fn outcome(names: &str, seconds: u64) -> BTreeMap<String, (Verdict, String)> {
        let kept = tempfile::tempdir().expect("a directory");
        let plan = plan(names, seconds, kept.path());
        let report: Report = run(&plan, &StopFlag::default(), |_| {}).expect("runs");
        let of_test = |test: TestResult| {
            let kept = test.kept.map(|path| fs::read_to_string(path).expect("it can be read"));
            (test.name[FIXTURES.len()..].to_owned(), (test.verdict, kept.unwrap_or_default()))
        };
        report.tests.into_iter().map(of_test).collect()
    }

    #[test]
    fn each_ending_is_reported_rightly_with_all_that_was_printed() {
        const LONG: u64 = 300;
        let mut ended = BTreeMap::new();
        for names in ["crashes", "ends_its_program", "fails", "passes", "skips"] {
            ended.append(&mut outcome(names, LONG));
        }
        // Longer and longer, until it had time to start: it must hang, not be slow.
        let hung = [1, 8, 64].into_iter().map(|seconds| outcome("hangs", seconds));
        let has_begun = |ended: &BTreeMap<_, (_, String)>| ended["hangs"].1.contains("words of");
        let hung = hung.into_iter().find(has_begun);
        ended.append(&mut hung.expect("what it printed is kept"));
        assert_eq!(ended["passes"].0, Verdict::Passed);
        assert_eq!(ended["skips"].0, Verdict::Skipped { reason: "no such device".to_owned() });
        for (test, how) in [
            ("crashes", "no result: the program ended with signal: 9"),
            ("ends_its_program", "no result: the program ended with exit status: 0"),
            ("fails", "words of one that fails"),
            ("hangs", "no result: the program was ended after "),
        ] {
            let (Verdict::Failed { reason }, kept) = &ended[test] else {
                panic!("{test}: {:?}", ended[test].0);
            };
            let words = format!("words of one that {}", test.replace('_', " "));
            assert!(reason.contains(how) && reason.contains(&words), "{test}: {reason}");
            assert!(kept.contains(how) && kept.contains(&words), "{test}: {kept}");
        }
    }

    #[test]
    fn what_is_known_does_not_run_again() {
        let kept = tempfile::tempdir().expect("a directory");
        let mut plan = plan("", 300, kept.path());
        plan.known = ["crashes", "ends_its_program", "fails", "hangs", "skips"]
            .map(|test| TestResult {
                place: "host".to_owned(),
                name: format!("{FIXTURES}{test}"),
                verdict: Verdict::Passed,
                seconds: 7.0,
                processor_seconds: 6.0,
                ran: true,
                kept: None,
            })
            .into();
        let mut ran = Vec::new();
        let each = |test: &TestResult| ran.push(test.name.clone());
        let report = run(&plan, &StopFlag::default(), each).expect("runs");
        assert_eq!((report.passed, report.failed, report.skipped), (6, 0, 0), "{report:?}");
        assert_eq!(ran, [format!("{FIXTURES}passes")]);
    }
}
