//! Tests of the send bench. Each makes a real network of its own.

use handoff_testbed::skip;

use super::*;
use crate::testing::{self, report_or_skip};

fn args(line: &str) -> SendArgs {
    testing::parse(line).unwrap()
}

fn measured(line: &'static str, stopped: bool) -> Result<Report, Failure> {
    testing::report_of(stopped, move |context| run(&args(line), context))
}

#[test]
fn needs_root_udp_baselines_are_measured() {
    let line = "--time 0.05 --rounds 3 --sizes 4k,64k --only copy|msg";
    let report = report_or_skip!(measured(line, false));
    assert_eq!(report.rows.len(), 8);
    let find = |name: &str| {
        let named =
            |row: &&crate::report::Row| row.name == name && row.config.bytes == Some(DEFAULT_BYTES);
        report.rows.iter().find(named).unwrap()
    };
    let (copy, seed) = (find("copy"), find("msg-zerocopy-seed"));
    assert!(copy.bytes_per_s.unwrap() > 1e6);
    assert_eq!(copy.copied_share, Some(1.0));
    assert!(seed.baseline && seed.skipped.is_none());
    assert_eq!(seed.copied_share, Some(0.0), "the device ends datagrams without a copy");
    if !report.emulated {
        assert_eq!(seed.ratio, Some(1.0));
        assert!(copy.ratio.is_some());
    }
    // Bytes per second over messages per second give the payload.
    let per_message = copy.bytes_per_s.unwrap() / copy.ops_per_s.unwrap();
    assert!((per_message / DEFAULT_BYTES as f64 - 1.0).abs() < 0.1, "{per_message}");
}

#[test]
fn needs_root_tcp_is_drained_and_its_zero_copy_is_reported_copied() {
    let report =
        report_or_skip!(measured("--time 0.05 --rounds 2 --proto tcp --only copy|msg", false));
    let seed = report.rows.iter().find(|row| row.baseline).unwrap();
    assert_eq!(seed.config.target.as_deref(), Some("veth"));
    assert!(seed.bytes_per_s.unwrap() > 1e6);
    assert_eq!(seed.copied_share, Some(1.0), "delivery on the same host copies");
}

/// Each row of the same number of sockets does the same work, and its payload agrees with messages and bytes.
#[test]
fn needs_root_one_payload_goes_to_many_sockets() {
    for proto in ["udp", "tcp"] {
        let line = match proto {
            "udp" => "--time 0.05 --rounds 2 --sizes 16k --fan-out 1,3",
            _ => "--time 0.05 --rounds 2 --sizes 16k --fan-out 3 --proto tcp",
        };
        let report = report_or_skip!(measured(line, false));
        assert!(report.rows.iter().all(|row| row.config.fan_out.is_some()));
        for row in &report.rows {
            if row.skipped.is_some() {
                assert!(row.engine.starts_with("uring-zc"), "{row:?}");
                continue;
            }
            let per_message = row.bytes_per_s.unwrap() / row.ops_per_s.unwrap();
            assert!((per_message / 16_384.0 - 1.0).abs() < 0.1, "{per_message}");
            let copied = if proto == "udp" && row.engine != "copy" { 0.0 } else { 1.0 };
            assert_eq!(row.copied_share, Some(copied), "{proto} {}", row.name);
        }
        let baselines = report.rows.iter().filter(|row| row.baseline).count();
        assert_eq!(report.rows.len(), 3 * baselines);
    }
}

#[test]
fn needs_root_a_message_goes_as_datagrams_of_one_size() {
    let line = "--time 0.05 --rounds 2 --sizes 60000 --segment 1200";
    let report = report_or_skip!(measured(line, false));
    let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names[..2], ["copy sendmmsg", "copy gso"]);
    assert!(names[2..].iter().all(|name| name.ends_with(" gso")), "{names:?}");
    for row in &report.rows {
        assert_eq!(row.config.segment, Some(1200));
        assert_eq!(row.baseline, row.name == "copy gso");
        if row.skipped.is_none() {
            let copied = f64::from(u8::from(row.engine == "copy"));
            assert_eq!(row.copied_share, Some(copied), "{}", row.name);
        }
    }
}

