//! Random requests, compared with a model of the device, and with its files by a second mapping.

use std::os::unix::fs::FileExt as _;

use handoff_block::{Engine, Kind, Spec};

use super::device::{Aligned, Device, Files, MIB, Random, driver_or_skip, read_at, spec, write_at};

/// The place of byte `position` of a device, computed independently.
fn place(target: Kind, chunk: u64, sizes: &[u64], position: u64) -> Vec<(usize, u64)> {
    match target {
        Kind::Linear | Kind::Loop => {
            let mut rest = position;
            for (file, size) in sizes.iter().enumerate() {
                if rest < *size {
                    return vec![(file, rest)];
                }
                rest -= size;
            }
            panic!("beyond the device")
        }
        Kind::Stripe => {
            let (number, within) = (position / chunk, position % chunk);
            let files = sizes.len() as u64;
            vec![((number % files) as usize, number / files * chunk + within)]
        }
        Kind::Mirror => (0..sizes.len()).map(|file| (file, position)).collect(),
        Kind::Null | Kind::Policy => Vec::new(),
    }
}

fn exercise(target: Kind, sizes: &[u64], change: impl FnOnce(&mut Spec), engine: Engine) {
    let files = Files::new(sizes);
    let mut spec = spec(target, &files, engine);
    spec.depth = 8;
    change(&mut spec);
    let (chunk, block) = (spec.chunk, u64::from(spec.block_size));
    let device = Device::of(&spec);
    assert_eq!(device.engine, engine);
    let whole_blocks = |size: &u64| size - size % block;
    let size = match target {
        Kind::Loop | Kind::Linear => sizes.iter().map(whole_blocks).sum(),
        Kind::Stripe => sizes.iter().min().unwrap() / chunk * chunk * sizes.len() as u64,
        _ => *sizes.iter().min().unwrap(),
    };
    let file = device.open();
    let mut model = vec![0u8; size as usize];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let requests = if std::env::var_os("HANDOFF_SOAK").is_some() { 120 } else { 40 };
    for _ in 0..requests {
        let len = (1 + random.below(700 * 1024 / block)) * block;
        let offset = random.below((size - len) / block + 1) * block;
        let range = offset as usize..(offset + len) as usize;
        if random.below(3) == 0 {
            let read = read_at(&file, offset, len as usize).expect("read");
            assert!(read == model[range], "{target:?} by {engine}: {len} bytes at {offset}");
        } else {
            let bytes = random.bytes(len as usize);
            write_at(&file, offset, &bytes).expect("written");
            model[range].copy_from_slice(&bytes);
        }
    }
    let whole = read_at(&file, 0, size as usize).expect("read");
    assert!(whole == model, "{target:?} by {engine}: the whole");
    file.sync_all().expect("flushed");
    drop(file);
    device.end();
    let contents: Vec<_> = (0..sizes.len()).map(|index| files.read(index)).collect();
    for position in (0..size).step_by(512) {
        for (file, offset) in place(target, chunk, sizes, position) {
            let expected = &model[position as usize..][..512];
            let found = &contents[file][offset as usize..][..512];
            assert!(
                found == expected,
                "{target:?} by {engine}: byte {position} is not at {offset} of file {file}"
            );
        }
    }
}

/// Each target by one engine; everything else varies too.
fn all_targets(engine: Engine) {
    let wide = |spec: &mut Spec| spec.block_size = 4096;
    let direct = |spec: &mut Spec| spec.direct = true;
    exercise(Kind::Loop, &[8 * MIB], |_| {}, engine);
    exercise(Kind::Loop, &[8 * MIB], wide, engine);
    exercise(Kind::Linear, &[3 * MIB + 512, 5 * MIB - 4096], |_| {}, engine);
    let wide_and_direct = |spec: &mut Spec| (spec.block_size, spec.direct) = (4096, true);
    exercise(Kind::Linear, &[4 * MIB, MIB, 4 * MIB], wide_and_direct, engine);
    exercise(Kind::Stripe, &[3 * MIB, 4 * MIB, 3 * MIB], direct, engine);
    exercise(Kind::Stripe, &[4 * MIB; 2], |spec| spec.chunk = 4096, engine);
    exercise(Kind::Mirror, &[6 * MIB, 7 * MIB], |spec| spec.queues = 2, engine);
    let large = |spec: &mut Spec| (spec.max_request, spec.direct) = (1 << 20, true);
    exercise(Kind::Mirror, &[6 * MIB; 5], large, engine);
}

#[test]
fn what_is_written_is_where_it_belongs_by_copying() {
    driver_or_skip!();
    all_targets(Engine::UserCopy);
}

#[test]
fn what_is_written_is_where_it_belongs_by_the_user_loop() {
    driver_or_skip!();
    all_targets(Engine::UserAuto);
}

#[test]
fn what_is_written_is_where_it_belongs_by_batches() {
    driver_or_skip!();
    all_targets(Engine::BatchAuto);
}

#[test]
fn what_is_written_is_where_it_belongs_by_the_loop_in_the_kernel() {
    driver_or_skip!();
    all_targets(Engine::Bpf);
}

/// Legs whose bytes tell them apart.
#[test]
fn each_byte_of_a_mirror_is_read_from_one_leg_whatever_the_request() {
    driver_or_skip!();
    for engine in Engine::ALL {
        let files = Files::new(&[2 * MIB; 3]);
        for (leg, path) in (1..).zip(&files.paths) {
            std::fs::write(path, vec![leg; 2 * MIB as usize]).expect("written");
        }
        let device = Device::of(&spec(Kind::Mirror, &files, engine));
        let disk = device.open();
        let chunk = spec(Kind::Mirror, &files, engine).chunk as usize;
        for step in [4096, 64 << 10, 100 << 10, 512 << 10, 2 * MIB as usize] {
            for start in (0..2 * MIB as usize).step_by(step) {
                let len = step.min(2 * MIB as usize - start);
                let read = read_at(&disk, start as u64, len).expect("read");
                let leg = |(at, byte): (usize, &u8)| *byte == ((start + at) / chunk % 3) as u8 + 1;
                assert!(read.iter().enumerate().all(leg), "{len} bytes at {start} by {engine}");
            }
        }
        drop(disk);
        device.end();
    }
}

/// Of a reader's memory, or of the server's, nothing comes back.
#[test]
fn a_null_device_reads_as_zeroes() {
    driver_or_skip!();
    for engine in Engine::ALL {
        let device = Device::of(&Spec {
            engine: Some(engine),
            size: Some(MIB),
            depth: 2,
            ..Spec::default()
        });
        let disk = device.open();
        for len in [512, 4096, 512 << 10, MIB as usize] {
            write_at(&disk, 0, &vec![0x55; len]).expect("written");
            let mut memory = Aligned::of(&vec![0xaa; len]);
            disk.read_exact_at(memory.bytes(), MIB - len as u64).expect("read");
            assert!(memory.bytes().iter().all(|byte| *byte == 0), "{len} bytes by {engine}");
        }
        disk.sync_all().expect("flushed");
        drop(disk);
        device.end();
    }
}
