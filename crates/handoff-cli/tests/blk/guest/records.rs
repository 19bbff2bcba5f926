//! Mirrors whose legs have records, while they serve: what is on the legs when a request is answered.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Disk as _, Fault, Flaky, LoopDisk, Schedule};
use serde_json::json;

use super::command::{
    Added, ENGINES, Files, driver_or_skip, kill, nothing_is_left, read_block, refused, verified,
    write_block,
};
use super::power::Dice;
use super::takeover::{orphan, recover};

const LEN: u64 = 16 << 20;
/// What a mirror of small legs takes at their ends.
const ROOM: u64 = 76 << 10;
/// Blocks of a chunk.
const CHUNK: u64 = 256;

fn read(leg: &str, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let opened = File::open(leg).expect("a leg");
    opened.read_exact_at(&mut bytes, at).expect("read");
    bytes
}

/// The chunks whose bit is set on a leg.
fn bits(leg: &str) -> Vec<u64> {
    let bytes = read(leg, LEN - ROOM, 504);
    (0..LEN >> 20).filter(|chunk| bytes[*chunk as usize / 8] >> (chunk % 8) & 1 != 0).collect()
}

/// The legs in use, as both copies of a leg's record say.
#[track_caller]
fn in_use(leg: &str) -> u32 {
    let of = |copy: u64| {
        let page = read(leg, LEN - (2 - copy) * 4096, 4096);
        assert_eq!(&page[..8], b"handoffM", "copy {copy} of {leg}");
        u32::from_le_bytes(page[32..36].try_into().expect("four bytes"))
    };
    let both = [of(0), of(1)];
    assert_eq!(both[0], both[1], "the copies of {leg}");
    both[0]
}

fn mirror(legs: [&str; 2], more: &[&str]) -> Added {
    Added::new(&[&["mirror", "--create"], &legs[..], more].concat())
}

#[test]
fn a_write_is_answered_when_its_bit_is_on_all_legs() {
    driver_or_skip!();
    for engine in ENGINES {
        let files = Files::new(2, LEN);
        let legs = [0, 1].map(|leg| files.name(leg));
        let device = mirror(legs, &["--engine", engine, "--queues", "2"]);
        assert!(legs.map(bits).concat().is_empty(), "{engine}");
        for (round, chunk) in [3, 9, 3].into_iter().enumerate() {
            write_block(&device.node(), 1, chunk * CHUNK + round as u64).expect("written");
            for leg in legs {
                assert!(bits(leg).contains(&chunk), "{engine}, {chunk}: {:?}", bits(leg));
            }
        }
        if engine == ENGINES[0] {
            let clear = || legs.iter().all(|leg| bits(leg).is_empty()).then_some(());
            eventually("the bits are cleared when nobody writes", clear);
            write_block(&device.node(), 2, 5 * CHUNK).expect("written");
        }
        assert_eq!(device.show()["counters"][0]["errors"], 0, "{engine}");
        device.del();
        assert!(legs.map(bits).concat().is_empty(), "{engine}: at the end, too");
        assert_eq!(legs.map(in_use), [0b11; 2], "{engine}");
    }
    nothing_is_left();
}

/// A disk that fails when it is told to.
fn flaky() -> Flaky<LoopDisk> {
    let lower = LoopDisk::new(Path::new("/var/tmp"), LEN, 512, false).expect("a loop device");
    Flaky::over(lower, Schedule::WORKS).expect("a disk that fails")
}

