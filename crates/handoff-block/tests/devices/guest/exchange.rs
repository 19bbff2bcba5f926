//! Policies that replace each other under I/O.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use handoff_block::state::Directory;
use handoff_block::{Engine, Error, Kind, Prepared, Spec, Start, policy};

use super::device::{Device, Files, MIB, Random, driver_or_skip, read_at, spec, write_at};
use super::fixture;
use super::policies::object;

const SIZE: u64 = 8 * MIB;

/// A device of two files with a policy, and a place for others.
struct Policies {
    files: Files,
}

impl Policies {
    fn new() -> Self {
        Self { files: Files::new(&[SIZE; 2]) }
    }

    fn path(&self, name: &str, object: &[u8]) -> PathBuf {
        let path = self.files.directory.path().join(format!("{name}.bpf.o"));
        fs::write(&path, object).expect("a file");
        path
    }

    fn spec(&self, policy: PathBuf) -> Spec {
        Spec {
            policy: Some(policy),
            size: Some(SIZE),
            queues: 2,
            depth: 16,
            direct: true,
            ..spec(Kind::Policy, &self.files, Engine::Bpf)
        }
    }

    fn device(&self, policy: PathBuf) -> Device {
        Device::of(&self.spec(policy))
    }
}

/// Exchanges it, and once more if this process was stopped for as long as a server waits for a request.
fn exchange(id: u32, path: &Path) -> Result<(), Error> {
    let begun = Instant::now();
    policy::exchange(id, path).or_else(|error| match begun.elapsed() < Duration::from_secs(1) {
        true => Err(error),
        false => policy::exchange(id, path),
    })
}

