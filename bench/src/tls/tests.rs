//! Tests of the TLS bench.

use super::*;
use crate::{
    run::arguments_in_guest,
    testing::{self, report_of, report_or_skip},
};

fn args(line: &str) -> Result<TlsArgs, clap::Error> {
    testing::parse(line)
}

#[test]
fn sizes_are_those_that_were_given() {
    assert_eq!(args("").unwrap().sizes(), SIZES);
    assert_eq!(args("--quick").unwrap().sizes(), QUICK_SIZES);
    assert_eq!(args("--quick --sizes 16k").unwrap().sizes(), [16 << 10]);
    for line in ["--sizes 0", "--sizes 5000", "--sizes 8m", "--lab --cpu 1"] {
        assert!(args(line).is_err(), "{line}");
    }
}

#[test]
fn the_guest_is_asked_for_the_same() {
    let args = args("--lab --sizes 64k,1m --only ^send").unwrap();
    let words = arguments_in_guest(&args);
    assert_eq!(
        words,
        ["bench", "tls", "--json", "--meter", "--only=^send", "--sizes=65536,1048576"]
    );
}

/// The rows of this process's cipher, which need neither a program nor a kernel that ciphers.
#[test]
fn needs_root_rows_move_what_is_ordered() {
    let args = args("--sizes 64k --time 0.05 --rounds 1 --only user-tls").unwrap();
    let report = report_of(false, move |context| run::run(&args, context));
    let report = report_or_skip!(report);
    let rows: Vec<_> = report.rows.iter().filter(|row| row.engine == "user-tls").collect();
    let operations: Vec<_> = rows.iter().map(|row| row.config.op.as_deref().unwrap()).collect();
    let all =
        ["send", "send-file", "receive", "receive-file", "serve", "ping", "accept", "connect"];
    assert_eq!(operations, all);
    for row in rows {
        assert_eq!(row.skipped, None, "{row:?}");
        assert!(row.ops_per_s.unwrap() > 1.0, "{row:?}");
        if row.name.starts_with("send ") {
            assert_eq!((row.copied_share, row.ciphered_share), (Some(1.0), Some(0.0)), "{row:?}");
        }
    }
}