#[test]
fn what_a_leg_lacks_is_answered_when_the_other_says_that_it_is_out() {
    driver_or_skip!();
    for engine in ENGINES {
        let (files, disk) = (Files::new(1, LEN), flaky());
        let path = disk.path().to_str().expect("UTF-8").to_owned();
        let device = mirror([&path, files.name(0)], &["--engine", engine]);
        write_block(&device.node(), 1, 7).expect("written");
        assert_eq!(in_use(files.name(0)), 0b11, "{engine}");
        disk.set(Schedule::fails(Fault::ErrorWrites)).expect("told to fail");
        write_block(&device.node(), 2, 7).expect("the other has it");
        assert_eq!(in_use(files.name(0)), 0b10, "{engine}");
        assert_eq!(device.show()["failed_legs"], json!([0]), "{engine}");
        assert_eq!(device.show()["counters"][0]["errors"], 0, "{engine}");
        // Well again, it stays out.
        disk.set(Schedule::WORKS).expect("told to work");
        write_block(&device.node(), 3, 11 * CHUNK).expect("written");
        assert_eq!(in_use(&path), 0b11, "{engine}: nobody writes to it");
        device.del();
        let device = Added::new(&["mirror", files.name(0)]);
        assert_eq!(read_block(&device.node(), 7).expect("read"), [2; 4096], "{engine}");
        device.del();
    }
    nothing_is_left();
}

#[test]
fn a_leg_fails_while_servers_are_killed() {
    driver_or_skip!();
    let is_long = std::env::var_os("HANDOFF_SOAK").is_some();
    // The short form leaves the guest's processors to others.
    let (kills, queues, rate) =
        if is_long { (4, "2", "--rate_iops=200") } else { (2, "1", "--rate_iops=60") };
    for engine in ["bpf", "batch-auto"] {
        let (files, disk) = (Files::new(1, LEN), flaky());
        let path = disk.path().to_str().expect("UTF-8").to_owned();
        let more = ["--engine", engine, "--queues", queues];
        let device = mirror([files.name(0), &path], &more);
        let load = device.load("15m", 3, &[rate]);
        let mut server = device.server(None);
        for round in 0..kills {
            std::thread::sleep(Duration::from_millis(200 + 70 * round));
            if round == 1 {
                disk.set(Schedule::fails(Fault::ErrorWrites)).expect("told to fail");
            }
            kill(server);
            server = device.server(Some(server));
        }
        // Where the guest is so slow that the load has ended before, this meets the fault.
        write_block(&device.node(), 6, LEN / 4096 - 100).expect("written");
        verified(load);
        assert_eq!(device.show()["failed_legs"], json!([1]), "{engine}");
        assert_eq!(device.show()["counters"][0]["errors"], 0, "{engine}");
        assert_eq!(in_use(files.name(0)), 0b01, "{engine}");
        disk.set(Schedule::WORKS).expect("told to work");
        device.del();
    }
    nothing_is_left();
}

/// Writes blocks of all chunks until it is told to end, and tells what each has. No write fails.
fn written(node: &str, is_over: &AtomicBool) -> BTreeMap<u64, u8> {
    let mut all = BTreeMap::new();
    for turn in 0_u64.. {
        let (number, byte) = (turn * 41 % 3900, (turn % 255) as u8 + 1);
        write_block(node, byte, number).expect("written");
        all.insert(number, byte);
        if is_over.load(Ordering::SeqCst) {
            break;
        }
    }
    all
}