#[test]
fn policies_take_each_others_place_under_load() {
    driver_or_skip!();
    let policies = Policies::new();
    let all = [
        policies.path("plain", object!("plain")),
        policies.path("chopped", object!("chopped")),
        policies.path("chosen", object!("chosen")),
        policies.path("chosen_again", object!("chosen_again")),
    ];
    let device = policies.device(all[0].clone());
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        // Each thread has a part of the device to itself, and knows what is there.
        let loads: Vec<_> = (0..4u64)
            .map(|part| {
                let (device, stop, done) = (&device, &stop, &done);
                scope.spawn(move || {
                    let disk = device.open();
                    let start = part * SIZE / 4;
                    let mut model = vec![0u8; (SIZE / 4) as usize];
                    let mut random = Random(0x1234_5678 + part);
                    while !stop.load(Ordering::Relaxed) {
                        let len = (1 + random.below(48)) * 4096;
                        let offset = random.below((SIZE / 4 - len) / 4096 + 1) * 4096;
                        let range = offset as usize..(offset + len) as usize;
                        if random.below(2) == 0 {
                            let bytes = random.bytes(len as usize);
                            write_at(&disk, start + offset, &bytes).expect("written");
                            model[range].copy_from_slice(&bytes);
                        } else {
                            let read = read_at(&disk, start + offset, len as usize).expect("read");
                            assert!(read == model[range], "{len} bytes at {offset} of part {part}");
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    model
                })
            })
            .collect();
        // Each policy replaces the one before, and the first comes again; in the long form many times.
        let rounds = if std::env::var_os("HANDOFF_SOAK").is_some() { 32 } else { all.len() };
        for round in 0..rounds {
            let before = done.load(Ordering::Relaxed);
            exchange(device.id, &all[(round + 1) % all.len()]).expect("exchanged");
            // Each policy has something to do.
            while done.load(Ordering::Relaxed) < before + 8
                && !loads.iter().any(|load| load.is_finished())
            {
                // The loads need the guest's processors.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        stop.store(true, Ordering::Relaxed);
        loads.into_iter().map(|load| load.join().expect("nothing was wrong")).collect()
    });
    let record = Directory::of(device.id).read().expect("a record");
    let counters = Directory::of(device.id).counters(2, 16).expect("counters");
    assert_eq!(counters.queues.iter().map(|queue| queue.errors).sum::<u64>(), 0);
    assert_eq!(record.spec.policy.as_ref(), Some(&all[0]));
    device.end();
    assert!(policies.files.read(0) == parts.concat(), "the first file is the device");
    assert!(policies.files.read(1).iter().all(|byte| *byte == 0), "the second was never meant");
}

fn names(directory: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    names
}

#[test]
fn maps_stay_where_both_policies_have_them() {
    driver_or_skip!();
    let policies = Policies::new();
    let chosen = policies.path("chosen", object!("chosen"));
    let device = policies.device(chosen.clone());
    let disk = device.open();
    let byte = || read_at(&disk, MIB, 4096).expect("read")[0];
    let choose =
        |file: &str| policy::set(device.id, "choice", &[("0".to_owned(), file.to_owned())]);
    write_at(&disk, MIB, &[1; 4096]).expect("written");
    choose("1").expect("set");
    write_at(&disk, MIB, &[2; 4096]).expect("written");
    // The file that the map names, by other code, and from then on by the same map.
    let again = policies.path("chosen_again", object!("chosen_again"));
    exchange(device.id, &again).expect("exchanged");
    assert_eq!(byte(), 2);
    choose("0").expect("set");
    assert_eq!(byte(), 1);
    choose("1").expect("set");
    // Refused policies leave everything unchanged.
    for (name, object, said) in [
        ("endless", object!("endless"), "verifier refuses the policy"),
        ("kfunc", object!("kfunc"), "which it does not define"),
        ("wider", object!("wider"), "its map choice is of another type or size"),
    ] {
        let path = policies.path(name, object);
        let line = exchange(device.id, &path).expect_err(name).to_string();
        assert!(line.contains(said) && !line.contains('\n'), "{line}");
        println!("{line}");
        assert_eq!(byte(), 2);
        assert_eq!(names(&policy::pins(device.id)), ["choice"], "{name}");
        let kept = names(format!("/run/handoff/blk/{}", device.id).as_ref());
        assert_eq!(kept, ["exchange", "policy.bpf.o", "spec.json", "state"], "{name}");
    }
    let record = Directory::of(device.id).read().expect("a record");
    assert_eq!(record.spec.policy, Some(again));
    // A policy without such a map ends it.
    let plain = policies.path("plain", object!("plain"));
    exchange(device.id, &plain).expect("exchanged");
    assert_eq!(byte(), 1);
    let line = choose("1").expect_err("no such map").to_string();
    assert!(line.contains("it has none"), "{line}");
    exchange(device.id, &chosen).expect("exchanged");
    assert_eq!(byte(), 1, "the map is a new one");
    drop(disk);
    device.end();
}

#[test]
fn damaged_policies_leave_the_server_as_it_is() {
    driver_or_skip!();
    let policies = Policies::new();
    let plain = policies.path("plain", object!("plain"));
    let device = policies.device(plain.clone());
    let disk = device.open();
    write_at(&disk, MIB, &[6; 4096]).expect("written");
    let mutants = if std::env::var_os("HANDOFF_SOAK").is_some() { 10_000 } else { 60 };
    let (mut random, mut refused) = (Random(0x2545_f491_4f6c_dd1d), 0);
    for number in 0..mutants {
        let object = [object!("sparse"), object!("plain"), object!("chosen")][number % 3];
        let mut object = object.to_vec();
        let from = random.below(object.len() as u64 - 480) as usize;
        for _ in 0..8 {
            object[from + random.below(480) as usize] = random.next() as u8;
        }
        match exchange(device.id, &policies.path("damaged", &object)) {
            Ok(()) => exchange(device.id, &plain).expect("back again"),
            Err(error) => {
                let line = error.to_string();
                assert!(line.len() > 20 && !line.contains(char::is_control), "{number}: {line}");
                refused += 1;
            }
        }
        assert!(read_at(&disk, MIB, 4096).expect("read") == [6; 4096], "{number}");
    }
    assert!(refused > mutants / 2, "{refused} of {mutants} were refused");
    drop(disk);
    device.end();
}

#[test]
fn the_next_server_has_the_policy_that_was_last() {
    driver_or_skip!();
    let policies = Policies::new();
    let plain = policies.path("plain", object!("plain"));
    let chosen = policies.path("chosen", object!("chosen"));
    let (mut server, id) = fixture::server(&policies.spec(plain));
    exchange(id, &chosen).expect("exchanged");
    policy::set(id, "choice", &[("0".to_owned(), "1".to_owned())]).expect("set");
    // Its source file is gone.
    fs::remove_file(chosen).expect("removed");
    server.kill().and_then(|()| server.wait()).expect("killed");
    let record = Directory::of(id).read().expect("a record");
    let device = Device::recovered(&record.spec, id);
    write_at(&device.open(), MIB, &[5; 4096]).expect("written");
    device.end();
    assert_eq!(policies.files.read(1)[MIB as usize..][..4096], [5; 4096]);
}

#[test]
fn a_server_that_was_prepared_before_has_the_policy_that_was_last() {
    driver_or_skip!();
    let policies = Policies::new();
    let plain = policies.path("plain", object!("plain"));
    let chosen = policies.path("chosen", object!("chosen"));
    let (mut server, id) = fixture::server(&policies.spec(plain));
    let record = Directory::of(id).read().expect("a record");
    let prepared = Prepared::new(&record.spec, Start::Recover(id)).expect("prepared");
    let watch = policy::Watch::of(id).expect("watched");
    assert_eq!(watch.change(), None);
    exchange(id, &chosen).expect("exchanged");
    assert_eq!(watch.change(), Some(policy::Change::Policy));
    assert_eq!(watch.change(), None, "it is told, and then forgotten");
    policy::set(id, "choice", &[("0".to_owned(), "1".to_owned())]).expect("set");
    server.kill().and_then(|()| server.wait()).expect("killed");
    let follower = prepared.follow(record.made, &AtomicBool::new(false)).expect("follows");
    let device = Device::by(follower);
    let record = Directory::of(id).read().expect("a record");
    assert_eq!(record.spec.policy.as_ref(), Some(&chosen));
    write_at(&device.open(), MIB, &[5; 4096]).expect("written");
    device.end();
    assert_eq!(policies.files.read(1)[MIB as usize..][..4096], [5; 4096]);
}
