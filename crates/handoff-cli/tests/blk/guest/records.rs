//! Mirrors whose legs have records, while they serve: what is on the legs when a request is answered.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Disk as _, Fault, Flaky, LoopDisk, Schedule};
use serde_json::json;

use super::command::{
    Added, ENGINES, Files, driver_or_skip, kill, nothing_is_left, read_block, verified, write_block,
};
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
            std::thread::sleep(std::time::Duration::from_millis(200 + 70 * round));
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
