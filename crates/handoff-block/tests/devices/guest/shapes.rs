//! Direct reads and writes of memory in every shape that the device accepts, and in some that it does not,
//! compared with a model.
//!
//! The files lie on the guest's disk, which wants memory aligned to 512 bytes. Lent memory must be aligned
//! so, and the block layer sees to that if the device announces it.

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use handoff_block::state::Directory;
use handoff_block::{Engine, Kind, Spec};
use handoff_testbed::{Disk as _, Flaky, NullDisk, Schedule};
use rustix::io::{Errno, preadv, pwritev};
use serde_json::Value;

use super::device::{
    Aligned, Device, Files, MIB, Random, driver_or_skip, read_at, run, spec, write_at,
};
use super::fixture;
use super::policies::object;

const PAGE: u64 = 4096;
/// Bytes of the largest request, and of the memory that it is cut from.
const MOST: u64 = 192 << 10;
const ARENA: usize = 1 << 20;

/// How many requests of each device are tried.
fn rounds() -> usize {
    if std::env::var_os("HANDOFF_SOAK").is_some() { 20_000 } else { 150 }
}

/// Where a disk announces something.
fn queue_file(disk: &Path, name: &str) -> PathBuf {
    let node = fs::canonicalize(disk).expect("a disk");
    let kernel_name = node.file_name().expect("a name");
    Path::new("/sys/class/block").join(kernel_name).join("queue").join(name)
}

/// What a disk announces.
fn limit(disk: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(queue_file(disk, name));
    text.expect("a limit").trim().parse().expect("a number")
}

/// What a device announces for its requests.
struct Limits {
    block: u64,
    memory: u64,
    boundary: u64,
}

impl Limits {
    fn of(device: &Path) -> Self {
        Self {
            block: limit(device, "logical_block_size"),
            memory: limit(device, "dma_alignment") + 1,
            boundary: limit(device, "virt_boundary_mask"),
        }
    }

    /// Whether the block layer must accept such a request. It cuts where pieces do not meet at the
    /// boundary, and can cut only between blocks.
    fn take(&self, offset: u64, shape: &[(usize, usize)]) -> bool {
        let len: usize = shape.iter().map(|(_, len)| len).sum();
        let mut position = 0;
        for pair in shape.windows(2) {
            let ((start, len), (next, _)) = (pair[0], pair[1]);
            position += len as u64;
            let gap = ((start + len) | next) as u64 & self.boundary != 0;
            if gap && !position.is_multiple_of(self.block) {
                return false;
            }
        }
        let places = shape.iter().all(|(start, len)| {
            (*start as u64).is_multiple_of(self.memory) && (*len as u64).is_multiple_of(self.memory)
        });
        places && offset.is_multiple_of(self.block) && (len as u64).is_multiple_of(self.block)
    }
}

/// A multiple of a power of two, small ones as often as large ones.
fn step(random: &mut Random) -> u64 {
    1 << random.below(13)
}

/// Pieces of the arena, one behind the other with gaps, `len` bytes together; places and lengths are
/// multiples of `unit`.
fn shape(random: &mut Random, len: u64, unit: u64) -> Vec<(usize, usize)> {
    let most = 1 + random.below(24);
    let (mut shape, mut at, mut left) = (Vec::new(), 0, len);
    while left > 0 {
        at += random.below(3 * PAGE / unit) * unit;
        let last = shape.len() as u64 + 1 >= most;
        let size = if last { left } else { ((1 + random.below(left / unit + 1)) * unit).min(left) };
        shape.push((at as usize, size as usize));
        at += size;
        left -= size;
    }
    shape
}

/// The pieces of the arena in a shape.
fn cut<'a>(mut arena: &'a mut [u8], shape: &[(usize, usize)]) -> Vec<&'a mut [u8]> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    for (start, len) in shape {
        let (_, rest) = arena.split_at_mut(start - at);
        let (piece, rest) = rest.split_at_mut(*len);
        pieces.push(piece);
        (arena, at) = (rest, start + len);
    }
    pieces
}

