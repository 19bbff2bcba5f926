//! The table of reliable datagrams, in a guest: both engines, one after the other, beside TCP.

use serde_json::Value;

use super::{bench_or_skip, row};
use crate::rows::number;

const ROWS: &str = "^(ask 4k|stream (4k|1m)) depth=[0-9]* sockets=1 ";

#[test]
fn lending_spares_the_sender_its_copy_by_both_engines() {
    let output = bench_or_skip!("rds", &["--only", ROWS, "--json"]);
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"rds".into(), &true.into()));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 15, "{report}");
    for row in rows {
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
}
