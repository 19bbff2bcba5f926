//! Tests of the HTTP bench. The tests of its other rows are beside the command's.

use super::*;
use crate::{
    run::{self, arguments_in_guest},
    testing::{self, report_of, report_or_skip},
};

fn args(line: &str) -> Result<HttpArgs, clap::Error> {
    testing::parse(line)
}

fn jobs(line: &str) -> Vec<(u64, u32)> {
    let args = args(line).unwrap();
    let jobs = args.jobs();
    jobs.into_iter().map(|job| (job.size, job.connections)).collect()
}

#[test]
fn sizes_and_connections_are_those_that_were_given() {
    assert_eq!(jobs("").len(), 10);
    assert_eq!(jobs("--quick").len(), 4);
    assert_eq!(jobs("--sizes 64k --connections 1,8"), [(65_536, 1), (65_536, 8)]);
    assert_eq!(jobs("--sizes 64k --quick"), [(65_536, 1), (65_536, 64)]);
    for line in ["--sizes 0", "--connections 0", "--connections 2k", "--lab --cpu 1"] {
        assert!(args(line).is_err(), "{line}");
    }
}

#[test]
fn the_guest_is_asked_for_the_same() {
    let line = "--lab --sizes 64k,1m --connections 8 --only nginx --peer x=y=z --program /bin/true";
    let args = args(line).unwrap();
    let words = arguments_in_guest(&args);
    let same = ["--only=nginx", "--sizes=65536,1048576", "--connections=8", "--peer=x=y=z"];
    assert_eq!(words, [&["bench", "http", "--json", "--meter"][..], &same].concat());
    assert!(!args.programs.carried.is_empty());
}

/// The rows of the library and of hyper, which need no other program than wrk.
#[test]
fn needs_root_rows_serve_what_is_asked_for() {
    let args = args(
        "--sizes 1k,128k --connections 3 --time 0.05 --rounds 1 --only ^connections=3.(file|bytes|hyper)",
    );
    let args = args.unwrap();
    let report = report_of(false, move |context| run::run(&args, context));
    let report = report_or_skip!(report);
    assert_eq!(report.bench, "http");
    let names: Vec<&str> = report.rows.iter().map(|row| row.engine.as_str()).collect();
    let engines = ["nginx", "file", "bytes", "hyper-file", "hyper-bytes"];
    assert_eq!(names, [engines, engines].concat());
    for row in report.rows.iter().filter(|row| row.engine != "nginx") {
        assert_eq!(row.skipped, None, "{row:?}");
        let (rate, cost) = (row.ops_per_s.unwrap(), row.cpu_ns_per_op.unwrap());
        assert!(rate > 1.0 && cost > 100.0, "{row:?}");
        let copied = match row.engine.as_str() {
            "hyper-file" => Some(2.0),
            "hyper-bytes" => Some(1.0),
            // A file of this size is read, and the bytes read are sent; its head is copied once.
            "file" if row.config.bytes == Some(1 << 10) => Some(2.0),
            _ => continue,
        };
        let told = row.copied_share.zip(copied).map(|(told, copied)| (told - copied).abs());
        assert!(told.is_some_and(|difference| difference < 0.1), "{row:?}");
    }
}
