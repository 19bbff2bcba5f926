//! Pages lent into rings, files sent and streams relayed: every row runs, and the module has counted
//! what was asked of it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::rows::number;

/// The rows that match, none of which is skipped.
fn rows(only: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", "splice", "--json", "--time", "0.05", "--rounds", "1", "--meter"])
        .args(["--only", only])
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].take().as_array().expect("rows").clone();
    for row in &rows {
        assert!(row["skipped"].is_null(), "{row}");
    }
    rows
}

fn engines(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["engine"].as_str()).collect()
}

/// Whoever has a lend out, or the device open, has the module.
fn assert_nothing_is_out() {
    let users = fs::read_to_string("/sys/module/getbuf/refcnt").expect("the module is loaded");
    assert_eq!(users.trim(), "0");
}

/// In one run, since the meter takes longer to attach than a row takes.
#[test]
fn each_way_passes_sends_and_relays_what_it_says_and_gives_back_what_was_lent() {
    // Other depths, and relays of four sockets, are the same code.
    let rows = rows("^(depth=32 |file-send |relay (virtio-net|apart|zcrx|get|splice|copy))");
    let streams = rows.iter().position(|row| row["config"]["op"] != "pass");
    let (pages, streams) = rows.split_at(streams.expect("rows of both"));
    assert_pages_are_passed(pages);
    assert_streams_are_copied_as_told(streams);
    assert_nothing_is_out();
}

fn assert_pages_are_passed(rows: &[Value]) {
    let lent = ["get", "get-each", "get-linked", "get-nop", "get-put", "get-kept"];
    let all = [&["splice", "op-splice"][..], &lent].concat();
    assert_eq!(engines(rows), all);
    for row in rows {
        let number = |key: &str| number(row, key);
        assert!(number("copied_share_witness") < 0.05, "{row}");
        match row["engine"].as_str().expect("a name") {
            "splice" | "op-splice" => {
                assert!(row["lends_per_op"].is_null(), "{row}");
                continue;
            }
            "get-kept" => assert!(number("lends_per_op") < 0.5, "{row}"),
            _ => assert_eq!(number("lends_per_op"), 1.0, "{row}"),
        }
        // One call for each batch, and some before and after.
        let depth = row["config"]["depth"].as_f64().expect("a number");
        let batches = 1.0 / number("enters_per_op") / depth;
        assert!((0.5..=1.0).contains(&batches), "{row}");
    }
}

fn assert_streams_are_copied_as_told(rows: &[Value]) {
    let sends = ["sendfile", "splice", "copy", "get", "get-kept"];
    let spans = ["apart chunk=64k", "zcrx chunk=64k", "zcrx chunk=4k"];
    let relays = ["get-buf", "splice", "copy"];
    let wire = [&sends[..], &spans, &relays].concat();
    assert_eq!(engines(rows), [&wire[..], &sends, &relays].concat());
    let (over_wire, over_virtio_net) = rows.split_at(wire.len());
    // Of ends that join the packet before them the kernel tells that they were copied, though they were not.
    // On a busy machine these are many where a relay lends what has come, however short, or a device takes
    // only parts. So there the witness alone says how much it was, and the report only has to tell of no
    // more than the sends.
    let tells = |row: &Value, copied: f64, slack: f64| {
        let parts = row["config"]["op"] == "relay" || row["config"]["target"] == "virtio-net";
        let most = if parts && row["engine"] != "copy" { 1.0 } else { slack };
        row["copied_share"].as_f64().is_some_and(|told| (-slack..=most).contains(&(told - copied)))
    };
    for row in over_wire {
        assert_eq!(row["config"]["target"], "wire", "{row}");
        let spans = row["engine"].as_str().is_some_and(|engine| spans.contains(&engine));
        // A stream's first bytes may lie beside headers; and what goes out of user memory is copied now and
        // then at first, to learn what that costs.
        let slack = if spans { 0.25 } else { 0.1 };
        let copied = match row["engine"].as_str().expect("a name") {
            "sendfile" | "splice" => {
                assert!(row["copied_share"].is_null(), "{row}");
                0.0
            }
            engine => {
                // Out of the source, and into the sink.
                let copied = if engine == "copy" { 2.0 } else { 0.0 };
                assert!(tells(row, copied, slack), "{row}");
                copied
            }
        };
        assert!((number(row, "copied_share_witness") - copied).abs() < slack, "{row}");
        let hops = if row["config"]["op"] == "relay" { 2.0 } else { 1.0 };
        let moved = number(row, "simulated_dma_share");
        assert!((hops..1.1 * hops).contains(&moved), "{row}");
        assert_lends(row);
    }
    for row in over_virtio_net {
        assert_eq!(row["config"]["target"], "virtio-net", "{row}");
        assert!(row["simulated_dma_share"].is_null(), "{row}");
        let by_engine = if row["engine"] == "copy" { 2.0 } else { 0.0 };
        assert!(row["copied_share"].is_null() || tells(row, by_engine, 0.1), "{row}");
        // The kernel cuts what each end sends into frames, and copies it.
        let cuts = if row["config"]["op"] == "relay" { 2.0 } else { 1.0 };
        assert!((number(row, "copied_share_witness") - by_engine - cuts).abs() < 0.1, "{row}");
        assert_lends(row);
    }
}

fn assert_lends(row: &Value) {
    match row["engine"].as_str() {
        Some("get") => assert_eq!(number(row, "lends_per_op"), 1.0, "{row}"),
        Some("get-kept") => assert_eq!(number(row, "lends_per_op"), 0.0, "{row}"),
        _ => assert!(row["lends_per_op"].is_null(), "{row}"),
    }
}
