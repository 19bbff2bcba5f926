//! Receiving over the software NIC, where nothing is counted: it works, and says what it may.

use std::process::Command;

use serde_json::Value;

use crate::rows::{assert_copied_as_received, number};

/// The report of rows that were received, by the slots' seconds and the number of rounds.
fn received([time, rounds]: [&str; 2], only: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", "recv", "--json", "--time", time, "--rounds", rounds])
        .args(["--meter", "--only", only])
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn each_way_receives_over_the_software_nic() {
    // Pages are mapped as they come where a packet has a whole one, and chunks are larger where packets are joined.
    let report =
        received(["0.05", "1"], "^mtu=(4148 gro=no check=yes tcp-zero|1500 gro=yes check=yes)");
    let rows = report["rows"].as_array().expect("rows");
    // With the baseline of the first wire.
    assert_eq!(rows.len(), 8, "{report}");
    for row in rows {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(row["config"]["target"], "wire");
        assert_copied_as_received(row);
        assert!((1.0..1.1).contains(&number(row, "simulated_dma_share")), "{row}");
        if report["emulated"] == true {
            assert!(row["ratio"].is_null(), "a ratio of emulated times: {row}");
        }
    }
}

#[test]
fn a_kernel_that_gives_no_more_memory_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", "recv", "--json", "--grow", "--time", "0.05", "--rounds", "1"])
        .args(["--only", "mtu=1500 gro=no check=no zcrx chunk=4k$"])
        .output()
        .expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let row = &report["rows"][1];
    assert_eq!(row["engine"], "zcrx", "{report}");
    assert!(row["skipped"].as_str().is_some_and(|why| why.contains("Linux 7.3")), "{row}");
}

/// Four connections, received by epoll, by one ring, and by two rings that share the queue.
#[test]
fn several_connections_come_by_one_queue_to_one_ring_and_to_two() {
    let report = received(["0.2", "2"], "sockets=4");
    let rows = report["rows"].as_array().expect("rows");
    let rings: Vec<_> = rows.iter().map(|row| row["config"]["rings"].as_u64()).collect();
    assert_eq!(rings, [None, Some(1), Some(2)], "{report}");
    for row in rows {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(
            (&row["config"]["sockets"], &row["config"]["target"]),
            (&4.into(), &"wire".into())
        );
        assert_copied_as_received(row);
        assert!(number(row, "bytes_per_s") > 0.0, "{row}");
        // What is outside the kernel is known of rows that are received in one thread.
        if row["config"]["rings"] == 2 {
            assert!(row["user_share"].is_null(), "{row}");
        } else {
            assert!((0.0..0.9).contains(&number(row, "user_share")), "{row}");
        }
    }
    assert!(number(&rows[1], "user_share") > 0.0, "{report}");
}
