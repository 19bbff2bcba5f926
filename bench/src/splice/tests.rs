//! Tests of the splice bench that need no module. The tests of its other rows are beside the command's.

use std::{path::Path, sync::atomic::AtomicBool};

use super::*;
use crate::{run, testing};

fn args(line: &str) -> Result<SpliceArgs, clap::Error> {
    testing::parse(line)
}

fn measured(line: &'static str, stopped: bool) -> Result<Report, Failure> {
    testing::report_of(stopped, move |context| run::run(&args(line).unwrap(), context))
}

fn names(line: &str) -> Vec<String> {
    let (none, stop) = ([const { Err(String::new()) }; 2], AtomicBool::new(false));
    let args = args(line).unwrap();
    subjects(&args, &none, 0, &stop).into_iter().map(|subject| subject.name).collect()
}

#[test]
fn a_row_brings_what_it_compares_with() {
    assert_eq!(names("").len(), DEPTHS.len() * (2 + Form::ALL.len()) + 2 * (5 + 3) + 3 + 6);
    assert_eq!(names("--only send.get$"), ["file-send sendfile", "file-send get"]);
    assert_eq!(names("--only relay.get"), ["relay get-buf", "relay splice"]);
    assert_eq!(
        names("--only zcrx.*64k"),
        [
            "relay zcrx chunk=64k",
            "relay splice",
            "relay sockets=4 zcrx chunk=64k",
            "relay sockets=4 splice"
        ]
    );
    assert_eq!(names("--peer x=true --only y.x$"), ["relay splice", "relay x"]);
    assert_eq!(
        names("--only send.virtio-net.get$"),
        ["file-send virtio-net sendfile", "file-send virtio-net get"]
    );
    for (only, wanted) in [
        ("depth", [false, false]),
        ("^relay.(get|splice)", [true, false]),
        ("virtio", [false, true]),
        ("relay", [true, true]),
        ("y.x$ --peer x=true", [true, false]),
    ] {
        let args = args(&format!("--only {only}")).unwrap();
        assert_eq!(Over::ALL.map(|over| streams_wanted(&args, over)), wanted, "{only}");
    }
    assert_eq!(
        names("--only 2.get$"),
        ["depth=2 splice", "depth=2 get", "depth=32 splice", "depth=32 get"]
    );
    assert!(DEPTHS.iter().all(|&depth| LOOK.is_multiple_of(u32::from(depth))));
}

#[test]
fn pages_pass_through_pipes_by_calls_and_by_requests() {
    let report =
        measured("--time 0.02 --rounds 2 --only depth=(1|32).(op-)?splice", false).unwrap();
    assert_eq!((report.bench.as_str(), report.rows.len()), ("splice", 4));
    for row in &report.rows {
        if let ("op-splice", Some(reason)) = (row.engine.as_str(), &row.skipped) {
            assert!(reason.contains("6.6") || reason.starts_with("no ring"), "{reason}");
            continue;
        }
        assert_eq!(row.skipped, None, "{row:?}");
        assert_eq!(row.baseline, row.engine == "splice");
        if !report.counts_instructions() {
            let (bytes, requests) = (row.bytes_per_s.unwrap(), row.ops_per_s.unwrap());
            assert!(requests > 100.0, "{row:?}");
            assert!((bytes / requests / f64::from(BYTES) - 1.0).abs() < 0.1, "{row:?}");
        }
    }
}

#[test]
fn rows_without_the_module_say_what_to_do() {
    let line = "--time 0.01 --rounds 1 --only depth=4.get$";
    let report = measured(line, false).unwrap();
    let [splice, get] = &report.rows[..] else { panic!("{report:?}") };
    assert_eq!(splice.skipped, None);
    match (&get.skipped, Path::new("/dev/getbuf").exists()) {
        (None, true) => assert_eq!(get.lends_per_op, Some(1.0)),
        (Some(reason), true) => assert!(reason.contains("root"), "{reason}"),
        (reason, false) => assert!(reason.as_ref().unwrap().contains("--lab"), "{reason:?}"),
    }
}

#[test]
fn a_relay_without_the_module_is_no_failure() {
    if Path::new("/dev/getbuf").exists() {
        handoff_testbed::skip!("the module getbuf is loaded");
    }
    let report = measured("--time 0.01 --rounds 1 --only relay.get", false).unwrap();
    let [get, _splice] = &report.rows[..] else { panic!("{report:?}") };
    assert!(get.skipped.is_some(), "{get:?}");
}

#[test]
fn a_stop_ends_the_bench() {
    let stopped = measured("--only depth=1.splice", true);
    assert!(matches!(stopped, Err(Failure::Stopped(_))), "{stopped:?}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for line in ["--lab --cpu 0", "--time 0", "--rounds 0", "--quick --time 1"] {
        assert!(args(line).is_err(), "{line}");
    }
    let carried = measured("--program /bin/true", false);
    assert!(matches!(&carried, Err(Failure::Usage(text)) if text.contains("--lab")), "{carried:?}");
    let missing = measured("--cpu 100000", false);
    assert!(
        matches!(&missing, Err(Failure::Usage(text)) if text.contains("usable")),
        "{missing:?}"
    );
}

#[test]
fn the_guest_is_told_all_but_what_stays_here() {
    let given =
        "--lab --quick --only get --json-file a --compare b --peer x=y=z --program /bin/true";
    let given = args(given).unwrap();
    let words = run::arguments_in_guest(&given);
    let kept = ["bench", "splice", "--json", "--meter", "--only=get", "--quick", "--peer=x=y=z"];
    assert_eq!(words, kept);
    assert!(!given.programs.carried.is_empty());
}
