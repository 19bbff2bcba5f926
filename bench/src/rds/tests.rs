//! Tests of the bench of messages. Each makes a network of its own.

use std::{sync::atomic::AtomicBool, time::Duration};

use handoff_testbed::skip;

use super::*;
use crate::{
    measure::Slot,
    report::{Config, Latency},
    testing::{self, report_or_skip},
};

fn args(line: &str) -> RdsArgs {
    testing::parse(line).unwrap()
}

fn measured(line: &'static str, stopped: bool) -> Result<Report, Failure> {
    testing::report_of(stopped, move |context| run(&args(line), context))
}

#[test]
fn needs_root_both_ways_are_measured_beside_tcp() {
    let line = "--time 0.05 --rounds 2 --only (ask|stream).(64|1m).depth";
    let report = report_or_skip!(measured(line, false));
    assert_eq!(report.bench, "rds");
    assert_eq!(report.rows.len(), 5 * 5);
    for rows in report.rows.chunks(5) {
        let engines: Vec<_> = rows.iter().map(|row| row.engine.as_str()).collect();
        assert_eq!(engines, [TCP, OWN, OWN, KERNEL, KERNEL]);
        for row in rows {
            if let Some(reason) = &row.skipped {
                // There is no module, or it has taken the port.
                assert!(!row.baseline && !reason.is_empty(), "{row:?}");
                continue;
            }
            assert!(row.ops_per_s.unwrap() > 1.0 && row.cpu_ns_per_op.unwrap() > 0.0, "{row:?}");
            let asks = row.config.op.as_deref() == Some("ask");
            assert_eq!(row.latency_us.is_some_and(|it| it.p50 > 1.0 && it.p99 >= it.p50), asks);
            assert_eq!(row.reap_calls.is_some(), row.engine != TCP, "{row:?}");
            if row.engine != KERNEL {
                assert_eq!(row.copied_share, Some(1.0), "veth copies: {row:?}");
            }
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

/// One program tells what it was told; the others tell why they send nothing.
#[test]
fn needs_root_other_programs_have_rows_of_streams_by_their_own_figures() {
    let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let told = "{bytes}.{depth}.{sockets}.{from_addr}.{addr}";
    let known = "64.64.1.[0-9]*.[0-9]*|1048576.16.1.[0-9]*.[0-9]*|1048576.2.8.[0-9]*.[0-9]*";
    let mut args = args("--time 0.05 --rounds 1 --only (64|1m).depth.*(told|gone|mute|deaf)");
    args.programs.peer = vec![
        named("told", &format!("sleep 0.1; case {told} in {known}) echo 5 GB/s;; esac")),
        named("gone", "echo why; exit 3"),
        named("mute", "true"),
        named("deaf", "true"),
    ];
    args.peer_receiver = vec![named("told", "exec sleep 60"), named("deaf", "exit 4")];
    let report = report_or_skip!(testing::report_of(false, move |context| run(&args, context)));
    let (mut peers, all) = (report.rows.iter().filter(|row| row.peer), report.rows.len());
    assert_eq!(all, 3 * 5, "three loads, and TCP beside each");
    for _ in 0..3 {
        let row = peers.next().unwrap();
        assert_eq!((row.engine.as_str(), &row.skipped), ("told", &None));
        let (rate, bytes) = (row.bytes_per_s.unwrap(), row.config.bytes.unwrap() as f64);
        // The time in which other programs ran does not count.
        assert!(rate > 4.99e9, "{row:?}");
        assert!((rate / row.ops_per_s.unwrap() / bytes - 1.0).abs() < 0.01, "{row:?}");
        assert!(row.cpu_ns_per_op.unwrap() > 0.0, "{row:?}");
        for why in ["exit status: 3: why", "nothing in its output matches", "'exit 4' ended"] {
            let reason = peers.next().unwrap().skipped.as_deref().unwrap();
            assert!(reason.contains(why), "{reason}");
        }
    }
}

/// A way that claims one message more than it sends.
struct Boasting(Tcp);

impl Way for Boasting {
    fn stream(&mut self, over: &dyn Fn() -> bool) -> Result<u64, String> {
        Ok(self.0.stream(over)? + 1)
    }

    fn ask(&mut self) -> Result<(), String> {
        self.0.ask()
    }

    fn returned(&self) -> exchange::Returned {
        self.0.returned()
    }
}

#[test]
fn needs_root_what_does_not_arrive_ends_a_row() {
    let made = std::thread::spawn(|| {
        let pinned = Pinned::to(None).unwrap();
        let testbed = Testbed::new(LOAD, &Pattern::new(), pinned.others())?;
        let stop = AtomicBool::new(false);
        let job = JOBS[5];
        let (tcp, far) = Tcp::new(&testbed, job).unwrap();
        let mut exchange = Exchange::new(&testbed, job, (Boasting(tcp), far), Vec::new());
        Ok(exchange.run(&Slot::new(Duration::from_millis(20), &stop)).unwrap_err())
    });
    match made.join().unwrap() {
        Ok(error) => assert!(error.contains("nothing arrived"), "{error}"),
        Err(Failure::NotPossible(reason)) => skip!("{reason}"),
        Err(failure) => panic!("{failure:?}"),
    }
}

#[test]
fn the_guest_is_told_all_but_what_stays_here() {
    let given = "--lab --time 0.5 --rounds 2 --only ask --json-file a --compare b --peer x=y=z \
                 --peer-receiver x=r --peer-unit x=MiB --program /bin/true";
    let given = args(given);
    let words = run::arguments_in_guest(&Rds::new(&given).unwrap());
    let own = ["bench", "rds", "--json", "--meter", "--only=ask", "--time=0.5", "--rounds=2"];
    let peers = ["--peer-receiver=x=r", "--peer-unit=x=MiB", "--peer=x=y=z"];
    assert_eq!(words, [&own[..], &peers].concat());
    assert!(!given.programs.carried.is_empty());
}

#[test]
fn quick_fits_its_time() {
    let args = args("--quick");
    // TCP has rows a second time, beside the kernel's engine.
    let rows = JOBS.len() as u32 * 6;
    let (slot, rounds) = Rds::new(&args).unwrap().wanted_slots(rows as usize, false);
    assert!(slot * rounds * rows <= Duration::from_secs(30));
}

#[test]
fn the_verdict_is_of_lent_beside_copied() {
    let row = |op: &str, way: &str, p50, dma, cost| Row {
        name: format!("{op} 1m depth=1 sockets=1 {OWN} {way}"),
        engine: OWN.to_owned(),
        config: Config {
            op: Some(op.to_owned()),
            bytes: Some(1 << 20),
            sockets: Some(1),
            target: Some("wire".to_owned()),
            ..Config::default()
        },
        latency_kinsn: Some(Latency { p50, p90: p50, p99: p50, p999: p50, simulated_dma: dma }),
        minsn_per_gib: Some(cost),
        ..Row::default()
    };
    let rows = vec![
        row("ask", "lent", 600.0, Some(100.0), 1.0),
        row("ask", "copy", 1_100.0, Some(100.0), 1.0),
        row("stream", "lent", 1.0, None, 30.0),
        row("stream", "copy", 1.0, None, 100.0),
    ];
    let machine = crate::machine::Machine::this();
    let report = Report::new("rds", String::new(), machine, rows);
    let text = verdict::verdict(&report);
    assert!(text.contains("0.50 of copy's time, 0.55 with the NIC's"), "{text}");
    assert!(text.contains("0.30 of copy's CPU"), "{text}");
    assert!(!text.contains(KERNEL), "{text}");
}
