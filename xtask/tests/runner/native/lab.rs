//! A test that boots guests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use handoff_lab::{Cache, KernelChoice, Machine, StopFlag, module};
use test_runner::{MaySkip, Part, Plan, Program, Verdict};

/// The parts of the file about a failed test.
const PRINTED: &str = "all that it printed\n";
const STOOD: &str = "where the guest's tasks stood\n";
const CONSOLE: &str = "what the guest's kernel printed meanwhile\n";

#[test]
fn each_ending_is_reported_rightly() {
    if !rustix::process::geteuid().is_root() {
        handoff_testbed::skip!("only root builds the lab's image");
    }
    let stop = StopFlag::default();
    let warn = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/cases/warn");
    let cache = Cache::open().expect("a cache");
    let puts = module::build(&KernelChoice::default(), &warn, &cache, &stop).expect("builds");
    let kept = tempfile::tempdir().expect("a directory");
    let plan = Plan {
        programs: vec![Program {
            name: "runner".to_owned(),
            path: std::env::current_exe().expect("our path"),
            directory: "/".into(),
        }],
        companions: Vec::new(),
        stages: vec!["7.2:guest,fixture:runner::guest::fixture::endings".parse().expect("a stage")],
        may_skip: MaySkip::parse(
            "7.2 runner::guest::fixture::endings::c_skips_as_declared on purpose",
        )
        .expect("a rule"),
        timeout: Duration::from_secs(12),
        part: Part::WHOLE,
        repeat: 1,
        known: Vec::new(),
        keep: Some(kept.path().to_owned()),
        machine: Machine { memory: 1024, puts, ..Machine::default() },
    };
    let report = test_runner::run(&plan, &stop, |test| println!("{test:?}")).expect("runs");
    let verdicts: BTreeMap<&str, &Verdict> = report
        .tests
        .iter()
        .map(|test| (test.name.rsplit("::").next().expect("a name"), &test.verdict))
        .collect();
    for passed in
        ["a_passes", "f_leaves_processes", "g_finds_no_processes", "l_passes_in_a_new_guest"]
    {
        assert_eq!(verdicts[passed], &Verdict::Passed, "{passed}");
    }
    for (failed, words) in [
        ("b_fails", "the words of a failure"),
        ("d_skips_undeclared", "no excuse"),
        ("e_fills_its_disk", "No space left on device"),
        (
            "g_leaves_a_device_a_mount_and_files",
            "left behind:\nfile /dev/shm/left\nfile /run/left\nfile /tmp/left\nfile /var/tmp/left\n\
             mount of tmpfs at /mnt\nnetwork device left0",
        ),
        ("h_hangs", "ended after 12 s"),
        ("h_hangs", "__x64_sys_clock_nanosleep"),
        ("i_warns", "handoff_warn: as asked for"),
        ("i_warns", "the kernel reported: WARNING: "),
        ("k_panics_the_kernel", "Kernel panic"),
        ("m_hangs_the_guest", "hung, with the guest"),
        ("m_hangs_the_guest", "the emulator was idle"),
        ("m_hangs_the_guest", "the guest did not say where its tasks stood"),
    ] {
        let Verdict::Failed { reason } = verdicts[failed] else {
            panic!("{failed} did not fail");
        };
        assert!(reason.contains(words), "{failed}: {reason}");
    }
    let skipped = Verdict::Skipped { reason: "no such device".to_owned() };
    assert_eq!(verdicts["c_skips_as_declared"], &skipped);
    assert_eq!(report.to_string(), "4 passed, 8 failed, 1 skipped");

    let text_of = |name: &str| {
        let test = report.tests.iter().find(|test| test.name.ends_with(name)).expect(name);
        fs::read_to_string(test.kept.as_ref().expect("a file is kept")).expect("it can be read")
    };
    for (name, parts) in [
        (
            "h_hangs",
            &[
                (PRINTED, "the words of one that hangs"),
                (STOOD, "nanosleep"),
                (CONSOLE, "what it says to its kernel"),
            ][..],
        ),
        ("i_warns", &[(CONSOLE, "as asked for")]),
        ("k_panics_the_kernel", &[(CONSOLE, "Kernel panic")]),
    ] {
        let text = text_of(name);
        for (part, words) in parts {
            let part = text.split("\n== ").find_map(|it| it.strip_prefix(part));
            assert!(part.is_some_and(|part| part.contains(words)), "{words}: {text}");
        }
    }
}