/// A leg after the other fails, in one mirror, and its servers are killed at about the same time.
fn killed_around_failures(engine: &str, failures: usize, dice: &mut Dice) {
    let (files, disks) = (Files::new(1, LEN), (0..failures).map(|_| flaky()).collect::<Vec<_>>());
    let mut legs = vec![files.name(0)];
    legs.extend(disks.iter().map(|disk| disk.path().to_str().expect("UTF-8")));
    let options = ["mirror", "--create", "--engine", engine];
    let device = Added::new(&[&options[..], &legs].concat());
    for (round, disk) in disks.iter().enumerate() {
        let is_over = AtomicBool::new(false);
        let node = &device.node();
        let [fails, kills] = [(); 2].map(|()| Duration::from_millis(dice.below(300)));
        let with_supervisor = dice.below(2) == 0;
        let told =
            format!("{engine}, leg {}: fails after {fails:?}, killed after {kills:?}", round + 1);
        let blocks = std::thread::scope(|scope| {
            let writer = scope.spawn(|| written(node, &is_over));
            scope.spawn(|| {
                std::thread::sleep(fails);
                disk.set(Schedule::fails(Fault::Everything)).expect("told to fail");
            });
            let server = device.server(None);
            std::thread::sleep(kills);
            if with_supervisor {
                orphan(&device);
                recover(&device);
            } else {
                kill(server);
                device.server(Some(server));
            }
            is_over.store(true, Ordering::SeqCst);
            writer.join().expect("no panic")
        });
        // Where it failed after the last write, this meets the fault.
        write_block(node, 7, 4000).expect("written");
        for (number, byte) in blocks {
            assert_eq!(read_block(node, number).expect("read"), [byte; 4096], "{told}: {number}");
        }
        let out: Vec<_> = (1..=round + 1).collect();
        assert_eq!(device.show()["failed_legs"], json!(out), "{told}");
        assert_eq!(in_use(legs[0]) & 1 << (round + 1), 0, "{told}");
    }
    assert_eq!(in_use(legs[0]), 1, "{engine}");
    let before = [3, 4000].map(|number| read_block(&device.node(), number).expect("read"));
    device.del();
    disks.iter().for_each(|disk| disk.set(Schedule::WORKS).expect("told to work"));
    // They are back, and stale: none is taken instead of the good one, beside it, or by mistake.
    let line = refused(&[&["add", "mirror"], &legs[1..]].concat(), 2);
    assert!(line.contains("may have newer data and cannot be read"), "{line}");
    let device = Added::new(&[&["mirror"], &legs[..]].concat());
    assert_eq!(device.show()["failed_legs"].as_array().map(Vec::len), Some(failures));
    let after = [3, 4000].map(|number| read_block(&device.node(), number).expect("read"));
    assert!(before == after, "{engine}");
    device.del();
    let line = refused(&["add", "mirror", legs[1]], 2);
    assert!(line.contains("all that is here went out before leg 0"), "{line}");
    // A new disk is copied to.
    fs::write(legs[1], vec![0; LEN as usize]).expect("written");
    let device = Added::new(&["mirror", "--create", "--keep-first", legs[0], legs[1]]);
    assert_eq!(device.show()["failed_legs"], json!([]));
    device.del();
    let data = [legs[0], legs[1]].map(|leg| read(leg, 0, (LEN - ROOM) as usize));
    assert!(data[0] == data[1], "{engine}: the legs differ");
}

#[test]
fn all_servers_are_killed_around_a_failure() {
    driver_or_skip!();
    killed_around_failures("user-auto", 2, &mut Dice(7));
    nothing_is_left();
}

/// Together 208 failures, in the long form only.
macro_rules! all_servers_are_killed_around_failures {
    ($($name:ident: $engine:literal, $seeds:expr;)*) => {
        $(
            #[test]
            fn $name() {
                driver_or_skip!();
                for seed in $seeds {
                    killed_around_failures($engine, 13, &mut Dice(seed));
                }
                nothing_is_left();
            }
        )*
    };
}
all_servers_are_killed_around_failures! {
    long_form_by_bpf: "bpf", [1, 2];
    long_form_by_bpf_with_other_delays: "bpf", [3, 4];
    long_form_by_user_auto: "user-auto", [1, 2];
    long_form_by_user_auto_with_other_delays: "user-auto", [3, 4];
    long_form_by_batch_auto: "batch-auto", [1, 2];
    long_form_by_batch_auto_with_other_delays: "batch-auto", [3, 4];
    long_form_by_user_copy: "user-copy", [1, 2];
    long_form_by_user_copy_with_other_delays: "user-copy", [3, 4];
}

#[test]
fn the_record_learns_of_a_leg_that_a_recovery_did_not_find() {
    driver_or_skip!();
    let files = Files::new(2, LEN);
    let device = mirror([files.name(0), files.name(1)], &[]);
    write_block(&device.node(), 1, 7).expect("written");
    orphan(&device);
    let aside = files.directory.path().join("aside");
    fs::rename(&files.paths[1], &aside).expect("moved");
    recover(&device);
    assert_eq!(device.show()["failed_legs"], json!([1]));
    write_block(&device.node(), 2, 7).expect("written");
    assert_eq!(in_use(files.name(0)), 0b01);
    device.del();
    assert_eq!(in_use(aside.to_str().expect("UTF-8")), 0b11);
    nothing_is_left();
}
