//! Tests of the receive bench. Each makes a real network of its own.

use std::sync::atomic::AtomicBool;

use handoff_testbed::skip;

use super::{
    epoll::Epoll,
    reception::{Receive, Reception},
    *,
};
use crate::{
    measure::{Engine as _, Slot},
    network::{far::Network as _, pattern::Stream},
    report::Row,
    testing::{self, report_or_skip},
};

fn args(line: &str) -> RecvArgs {
    testing::parse(line).unwrap()
}

fn measured(line: &'static str, stopped: bool) -> Result<Report, Failure> {
    testing::report_of(stopped, move |context| run(&args(line), context))
}

#[test]
fn needs_root_a_row_is_measured_beside_its_baseline() {
    let line = "--time 0.05 --rounds 2 --only check=yes.(multi|zcrx|tcp)";
    let report = report_or_skip!(measured(line, false));
    assert_eq!(report.bench, "recv");
    for load in LOADS {
        let of_load =
            |row: &&Row| row.config.mtu == Some(load.mtu) && row.config.gro == Some(load.gro);
        let rows: Vec<&Row> = report.rows.iter().filter(of_load).collect();
        let engines: Vec<&str> = rows.iter().map(|row| row.engine.as_str()).collect();
        let all = ["epoll", "multishot", "tcp-zerocopy-receive", "zcrx-nodev", "zcrx", "zcrx"];
        assert_eq!(engines, all[..all.len() - usize::from(!load.gro)]);
        for row in rows {
            assert_eq!((row.baseline, row.config.check), (row.engine == "epoll", Some(true)));
            assert_eq!(row.config.chunk.is_some(), row.engine == "zcrx");
            if let Some(reason) = &row.skipped {
                // There is no NIC, no io_uring, or one too old.
                assert!(!row.baseline && !reason.is_empty(), "{row:?}");
                continue;
            }
            assert!(row.bytes_per_s.unwrap() > 1e6, "{row:?}");
            assert!(row.cpu_ns_per_byte.unwrap() > 0.0, "{row:?}");
            assert_eq!(row.ratio.is_some(), !report.emulated, "{row:?}");
            match row.engine.as_str() {
                "epoll" | "multishot" => assert_eq!(row.copied_share, Some(1.0), "{row:?}"),
                "zcrx" => assert_eq!(row.copied_share, Some(0.0), "{row:?}"),
                _ => assert!(row.copied_share.is_none_or(|share| share <= 1.0), "{row:?}"),
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

/// A receiver like the baseline that hands over zeroes instead of what it received.
struct Damaging(Epoll);

impl Receive for Damaging {
    fn receive(&mut self, stream: &mut Stream) -> Result<(), String> {
        let mut unseen = Stream::new(Pattern::new(), false);
        self.0.receive(&mut unseen)?;
        stream.take(&vec![0; unseen.position() as usize]);
        Ok(())
    }

    fn copied(&self) -> Option<u64> {
        self.0.copied()
    }
}

#[test]
fn needs_root_damage_ends_a_row_that_looks() {
    let made = std::thread::spawn(|| {
        let pinned = Pinned::to(None).unwrap();
        let testbed = Testbed::new(LOADS[2], &Pattern::new(), pinned.others())?;
        let stop = AtomicBool::new(false);
        let run = |check| {
            let (epoll, sender) = Epoll::new(&testbed).unwrap();
            let mut reception =
                Reception::new(&testbed, (Damaging(epoll), sender), check, None).unwrap();
            reception.run(&Slot::new(Duration::from_millis(20), &stop))
        };
        Ok((run(false), run(true)))
    });
    let (blind, looking) = match made.join().unwrap() {
        Ok(both) => both,
        Err(Failure::NotPossible(reason)) => skip!("{reason}"),
        Err(failure) => panic!("{failure:?}"),
    };
    assert!(blind.unwrap().bytes > 0);
    assert!(looking.unwrap_err().contains("byte 0"));
}

#[test]
fn needs_root_a_sender_that_is_faster_does_not_keep_a_row_from_its_end() {
    let made = std::thread::spawn(|| {
        let pinned = Pinned::to(None).unwrap();
        let testbed = Testbed::new(LOADS[2], &Pattern::new(), pinned.others())?;
        let (mut epoll, sender) = Epoll::new(&testbed).unwrap();
        let mut stream = Stream::new(testbed.pattern(), true);
        sender.begin().unwrap();
        // However much has arrived by then, each call takes at most one buffer.
        std::thread::sleep(Duration::from_millis(50));
        let mut most = 0;
        for _ in 0..200 {
            let before = stream.position();
            epoll.receive(&mut stream).unwrap();
            most = most.max(stream.position() - before);
        }
        Ok((most, stream.verdict()))
    });
    let (most, verdict) = match made.join().unwrap() {
        Ok(seen) => seen,
        Err(Failure::NotPossible(reason)) => skip!("{reason}"),
        Err(failure) => panic!("{failure:?}"),
    };
    assert!((1..=epoll::BUFFER as u64).contains(&most), "{most} bytes in one go");
    assert_eq!(verdict, Ok(()));
}

#[test]
fn the_guest_is_told_all_but_what_stays_here() {
    let given = "--lab --time 0.5 --only epoll --chunks 8k,2m --json-file a --compare b --peer x=y \
                 --connections 1,8";
    let given = args(given);
    let words = run::arguments_in_guest(&given);
    let chunks = "--chunks=8192,2097152";
    let kept = ["bench", "recv", "--json", "--meter", "--only=epoll", "--time=0.5", chunks];
    assert_eq!(words, [&kept[..], &["--connections=1,8", "--peer=x=y"]].concat());
}

#[test]
fn options_that_would_have_no_effect_are_refused() {
    for line in ["--grow --sockets 10", "--connections 2 --sockets 10", "--grow --send-to ::1"] {
        assert!(testing::parse::<RecvArgs>(line).is_err(), "{line}");
    }
}

#[test]
fn a_nic_has_a_queue_for_each_row_that_wants_one() {
    let [_, packets, whole] = LOADS;
    let own = |line: &str, load| own_queues(&args(line), load);
    assert_eq!((own("", packets), own("", whole)), (5, 5));
    assert_eq!(own("--chunks 4k,8k,64k --only check=no", whole), 4);
    assert_eq!(own("--only owned", whole), 1);
    assert_eq!(own("--only epoll", whole), 0);
    assert_eq!(own("--nic eth0 --placement same,other --only same", packets), 3);
    // Each number of connections other than 1 has a queue for one ring and another for two, and so has each
    // program.
    assert_eq!(own("--connections 1,2,8 --only sockets=", whole), 4);
    assert_eq!(own("--connections 1,2,8 --nic eth0 --placement other --only sockets=", whole), 2);
    assert_eq!(own("--connections 1,2 --peer them=a --only them", packets), 2);
    assert_eq!(own("--peer them=a --only them", packets), 1);
}

#[test]
fn chunks_are_what_a_nic_takes() {
    assert_eq!(args("").chunks, [4 << 10, 64 << 10]);
    for wrong in ["2k", "12k", "4m", "x"] {
        let line = format!("--chunks {wrong}");
        assert!(testing::parse::<RecvArgs>(&line).is_err(), "{wrong}");
    }
}

#[test]
fn quick_fits_its_time() {
    let args = args("--quick");
    let other_host = self::args("--quick --nic eth0");
    for rows in [1, 12, 40] {
        for args in [&args, &other_host] {
            let (slot, rounds) = args.wanted_slots(rows, false);
            assert!(rounds >= 1);
            let total = slot * rounds * rows as u32;
            assert!(total <= Duration::from_secs(20), "{rows} rows take {total:?}");
        }
    }
}
