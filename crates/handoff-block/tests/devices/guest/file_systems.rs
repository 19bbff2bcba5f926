//! ext4 and xfs: made, filled, checked, remounted and compared, over targets, engines and block
//! sizes in pairs.
//!
//! Each target and each engine is in two rows; the others are of the long form.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use handoff_block::state::Directory;
use handoff_block::{Engine, Kind, Spec};

use super::device::{Device, Files, MIB, Random, driver_or_skip, run, spec};

struct Mounted(PathBuf);

impl Mounted {
    fn at(directory: &Path, device: &Path) -> Self {
        let point = directory.join("mounted");
        fs::create_dir_all(&point).expect("a directory");
        run("mount", &[device.to_str().unwrap(), point.to_str().unwrap()]);
        Self(point)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
    }
}

/// Everything below a directory: the content of each file, and for each directory its existence.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("lost+found") {
            continue;
        }
        let content = if path.is_dir() {
            all.append(&mut contents(&path));
            None
        } else {
            Some(fs::read(&path).unwrap())
        };
        all.insert(path, content);
    }
    all
}

fn fill(directory: &Path) {
    let mut random = Random(88_172_645_463_325_252);
    for number in 0..60 {
        let below = directory.join(format!("d{}", number % 7));
        fs::create_dir_all(&below).expect("a directory");
        let len = 1 + random.below(if number % 5 == 0 { 2 * MIB } else { 40_000 }) as usize;
        fs::write(below.join(format!("f{number}")), random.bytes(len)).expect("a file");
    }
    fs::remove_dir_all(directory.join("d3")).expect("removed");
}

fn file_system(kind: &str, target: Kind, engine: Engine, block_size: u32, direct: bool) {
    // The smallest xfs has 300 MB.
    let sizes = match target {
        Kind::Loop => vec![320 * MIB],
        Kind::Mirror => vec![320 * MIB; 2],
        _ => vec![160 * MIB; 2],
    };
    let files = Files::new(&sizes);
    let mut spec = spec(target, &files, engine);
    (spec.block_size, spec.direct) = (block_size, direct);
    let device = Device::of(&spec);
    let path = device.path();
    let node = path.to_str().unwrap();
    match kind {
        "ext4" => run("mkfs.ext4", &["-q", node]),
        _ => run("mkfs.xfs", &["-q", node]),
    };
    let filled = {
        let mounted = Mounted::at(files.directory.path(), &path);
        fill(&mounted.0);
        run("fstrim", &[mounted.0.to_str().unwrap()]);
        contents(&mounted.0)
    };
    let check = || match kind {
        "ext4" => run("fsck.ext4", &["-f", "-n", node]),
        _ => run("xfs_repair", &["-n", node]),
    };
    check();
    let again = Mounted::at(files.directory.path(), &path);
    assert!(contents(&again.0) == filled, "{kind} on {target:?} by {engine}");
    drop(again);
    check();
    device.end();
}

/// fio's jobs for a file system under stress: buffered, direct, mapped and vectored I/O on many files at
/// once, with memory at odd places, and every byte verified.
const STRESS: &str = "\
[global]
directory=.
fallocate=none
verify=crc32c
verify_fatal=1
do_verify=1
time_based=0
nrfiles=3
overwrite=1
[direct]
ioengine=libaio
direct=1
rw=randwrite
bsrange=512-96k
iomem_align=512
iodepth=8
size=3m
[vectors]
ioengine=pvsync
direct=1
rw=randwrite
bs=4k
size=1m
[odd]
ioengine=psync
rw=randwrite
bsrange=512-20k
size=2m
fsync=16
[mapped]
ioengine=mmap
rw=randwrite
bs=4k
size=2m
[appended]
ioengine=psync
rw=write
bsrange=512-9k
file_append=1
size=1m
end_fsync=1
";

