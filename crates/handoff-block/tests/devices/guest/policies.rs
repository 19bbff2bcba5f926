//! Mappings of users: working examples, those that must be refused, and answers that are no place on any
//! device.

use std::fs;
use std::path::PathBuf;

use handoff_block::state::Directory;
use handoff_block::{Engine, Error, Kind, Server, Spec, Start, policy};

use super::device::{Device, Files, MIB, Random, driver_or_skip, read_at, spec, write_at};

macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).as_slice()
    };
}
pub(super) use object;

pub(super) fn with_policy(files: &Files, object: &[u8], size: u64) -> Spec {
    let path: PathBuf = files.directory.path().join("policy.bpf.o");
    fs::write(&path, object).expect("a file");
    Spec {
        policy: Some(path),
        size: Some(size),
        depth: 8,
        direct: true,
        ..spec(Kind::Policy, files, Engine::Bpf)
    }
}

#[test]
fn a_shard_lies_where_its_hash_says() {
    driver_or_skip!();
    let size = 24 * MIB;
    let files = Files::new(&[size; 3]);
    let spec = Spec { queues: 2, ..with_policy(&files, object!("shard"), size) };
    let device = Device::of(&spec);
    let disk = device.open();
    let bytes = Random(7).bytes(size as usize);
    write_at(&disk, 0, &bytes).expect("written");
    assert!(read_at(&disk, 0, size as usize).expect("read") == bytes);
    drop(disk);
    device.end();
    let contents: Vec<_> = (0..3).map(|file| files.read(file)).collect();
    let mut used = [0; 3];
    for shard in 0..24u64 {
        let file = (shard.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % 3;
        let range = (shard * MIB) as usize..((shard + 1) * MIB) as usize;
        assert!(contents[file][range.clone()] == bytes[range], "shard {shard} of file {file}");
        used[file] += 1;
    }
    assert!(used.iter().all(|shards| *shards > 0), "{used:?}");
}

#[test]
fn a_map_is_edited_while_io_runs() {
    driver_or_skip!();
    let files = Files::new(&[4 * MIB]);
    let device = Device::of(&with_policy(&files, object!("sparse"), 64 * MIB));
    let disk = device.open();
    let eio = |result: std::io::Result<Vec<u8>>| {
        result.expect_err("nothing there").raw_os_error() == Some(libc::EIO)
    };
    assert!(eio(read_at(&disk, 0, 4096)));
    let set = |key: u64, value: u64| {
        policy::set(device.id, "places", &[(key.to_string(), value.to_string())]).expect("set");
    };
    set(7, 1);
    set(40, 2);
    write_at(&disk, 7 * MIB, &[3; 8192]).expect("written");
    write_at(&disk, 40 * MIB + 4096, &[4; 4096]).expect("written");
    // Neighbours have no place.
    assert!(eio(read_at(&disk, 8 * MIB, 4096)));
    assert!(eio(read_at(&disk, 8 * MIB - 4096, 8192)));
    // Moved, while readers see one or the other.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let read = read_at(&disk, 7 * MIB + 4096, 4096).expect("read");
                assert!(read == [3; 4096] || read == [4; 4096], "{}", read[0]);
            }
        });
        for round in 0..50 {
            set(7, 1 + round % 2);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    for (map, key, value, said) in [
        ("nothing", "1", "1", "it has places"),
        ("../x", "1", "1", "no name of a map"),
        ("places", "x", "1", "x is not 4 bytes"),
        ("places", "70000", "1", "does not take"),
    ] {
        let pair = [(key.to_owned(), value.to_owned())];
        let error = policy::set(device.id, map, &pair).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let (id, path) = (device.id, policy::pins(device.id));
    assert!(path.exists());
    drop(disk);
    device.end();
    assert!(!path.exists(), "the maps of device {id} are gone");
    assert_eq!(files.read(0)[..8192], [3; 8192]);
}

#[test]
fn hostile_policies_are_refused() {
    driver_or_skip!();
    let files = Files::new(&[MIB]);
    for (object, said) in [
        (object!("kfunc"), "bpf_io_uring_submit_sqes, which it does not define"),
        (object!("program"), "a program of its own"),
        (object!("nothing"), "no function blk_policy"),
        (object!("prototype"), "does not go with the loop"),
        (
            object!("endless"),
            "verifier refuses the policy: Invalid argument (os error 22): infinite",
        ),
        (object!("beyond"), "outside of the allowed memory range"),
        (object!("unchecked"), "invalid mem access 'map_value_or_null'"),
    ] {
        let error = Server::start(&with_policy(&files, object, MIB), Start::New).unwrap_err();
        let line = error.to_string();
        assert!(line.contains(said), "{line}");
        assert!(!line.contains('\n'), "{line}");
        println!("{line}");
    }
    let spec =
        Spec { engine: Some(Engine::UserCopy), ..with_policy(&files, object!("shard"), MIB) };
    let error = Server::start(&spec, Start::New).unwrap_err();
    assert!(matches!(error, Error::NotPossible { .. }), "{error}");
    let left = fs::read_dir("/dev").expect("/dev").flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with("ublkc"));
    assert_eq!(left.count(), 0, "a device stayed behind");
}

#[test]
fn answers_that_no_device_has_are_errors_of_their_own_requests() {
    driver_or_skip!();
    let files = Files::new(&[MIB]);
    let device = Device::of(&with_policy(&files, object!("far"), MIB));
    let disk = device.open();
    for way in 0..16u64 {
        let read = read_at(&disk, way << 16, 4096);
        let written = write_at(&disk, way << 16, &[1; 4096]);
        for result in [read.map(drop), written] {
            match result {
                Ok(()) => assert!(way == 0 || way > 9, "way {way} was taken"),
                Err(error) => {
                    assert!((1..=9).contains(&way), "way {way}: {error}");
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "way {way}");
                }
            }
        }
    }
    // None of them reached the file, but a program that looked at the new disk may have.
    let counters = Directory::of(device.id).counters(1, 8).expect("counters");
    let done: u64 = counters.queues[0].operations.iter().map(|done| done.requests).sum();
    assert_eq!(counters.queues[0].pieces, done, "pieces of what has failed");
    drop(disk);
    device.end();
}