#[test]
fn needs_root_another_working_set_makes_other_rows() {
    let line = "--time 0.02 --rounds 1 --working-set 32m --only copy$|fixed.flush=no.batch=8$";
    let report = report_or_skip!(measured(line, false));
    let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(
        names,
        ["copy ws=32m", "msg-zerocopy-seed ws=32m", "uring-zc-fixed flush=no batch=8 ws=32m",]
    );
    let ours = &report.rows[2];
    if let Some(reason) = &ours.skipped {
        assert!(!reason.is_empty());
    } else {
        assert_eq!(ours.copied_share, Some(0.0), "the device ends datagrams without a copy");
    }
}

#[test]
fn needs_root_many_sockets_make_other_rows_without_a_ratio() {
    let line = "--time 0.02 --rounds 1 --sockets 1,100 --only fixed.*batch=8";
    let report = report_or_skip!(measured(line, false));
    let names = |sockets| {
        let rows = report.rows.iter().filter(move |row| row.config.sockets == sockets);
        rows.map(|row| row.name.as_str()).collect::<Vec<&str>>()
    };
    let many = [
        "uring-zc-fixed flush=yes batch=8 sockets=100",
        "uring-zc-fixed flush=no batch=8 sockets=100",
        "uring-zc-fixed bulk batch=8 sockets=100",
    ];
    assert_eq!(names(Some(100)), many);
    assert!(names(None).contains(&"uring-zc-fixed bulk batch=8"));
    for row in report.rows.iter().filter(|row| row.config.sockets.is_some()) {
        assert_eq!(row.ratio, None, "no baseline has so many");
        match &row.skipped {
            Some(reason) => assert!(!reason.is_empty()),
            None => assert_eq!(row.copied_share, Some(0.0), "{}", row.name),
        }
    }
}

#[test]
fn needs_root_a_stop_ends_the_bench_without_a_table() {
    match measured("--time 60 --rounds 9", true) {
        Err(Failure::Stopped(_)) => {}
        Err(Failure::NotPossible(reason)) => skip!("{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn impossible_sizes_and_peers_are_usage_errors() {
    for (line, names) in [
        ("--sizes 65508", "65507"),
        ("--proto tcp --sizes 1g", "16777216"),
        ("--segment 100 --sizes 6401", "64 datagrams"),
        ("--segment 100 --sizes 6400 --proto tcp", "UDP"),
        ("--peer-regex a=(x)", "'a'"),
        ("--peer a=b --peer-unit a=x", "'x'"),
        ("--peer a=b --peer-regex a=x", "group"),
        ("--compare /nonexistent/file", "/nonexistent/file"),
    ] {
        match measured(line, false) {
            Err(Failure::Usage(text)) => assert!(text.contains(names), "{line}: {text}"),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn the_guest_is_told_all_but_what_stays_here() {
    let line = "--lab --sizes 4k,64k --proto tcp --working-set 1m --sockets 1,10k --only ^copy|zc \
                --time 0.5 --rounds 2 --compare a --json-file b";
    let in_guest = |line: &str| {
        let args = args(line);
        let sizes = sizes(&args).unwrap();
        run::arguments_in_guest(&Send { args: &args, sizes, figures: Vec::new() })
    };
    let words = in_guest(line);
    assert_eq!(words[..4], ["bench", "send", "--json", "--meter"]);
    let guest = args(&words[4..].join(" "));
    let before = args(line);
    assert_eq!(guest.sizes, before.sizes);
    assert_eq!(guest.proto, before.proto);
    assert_eq!(guest.working_set, before.working_set);
    assert_eq!(guest.sockets, before.sockets);
    assert_eq!(guest.sockets, [1, 10_000]);
    let (guest, before) = (guest.run, before.run);
    assert_eq!((guest.time, guest.rounds), (before.time, before.rounds));
    assert_eq!(guest.only.map(|it| it.to_string()), before.only.map(|it| it.to_string()));
    assert!(!guest.lab && guest.json_file.is_none() && guest.compare.is_none());
    assert!(in_guest("--lab --quick").contains(&"--quick".to_owned()));
}

#[test]
fn quick_fits_its_time() {
    let args = args("--quick");
    let bench = Send { args: &args, sizes: Vec::new(), figures: Vec::new() };
    for rows in [1, 4, 28, 40] {
        let (slot, rounds) = bench.wanted_slots(rows, false);
        assert!(rounds >= 1);
        let total = slot * rounds * rows as u32;
        assert!(total <= Duration::from_secs(25), "{rows} rows take {total:?}");
    }
}