/// One request of this shape. Where the model covers it, a read is compared with the model, and a write
/// updates the model.
fn request(
    disk: &File,
    write: bool,
    offset: u64,
    shape: &[(usize, usize)],
    (arena, random, model): (&mut Aligned, &mut Random, &mut [u8]),
) -> Result<(), Errno> {
    let mut pieces = cut(arena.bytes(), shape);
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    let [start, end] = [offset as usize, offset as usize + len].map(|at| at.min(model.len()));
    let known = &mut model[start..end];
    let moved = if write {
        pieces.iter_mut().for_each(|piece| piece.copy_from_slice(&random.bytes(piece.len())));
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        pwritev(disk, &slices, offset)?
    } else {
        let mut slices: Vec<_> = pieces.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
        preadv(disk, &mut slices, offset)?
    };
    assert_eq!(moved, len, "a short request");
    let bytes = pieces.concat();
    if write {
        known.copy_from_slice(&bytes[..known.len()]);
    } else {
        assert!(bytes.starts_with(known), "{len} bytes read at {offset} as {shape:?}");
    }
    Ok(())
}

fn exercise(target: Kind, sizes: &[u64], change: impl FnOnce(&mut Spec), engine: Engine) {
    exercise_of(target, &Files::new(sizes), change, engine);
}

/// Random requests of a device of these files.
fn exercise_of(target: Kind, files: &Files, change: impl FnOnce(&mut Spec), engine: Engine) {
    exercise_kept(target, files, change, engine, u64::MAX);
}

/// Random requests of a device that keeps this many bytes from its start on.
fn exercise_kept(
    target: Kind,
    files: &Files,
    change: impl FnOnce(&mut Spec),
    engine: Engine,
    kept: u64,
) {
    let mut spec = Spec { direct: true, depth: 8, ..spec(target, files, engine) };
    change(&mut spec);
    let device = Device::of(&spec);
    let record = Directory::of(device.id).read().expect("a record");
    let limits = Limits::of(&device.path());
    let disk = device.open();
    let said = format!("{target:?} by {engine}, direct: {}", spec.direct);
    println!("{said}: blocks of {}, memory at {}", limits.block, limits.memory);
    let kept = kept.min(record.size) as usize;
    let mut model = read_at(&disk, 0, kept).expect("read");
    let (mut arena, mut random) = (Aligned::new(ARENA), Random(0x9e37_79b9_7f4a_7c15));
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..rounds() {
        let fits = random.below(4) > 0;
        let (mut unit, mut block) = (step(&mut random), step(&mut random));
        if fits {
            (unit, block) = (unit.max(limits.memory), block.max(limits.block));
            if limits.boundary != 0 && random.below(2) == 0 {
                unit = limits.boundary + 1;
            }
        }
        let len = (1 + random.below(MOST / block.max(unit))) * block.max(unit);
        let offset = random.below((record.size - len) / block + 1) * block;
        let shape = shape(&mut random, len, unit);
        let write = random.below(3) > 0;
        let state = (&mut arena, &mut random, &mut *model);
        let result = request(&disk, write, offset, &shape, state);
        let expected = limits.take(offset, &shape);
        match result {
            Ok(()) => taken += 1,
            // A refused request may be there in part.
            Err(Errno::INVAL) if !expected => {
                refused += 1;
                let begun = write && limits.boundary != 0 && offset.is_multiple_of(limits.block);
                let end = (offset + len).next_multiple_of(limits.block) as usize;
                let before = model.get(offset as usize..end.min(kept)).unwrap_or_default();
                if begun && !before.is_empty() {
                    write_at(&disk, offset, before).expect("written anew");
                }
            }
            Err(error) => panic!("{said}: {error}: {len} bytes at {offset}, memory at {shape:?}"),
        }
    }
    assert_eq!(limits.memory, u64::from(record.limits.memory_alignment), "{said}");
    assert!(taken > rounds() / 3 && refused > 0, "{said}: {taken} taken, {refused} refused");
    let read = read_at(&disk, 0, kept).expect("read");
    assert!(read == model, "{said}: the whole");
    drop(disk);
    let counters = Directory::of(device.id).counters(spec.queues, spec.depth).expect("counters");
    assert_eq!(counters.queues.iter().map(|queue| queue.errors).sum::<u64>(), 0, "{said}");
    assert!(counters.failed_legs.is_empty(), "{said}: {:?} are out", counters.failed_legs);
    device.end();
}

fn all_targets(engine: Engine) {
    exercise(Kind::Loop, &[8 * MIB], |_| {}, engine);
    exercise(Kind::Loop, &[4 * MIB], |spec| spec.direct = false, engine);
    exercise(Kind::Linear, &[MIB + 512, 2 * MIB - 512, MIB], |_| {}, engine);
    exercise(Kind::Stripe, &[2 * MIB; 3], |spec| spec.chunk = 4096, engine);
    exercise(Kind::Mirror, &[4 * MIB; 2], |spec| spec.queues = 2, engine);
    exercise(Kind::Mirror, &[4 * MIB; 3], |spec| spec.block_size = 4096, engine);
}

