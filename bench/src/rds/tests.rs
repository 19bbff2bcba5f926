//! Tests of the bench of messages on a network of its own.

use std::{sync::atomic::AtomicBool, time::Duration};

use handoff_lab::skip;

use super::*;
use crate::{
    measure::{Engine as _, Slot},
    report::{Config, Latency},
    run,
    testing::{self, report_or_skip},
};

fn args(line: &str) -> RdsArgs {
    testing::parse(line).unwrap()
}

fn measured(line: &'static str, stopped: bool) -> Result<Report, BenchError> {
    testing::report_of(stopped, move |context| run::run(&args(line), context))
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
                // No module, or one that has taken the port.
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
        Err(BenchError::Stopped) => {}
        Err(BenchError::NotPossible(reason)) => skip!("{reason}"),
        other => panic!("{other:?}"),
    }
}

/// Claims one message more than it sends.
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
        let bed = Bed::new(LOAD, &Pattern::new(), pinned.others())?;
        let stop = AtomicBool::new(false);
        let job = JOBS[5];
        let (tcp, far) = Tcp::new(&bed, job).unwrap();
        let mut exchange = Exchange::new(&bed, job, (Boasting(tcp), far), Vec::new());
        Ok(exchange.run(&Slot::new(Duration::from_millis(20), &stop)).unwrap_err())
    });
    match made.join().unwrap() {
        Ok(error) => assert!(error.contains("nothing arrived"), "{error}"),
        Err(BenchError::NotPossible(reason)) => skip!("{reason}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_guest_is_told_all_but_what_stays_here() {
    let given = args("--lab --time 0.5 --rounds 2 --only ask --json-file a --compare b");
    let words = run::arguments_in_guest(&given);
    assert_eq!(
        words,
        ["bench", "rds", "--json", "--meter", "--only=ask", "--time=0.5", "--rounds=2"]
    );
}

#[test]
fn quick_fits_its_time() {
    let args = args("--quick");
    // TCP again beside the kernel's.
    let rows = JOBS.len() as u32 * 6;
    let (slot, rounds) = args.wanted_slots(rows as usize, false);
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
