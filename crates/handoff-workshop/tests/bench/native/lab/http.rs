//! The table of HTTP servers in a guest, with one that is carried in.

use serde_json::Value;

use super::{Script, bench_or_skip, peer, row};
use crate::rows::number;

const ROWS: &str = "(serve|own|gone)$";

/// A script that runs this very program, which the guest has.
const PEER: &str = "own=exec web {root} {addr}:{port}";
const GONE: &str = "gone=echo it is broken; exit 3";

#[test]
fn a_server_that_is_carried_in_costs_what_the_same_costs_without() {
    let script = Script::new("web", "exec handoff serve $1 --threads 1 --listen $2");
    let load = ["--sizes", "64k", "--connections", "8", "--only", ROWS, "--json"];
    let carried = ["--program", &script.path(), "--peer", PEER, "--peer", GONE];
    let output = bench_or_skip!("http", &[&load[..], &carried].concat());
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"http".into(), &true.into()));
    let named = |engine: &str| format!("connections=8 {engine}");
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["nginx", "serve", "own", "gone"].map(named));
    let ours = row(&report, &named("serve"));
    assert!(ours["skipped"].is_null() && ours["peer"] == false, "{ours}");
    let theirs = peer(&report, &named("own"));
    for key in ["kinsn_per_op", "minsn_per_gib", "ratio"] {
        let same = number(theirs, key) / number(ours, key);
        // How many requests a turn finds differs by this much between two rounds.
        assert!((0.5..2.0).contains(&same), "{key}: {ours}, {theirs}");
    }
    assert!((0.2..5.0).contains(&number(theirs, "ratio")), "beside nginx: {theirs}");
    let gone = row(&report, &named("gone"));
    let reason = gone["skipped"].as_str().expect("a reason");
    assert!(reason.contains("exit status: 3: it is broken"), "{reason}");
    let witness = |row| number(row, "copied_share_witness");
    assert!((witness(theirs) - witness(ours)).abs() < 0.05, "{ours}, {theirs}");
}