#[test]
fn memory_of_any_shape_by_the_loop_in_the_kernel() {
    driver_or_skip!();
    all_targets(Engine::Bpf);
    let files = Files::new(&[4 * MIB]);
    let policy = files.directory.path().join("chopped.bpf.o");
    fs::write(&policy, object!("chopped")).expect("a file");
    exercise_of(Kind::Policy, &files, |spec| spec.policy = Some(policy), Engine::Bpf);
}

#[test]
fn memory_of_any_shape_by_the_user_loop() {
    driver_or_skip!();
    all_targets(Engine::UserAuto);
}

#[test]
fn memory_of_any_shape_by_batches() {
    driver_or_skip!();
    all_targets(Engine::BatchAuto);
}

#[test]
fn memory_of_any_shape_by_copying() {
    driver_or_skip!();
    all_targets(Engine::UserCopy);
}

#[test]
fn the_strictest_of_files_and_disks_is_announced() {
    driver_or_skip!();
    // A disk that accepts nearly any memory: nothing is lent to it.
    let buffered = Files::new(&[4 * MIB]);
    let lower = Device::of(&spec(Kind::Loop, &buffered, Engine::UserAuto));
    let mut files = Files::new(&[4 * MIB]);
    files.paths.insert(0, lower.path());
    for engine in [Engine::Bpf, Engine::UserAuto, Engine::BatchAuto] {
        let announced = |target, paths: &[PathBuf]| {
            let of = Files { directory: tempfile::tempdir().expect("one"), paths: paths.to_vec() };
            if target == Kind::Linear {
                exercise_of(target, &of, |_| {}, engine);
            }
            let device = Device::of(&Spec { direct: true, ..spec(target, &of, engine) });
            let memory = Limits::of(&device.path()).memory;
            device.end();
            memory
        };
        assert_eq!(announced(Kind::Linear, &files.paths[..1]), 4, "{engine}: a disk");
        assert_eq!(announced(Kind::Loop, &files.paths[1..]), 512, "{engine}: a file");
        assert_eq!(announced(Kind::Mirror, &files.paths), 512, "{engine}: both");
        assert_eq!(announced(Kind::Linear, &files.paths), 512, "{engine}: both");
    }
    lower.end();
}

/// Disks that want pieces of memory to meet at pages, few pieces, and few bytes at a time: one alone, one
/// below a disk of the device mapper, and both beside a file.
#[test]
fn what_a_backing_refuses_is_refused_before_it_comes_to_the_server() {
    driver_or_skip!();
    let strict = || NullDisk::strict(4, 4096, 64 << 10).expect("a disk");
    let one = strict();
    let mapped = Flaky::over(strict(), Schedule::WORKS).expect("a disk of the device mapper");
    let mut files = Files::new(&[4 * MIB]);
    files.paths.extend([one.path().to_owned(), mapped.path().to_owned()]);
    for engine in [Engine::Bpf, Engine::UserAuto, Engine::BatchAuto] {
        // The disks have no memory.
        for (target, paths, kept) in [
            (Kind::Loop, &files.paths[1..2], 0),
            (Kind::Loop, &files.paths[2..], 0),
            (Kind::Linear, &files.paths[..], 4 * MIB),
            (Kind::Stripe, &files.paths[..], 0),
            (Kind::Mirror, &files.paths[..], 0),
        ] {
            // What is announced does not depend on the engine.
            let once = matches!(target, Kind::Linear | Kind::Stripe) && engine != Engine::Bpf;
            if once && std::env::var_os("HANDOFF_SOAK").is_none() {
                continue;
            }
            let of = Files { directory: tempfile::tempdir().expect("one"), paths: paths.to_vec() };
            let wide = |spec: &mut Spec| (spec.block_size, spec.chunk) = (4096, 4096);
            exercise_kept(target, &of, wide, engine, kept);
            let mut spec = Spec { direct: true, ..spec(target, &of, engine) };
            wide(&mut spec);
            let device = Device::of(&spec);
            let announced = |name| limit(&device.path(), name);
            assert_eq!(announced("virt_boundary_mask"), PAGE - 1, "{target:?} by {engine}");
            // Requests longer than the disks take are cut below the server, as those above were.
            assert_eq!(announced("max_hw_sectors_kb"), 512, "{target:?} by {engine}");
            let disks = [one.path(), mapped.path()].map(|disk| limit(disk, "max_segments"));
            assert!(announced("max_segments") <= disks[0].min(disks[1]), "{target:?} by {engine}");
            device.end();
        }
    }
}

