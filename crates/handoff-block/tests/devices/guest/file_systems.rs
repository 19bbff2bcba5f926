//! ext4 and xfs: made, filled, checked, remounted and compared, over targets, engines and block
//! sizes in pairs.

use std::fs;
use std::path::{Path, PathBuf};

use handoff_block::state::Directory;
use handoff_block::{Engine, Kind, Spec};
use sha2::{Digest as _, Sha256};

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

/// The sum of the names and contents below a directory, in order.
fn sum(directory: &Path) -> String {
    fn walk(directory: &Path, root: &Path, sum: &mut Sha256) {
        let mut entries: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries.iter().filter(|path| !path.ends_with("lost+found")) {
            sum.update(path.strip_prefix(root).unwrap().to_str().unwrap());
            if path.is_dir() {
                walk(path, root, sum);
            } else {
                sum.update(fs::read(path).unwrap());
            }
        }
    }
    let mut all = Sha256::new();
    walk(directory, directory, &mut all);
    format!("{:x}", all.finalize())
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
        sum(&mounted.0)
    };
    let check = || match kind {
        "ext4" => run("fsck.ext4", &["-f", "-n", node]),
        _ => run("xfs_repair", &["-n", node]),
    };
    check();
    let again = Mounted::at(files.directory.path(), &path);
    assert_eq!(sum(&again.0), filled, "{kind} on {target:?} by {engine}");
    drop(again);
    check();
    device.end();
}

/// fio's jobs of a file system under stress: buffered, direct, mapped and vectored I/O of many files at
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

/// Has fio's jobs done on a file system on a device, again and again in the long form, and the file system
/// checked.
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
    stress("xfs", Kind::Stripe, Engine::BatchAuto);
    stress("ext4", Kind::Mirror, Engine::UserCopy);
}

#[test]
fn file_systems_on_the_loop_in_the_kernel() {
    driver_or_skip!();
    file_system("ext4", Kind::Linear, Engine::Bpf, 512, true);
    file_system("xfs", Kind::Stripe, Engine::Bpf, 4096, true);
    file_system("xfs", Kind::Mirror, Engine::Bpf, 512, false);
    file_system("ext4", Kind::Loop, Engine::Bpf, 4096, false);
}

#[test]
fn file_systems_on_the_user_loop() {
    driver_or_skip!();
    file_system("xfs", Kind::Linear, Engine::UserAuto, 4096, false);
    file_system("ext4", Kind::Stripe, Engine::UserAuto, 512, true);
    file_system("ext4", Kind::Mirror, Engine::UserAuto, 4096, true);
    file_system("xfs", Kind::Loop, Engine::UserAuto, 512, true);
}

#[test]
fn file_systems_by_batches() {
    driver_or_skip!();
    file_system("ext4", Kind::Linear, Engine::BatchAuto, 512, false);
    file_system("ext4", Kind::Stripe, Engine::BatchAuto, 4096, false);
    file_system("xfs", Kind::Mirror, Engine::BatchAuto, 512, true);
    file_system("xfs", Kind::Loop, Engine::BatchAuto, 4096, true);
}

#[test]
fn file_systems_by_copying() {
    driver_or_skip!();
    file_system("ext4", Kind::Linear, Engine::UserCopy, 4096, true);
    file_system("xfs", Kind::Stripe, Engine::UserCopy, 512, false);
    file_system("ext4", Kind::Mirror, Engine::UserCopy, 512, false);
    file_system("xfs", Kind::Loop, Engine::UserCopy, 4096, true);
}
