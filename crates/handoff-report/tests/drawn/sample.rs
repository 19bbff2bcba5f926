//! Results that were never measured, with everything that a page can have.

use handoff_report::{Findings, page};
use serde_json::{Value, json};

/// Foreign text, where a bench or a kernel puts it.
pub(crate) const STRANGE: &str = r#"</script><script>alert("1")</script><img src=x> & 'it'"#;
/// Why a bench has no rows.
pub(crate) const PROBLEM: &str = "/dev/ublk-control is not there: load the module";

const SIZES: [u64; 3] = [1_024, 8_192, 65_435];

fn report(bench: &str, emulated: bool, rows: Vec<Value>) -> Value {
    let (cpu, virtualisation) =
        if emulated { ("QEMU", "qemu-tcg") } else { ("a processor", "none") };
    json!({
        "bench": bench, "version": "0.1.0", "date": "2026-01-02T03:04:05Z", "emulated": emulated,
        "machine": {"cpu": cpu, "cores": 2, "kernel": "7.2.1", "virtualisation": virtualisation},
        "conditions": ["median of 3 slots", STRANGE], "rows": rows,
    })
}

/// Numbers that are equal when written and read.
fn rounded(figure: f64) -> f64 {
    (figure * 1_000.0).round() / 1_000.0
}

/// Rows whose figures are in time, or in instructions.
fn row(name: &str, engine: &str, config: Value, ratio: f64, emulated: bool) -> Value {
    let baseline = ["msg-zerocopy-seed", "splice", "epoll"].contains(&engine);
    let spread = if baseline { 0.0 } else { 0.1 };
    let mut row = json!({
        "name": name, "engine": engine, "config": config, "baseline": baseline, "peer": false,
        "ratio": ratio, "ratio_min": rounded(ratio * (1.0 - spread)),
        "ratio_max": rounded(ratio * (1.0 + spread)), "copied_share": 0.0,
    });
    let figures = match emulated {
        true => {
            json!({"minsn_per_gib": rounded(200.0 / ratio), "kinsn_per_op": rounded(12.0 / ratio),
                       "copied_share_witness": 0.01})
        }
        false => json!({"bytes_per_s": 1e10 * ratio, "ops_per_s": 2e5 * ratio,
                        "cpu_ns_per_byte": 0.07}),
    };
    row.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
    row
}

fn send(emulated: bool) -> Value {
    let of_size = |(at, bytes): (usize, u64)| {
        let config = json!({"bytes": bytes, "op": "send", "proto": "udp"});
        let row = |name, engine, ratio| row(name, engine, config.clone(), ratio, emulated);
        [
            row("copy", "copy", 1.5),
            row("msg-zerocopy-seed", "msg-zerocopy-seed", 1.0),
            row("uring-zc-fixed flush=no batch=8", "uring-zc-fixed", 0.75 + at as f64),
        ]
    };
    let mut rows: Vec<Value> = SIZES.into_iter().enumerate().flat_map(of_size).collect();
    rows.push(json!({"name": format!("strange {STRANGE}"), "engine": "peer", "config": {},
                     "baseline": false, "peer": true, "skipped": STRANGE}));
    report("send", emulated, rows)
}

fn splice() -> Value {
    let of_depth = |depth: u32| {
        let config = json!({"bytes": 4096, "op": "pass", "target": "null", "depth": depth});
        let row = |engine: &str, ratio| {
            row(&format!("depth={depth} {engine}"), engine, config.clone(), ratio, true)
        };
        [
            row("splice", 1.0),
            row("get-each", rounded(0.8 + f64::from(depth) / 10.0)),
            row("get-nop", 0.7),
        ]
    };
    let mut report = report("splice", true, [1, 2, 4].into_iter().flat_map(of_depth).collect());
    report["disagreements"] = json!([{
        "row": "depth=1 get-nop", "bytes": 4096, "reported": 0.0, "implied": 0.0, "witness": 0.25,
        "places": [{"function": STRANGE, "path": ["a_caller"], "share": 0.25}],
    }]);
    report
}

fn recv() -> Value {
    let of_chunk = |(at, chunk): (usize, &str)| {
        let config = json!({"op": "recv", "mtu": 1500, "gro": true, "check": false,
                            "chunk": 4096_u64 << (2 * at)});
        let name = format!("mtu=1500 gro=yes check=no zcrx chunk={chunk}");
        row(&name, "zcrx", config, 1.5 + at as f64, true)
    };
    let epoll = json!({"op": "recv", "mtu": 1500, "gro": true, "check": false});
    let mut rows = vec![row("mtu=1500 gro=yes check=no epoll", "epoll", epoll, 1.0, true)];
    rows.extend(["4k", "16k", "64k"].into_iter().enumerate().map(of_chunk));
    let mut report = report("recv", true, rows);
    report["disagreements"] = json!([]);
    report
}

fn block() -> Value {
    let config =
        json!({"bytes": 524288, "op": "write", "target": "loop", "depth": 16, "rate": 781189120});
    let row = |engine: &str, share: f64| {
        json!({"name": format!("write 512k depth=16 745MiB/s loop {engine}"), "engine": engine,
               "config": config, "baseline": engine == "user-copy", "peer": false,
               "bytes_per_s": 781189120.0, "cpu_share": share})
    };
    report("block", false, vec![row("user-copy", 0.1), row("bpf", 0.02)])
}

/// Of all benches, some in one place only.
pub(crate) fn findings() -> Findings {
    let run = |bench: &str, report: Value| {
        let emulated = report["emulated"].as_bool().unwrap();
        json!({"place": if emulated { "emulated" } else { "native" }, "bench": bench,
               "origin": format!("handoff bench {bench}"), "report": report})
    };
    let mechanism = |mechanism: &str, state: &str, remedy: Option<&str>| {
        json!({"mechanism": mechanism, "state": state, "reason": STRANGE, "remedy": remedy,
               "needs_kernel": "6.0"})
    };
    let findings = json!({
        "version": "0.1.0", "date": "2026-01-02T03:04:05Z",
        "availability": [
            {"place": "native", "mechanisms": [mechanism("SEND_ZC", "yes", None),
                                               mechanism("KVM", "unknown", None)]},
            {"place": "emulated", "mechanisms": [mechanism("ublk", "no", Some("modprobe ublk_drv"))]},
        ],
        "runs": [
            run("send", send(false)), run("send", send(true)), run("splice", splice()),
            run("recv", recv()), run("block", block()),
            {"place": "emulated", "bench": "block", "origin": "handoff bench block --lab",
             "problem": PROBLEM},
        ],
    });
    serde_json::from_value(findings).expect("they have the format")
}

/// Their page.
pub(crate) fn drawn() -> String {
    let findings = findings();
    page(&findings, &findings.json().expect("it has one"))
}