/// Where the disk below a file cannot be told, it may be one that wants pieces to meet at pages.
#[test]
fn a_file_of_a_file_system_on_others_is_taken_for_strict() {
    driver_or_skip!();
    let disk = NullDisk::with_memory(64, 512).expect("a disk");
    let points = tempfile::tempdir().expect("a directory");
    let at = |name: &str| points.path().join(name).to_str().expect("UTF-8").to_owned();
    let (lower, merged) = (at("lower"), at("merged"));
    let make = |directory: &String| fs::create_dir(directory).expect("a directory");
    [&lower, &merged].into_iter().for_each(make);
    let node = disk.path().to_str().expect("UTF-8");
    run("mkfs.ext4", &["-q", node]);
    run("mount", &[node, &lower]);
    [format!("{lower}/low"), format!("{lower}/up"), format!("{lower}/work")].iter().for_each(make);
    let layers = format!("lowerdir={lower}/low,upperdir={lower}/up,workdir={lower}/work");
    run("mount", &["-t", "overlay", "-o", &layers, "none", &merged]);
    for engine in [Engine::Bpf, Engine::UserAuto, Engine::BatchAuto] {
        let path = PathBuf::from(format!("{merged}/{engine}"));
        File::create(&path).and_then(|file| file.set_len(4 * MIB)).expect("a file");
        let files = Files { directory: tempfile::tempdir().expect("one"), paths: vec![path] };
        exercise_of(Kind::Loop, &files, |_| {}, engine);
        let device = Device::of(&Spec { direct: true, ..spec(Kind::Loop, &files, engine) });
        assert_eq!(limit(&device.path(), "virt_boundary_mask"), PAGE - 1, "{engine}");
        device.end();
    }
    run("umount", &[&merged]);
    run("umount", &[&lower]);
}

#[test]
fn a_device_over_a_disk_that_rotates_says_so() {
    driver_or_skip!();
    let disks = [(); 2].map(|()| NullDisk::new(4, 512, 1).expect("a disk"));
    for (disk, rotates) in disks.iter().zip(["0", "1"]) {
        fs::write(queue_file(disk.path(), "rotational"), rotates).expect("told");
    }
    let [still, rotating] = disks.each_ref().map(|disk| disk.path().to_owned());
    let says = |target, engine, paths: &[&PathBuf]| {
        let paths = paths.iter().map(|&path| path.clone()).collect();
        let of = Files { directory: tempfile::tempdir().expect("one"), paths };
        let device = Device::of(&spec(target, &of, engine));
        let says = limit(&device.path(), "rotational");
        device.end();
        says
    };
    for engine in [Engine::Bpf, Engine::UserAuto, Engine::UserCopy] {
        assert_eq!(says(Kind::Loop, engine, &[&still]), 0, "{engine}");
        assert_eq!(says(Kind::Loop, engine, &[&rotating]), 1, "{engine}");
        assert_eq!(says(Kind::Mirror, engine, &[&still, &rotating]), 1, "{engine}");
    }
    // A file says what the disk below it says.
    let files = Files::new(&[4 * MIB]);
    let file = &files.paths[0];
    let device = fs::metadata(file).expect("a file").dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let below = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/queue/rotational"));
    let below: u64 = below.expect("a disk").trim().parse().expect("a number");
    assert_eq!(says(Kind::Loop, Engine::UserAuto, &[file]), below);
}

#[test]
fn a_server_that_follows_judges_no_file_again() {
    driver_or_skip!();
    let files = Files::new(&[MIB]);
    let spec = Spec { direct: true, ..spec(Kind::Loop, &files, Engine::UserAuto) };
    let (mut server, id) = fixture::server(&spec);
    server.kill().and_then(|()| server.wait()).expect("killed");
    // As if the file were stricter by now, as one is whose blocks are shared.
    let path = format!("/run/handoff/blk/{id}/spec.json");
    let record = fs::read_to_string(&path).expect("a record");
    let mut record: Value = serde_json::from_str(&record).expect("JSON");
    assert_eq!(record["limits"]["memory_alignment"], 512, "the guest's disk wants it so");
    record["limits"]["memory_alignment"] = 4.into();
    fs::write(&path, record.to_string()).expect("written");
    let device = Device::recovered(&spec, id);
    write_at(&device.open(), 0, &[4; 4096]).expect("written");
    device.end();
    assert_eq!(files.read(0)[..4096], [4; 4096]);
}