/// Runs fio's jobs on a file system on a device, in the long form again and again, and checks the file
/// system.
fn stress(kind: &str, target: Kind, engine: Engine) {
    let sizes = match target {
        Kind::Mirror => vec![320 * MIB; 2],
        _ => vec![160 * MIB; 2],
    };
    let files = Files::new(&sizes);
    let spec = Spec { direct: true, queues: 2, ..spec(target, &files, engine) };
    let device = Device::of(&spec);
    let path = device.path();
    let node = path.to_str().unwrap();
    run(&format!("mkfs.{kind}"), &["-q", node]);
    let jobs = files.directory.path().join("stress.fio");
    let rounds = if std::env::var_os("HANDOFF_SOAK").is_some() { 50 } else { 1 };
    for _ in 0..rounds {
        let mounted = Mounted::at(files.directory.path(), &path);
        fs::write(
            &jobs,
            STRESS.replace("directory=.", &format!("directory={}", mounted.0.display())),
        )
        .expect("a file");
        run("fio", &[jobs.to_str().unwrap()]);
        run("fstrim", &[mounted.0.to_str().unwrap()]);
    }
    match kind {
        "ext4" => run("fsck.ext4", &["-f", "-n", node]),
        _ => run("xfs_repair", &["-n", node]),
    };
    let counters = Directory::of(device.id).counters(2, spec.depth).expect("counters");
    let errors: u64 = counters.queues.iter().map(|queue| queue.errors).sum();
    assert_eq!((errors, counters.failed_legs.len()), (0, 0), "{kind} on {target:?} by {engine}");
    device.end();
}

#[test]
fn file_systems_under_stress() {
    driver_or_skip!();
    stress("xfs", Kind::Mirror, Engine::Bpf);
    stress("ext4", Kind::Linear, Engine::UserAuto);
}

#[test]
fn file_systems_under_stress_by_batches_and_copying() {
    driver_or_skip!();
    stress("xfs", Kind::Stripe, Engine::BatchAuto);
    stress("ext4", Kind::Mirror, Engine::UserCopy);
    if std::env::var_os("HANDOFF_SOAK").is_some() {
        stress("ext4", Kind::Linear, Engine::BatchAuto);
        stress("xfs", Kind::Stripe, Engine::UserCopy);
    }
}

/// Kind, target, block size, and whether past the page cache.
type Row = (&'static str, Kind, u32, bool);

fn file_systems(engine: Engine, rows: [Row; 4]) {
    let soak = std::env::var_os("HANDOFF_SOAK").is_some();
    for (kind, target, block_size, direct) in rows.into_iter().take(if soak { 4 } else { 2 }) {
        file_system(kind, target, engine, block_size, direct);
    }
}

#[test]
fn file_systems_on_the_loop_in_the_kernel() {
    driver_or_skip!();
    let rows = [
        ("ext4", Kind::Linear, 512, true),
        ("xfs", Kind::Stripe, 4096, true),
        ("xfs", Kind::Mirror, 512, false),
        ("ext4", Kind::Loop, 4096, false),
    ];
    file_systems(Engine::Bpf, rows);
}

#[test]
fn file_systems_on_the_user_loop() {
    driver_or_skip!();
    let rows = [
        ("ext4", Kind::Mirror, 4096, true),
        ("xfs", Kind::Loop, 512, true),
        ("xfs", Kind::Linear, 4096, false),
        ("ext4", Kind::Stripe, 512, true),
    ];
    file_systems(Engine::UserAuto, rows);
}

#[test]
fn file_systems_by_batches() {
    driver_or_skip!();
    let rows = [
        ("ext4", Kind::Stripe, 4096, false),
        ("xfs", Kind::Mirror, 512, true),
        ("ext4", Kind::Linear, 512, false),
        ("xfs", Kind::Loop, 4096, true),
    ];
    file_systems(Engine::BatchAuto, rows);
}

#[test]
fn file_systems_by_copying() {
    driver_or_skip!();
    let rows = [
        ("ext4", Kind::Linear, 4096, true),
        ("xfs", Kind::Loop, 4096, true),
        ("xfs", Kind::Stripe, 512, false),
        ("ext4", Kind::Mirror, 512, false),
    ];
    file_systems(Engine::UserCopy, rows);
}
