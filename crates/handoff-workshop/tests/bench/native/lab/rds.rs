//! The table of reliable datagrams, in a guest: both engines, one after the other, beside TCP.

use serde_json::Value;

use super::{Script, bench_or_skip, peer, row};
use crate::rows::number;

const ROWS: &str = "^(ask 4k|stream (4k|1m)) depth=[0-9]* sockets=1 (rds|tcp)|^stream 1m .*=1 own$";

/// A script that runs this very program, which the guest has; it answers each message by a few bytes.
const STRESS: &str = "exec handoff rds stress --engine kernel --no-verify \"$@\"";
const SENDS: &str =
    "own=exec stress {from_addr} -s {addr} -p {port} -q {bytes} -a 16 -d {depth} --time {seconds}";
const RECEIVES: &str = "own=exec stress {addr} -p {port}";

#[test]
fn lending_spares_the_sender_its_copy_by_both_engines() {
    let script = Script::new("stress", STRESS);
    let carried = ["--program", &script.path(), "--peer", SENDS, "--peer-receiver", RECEIVES];
    let output = bench_or_skip!("rds", &[&["--only", ROWS, "--json"], &carried[..]].concat());
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"rds".into(), &true.into()));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 15 + 1, "{report}");
    for row in rows.iter().filter(|row| row["peer"] == false) {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(row["config"]["target"], "wire");
        for time in ["bytes_per_s", "ops_per_s", "cpu_ns_per_op", "latency_us", "user_ns_per_op"] {
            assert!(row[time].is_null(), "{time} from an emulated processor: {row}");
        }
        assert!(number(row, "kinsn_per_op") > 1.0, "{row}");
        let asks = row["config"]["op"] == "ask";
        assert_eq!(row["latency_kinsn"]["p50"].as_f64().is_some_and(|it| it > 10.0), asks, "{row}");
        assert_eq!(row["latency_kinsn"]["simulated_dma"].is_f64(), asks, "{row}");
    }
    for engine in ["rds-own", "rds-kernel"] {
        let of = |op: &str, way: &str| row(&report, &format!("{op} sockets=1 {engine} {way}"));
        // One copy less, the receiver's stays; of the answer, too.
        let witness = |row| number(row, "copied_share_witness");
        for (op, spared) in [("stream 1m depth=64", 1.0), ("ask 4k depth=1", 2.0)] {
            let found = witness(of(op, "copy")) - witness(of(op, "lent"));
            assert!((found - spared).abs() < 0.1, "{engine}, {op}: {found}");
        }
    }
    // The kernel says of what joins the packet before that it was copied, and it was not.
    let disagreements = report["disagreements"].as_array().expect("a list");
    let [one] = &disagreements[..] else { panic!("{disagreements:#?}") };
    assert_eq!(one["row"], "stream 4k depth=64 sockets=1 rds-own lent");
    assert!((number(one, "witness") - 1.0).abs() < 0.1, "only the receiver copies: {one}");
    let (reported, implied) = (number(one, "reported"), number(one, "implied"));
    assert!(reported > 0.1 && (implied - reported - 1.0).abs() < 1e-9, "{one}");
    assert_eq!(one["places"][0]["function"], "_copy_to_iter", "{one}");
    // The kernel's workers serve both ends, so that only our own sender's costs are told apart.
    let own = |way| row(&report, &format!("stream 1m depth=64 sockets=1 rds-own {way}"));
    let ratio = number(own("lent"), "minsn_per_gib") / number(own("copy"), "minsn_per_gib");
    assert!(ratio < 0.9, "{ratio}");
    assert_eq!(own("lent")["copied_share"], 0.0);

    // By the kernel's engine, whose workers serve both ends, with answers, and with its own start.
    let theirs = peer(&report, "stream 1m depth=64 sockets=1 own");
    let ratio = number(theirs, "ratio");
    assert!((0.2..1.0).contains(&ratio), "{theirs}");
    let per_gib = number(theirs, "kinsn_per_op") * 1_024.0 / 1e3;
    assert!((per_gib / number(theirs, "minsn_per_gib") - 1.0).abs() < 0.02, "{theirs}");
}
