use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

use crate::device::{
    Device, Lending, NULL, REPLACE, SOURCE, TARGET, bytes_at, connection, eventually, further,
    in_memory, on_disk, write,
};

const FILE: usize = 1 << 20;

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // Knuth's generator for 64 bits; the high bits are the good ones.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Lends, uses and gives back at random, in rings that go with lends out, until told to stop.
fn churn(seed: u64, file: &File, stop: &AtomicBool) -> u64 {
    let mut numbers = Numbers(seed);
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let ring = match rounds % 3 {
            0 => IoUring::new(128),
            1 => IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(128),
            _ => IoUring::builder().setup_sqpoll(10).build(128),
        };
        let ring = ring.expect("a ring");
        ring.submitter().register_buffers_sparse(16).expect("a table");
        let mut lending = Lending { ring, device: Device::open() };
        let source = lending.device.bind(file, SOURCE).expect("binds");
        let (out, mut far) = connection();
        let target = lending.device.bind(&out, TARGET).expect("binds");
        let (mut from, to) = connection();
        let stream = lending.device.bind(&to, SOURCE).expect("binds");
        let reader = thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()));
        let memory = in_memory();
        for _ in 0..100 {
            // Some in a worker.
            let flags = match numbers.below(4) {
                0 => squeue::Flags::ASYNC,
                _ => squeue::Flags::empty(),
            };
            let slot = numbers.below(8) as u16;
            let bytes = 1 + numbers.below(100_000) as u32;
            let replace = if numbers.below(2) == 0 { REPLACE } else { 0 };
            let how = replace | further(numbers.below(4) as u8);
            let result = match numbers.below(9) {
                0 => lending
                    .run(lending.get_with(slot, NULL, 0, bytes % 5_000 + 1, how).flags(flags)),
                1 | 2 => {
                    let offset = numbers.below(FILE as u64);
                    lending.run(lending.get_with(slot, source, offset, bytes, how).flags(flags))
                }
                3 => {
                    from.write_all(&bytes_at(0, 3_000)).expect("sends");
                    lending.run(lending.get_with(slot, stream, 0, bytes, replace).flags(flags))
                }
                4 => lending.run(lending.fresh(slot, slot + 8, bytes).flags(flags)),
                5 => lending.run(lending.send(slot, target, 0, bytes % 5_000, 0).flags(flags)),
                6 => lending.run(write(slot, &memory, 0, bytes % 5_000, 0).flags(flags)),
                7 => {
                    let _ = lending.run(lending.put(slot + 8));
                    lending.run(lending.put(slot).flags(flags))
                }
                _ => {
                    let fd = Fd(out.as_raw_fd());
                    let send = opcode::SendZc::new(fd, std::ptr::null(), bytes % 5_000);
                    lending.submit(&[send.buf_index(Some(slot)).build()]);
                    let done = &lending.wait(1)[0];
                    if io_uring::cqueue::more(done.flags()) {
                        lending.wait(1);
                    }
                    done.result()
                }
            };
            let foreseen = [-libc::EBUSY, -libc::EINVAL, -libc::EFAULT];
            assert!(result >= 0 || foreseen.contains(&result), "{result}");
        }
        // With what it has lent and not given back.
        drop(lending);
        out.shutdown(std::net::Shutdown::Both).expect("ends");
        reader.join().expect("ends").expect("receives");
        rounds += 1;
    }
    rounds
}

#[test]
fn two_rings_replace_lends_of_one_device() {
    let device = Device::open();
    thread::scope(|scope| {
        for seed in [1, 2] {
            let device = Device(device.0.try_clone().expect("duplicates"));
            scope.spawn(move || {
                let mut numbers = Numbers(seed);
                let mut lending = Lending::with(device);
                for _ in 0..500 {
                    let how = REPLACE | further(numbers.below(64) as u8);
                    let get = lending.get_with(numbers.below(64) as u16, NULL, 0, 64, how);
                    assert!(lending.run(get) > 0);
                }
            });
        }
    });
    let query = eventually("all lends are back", || {
        let query = device.query();
        (query.lends == 0).then_some(query)
    });
    assert!(query.lent > 10_000, "{query:?}");
    assert_eq!((query.returned, query.lent_bytes), (query.lent, 64 * query.lent), "{query:?}");
}

#[test]
fn two_threads_lend_while_the_file_changes() {
    let device = Device::open();
    let file = on_disk();
    file.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
    let stop = AtomicBool::new(false);
    let rounds: u64 = thread::scope(|scope| {
        let threads: Vec<_> = [1, 2]
            .map(|seed| {
                scope.spawn({
                    let (file, stop) = (&file, &stop);
                    move || churn(seed, file, stop)
                })
            })
            .into();
        let begin = Instant::now();
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        while begin.elapsed() < Duration::from_secs(2) {
            rustix::fs::fallocate(&file, hole, 100_000, 200_000).expect("punches");
            file.set_len(FILE as u64 / 2).expect("truncates");
            file.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicts");
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("ends")).sum()
    });
    assert!(rounds > 1, "{rounds}");
    eventually("all lends are back", || (device.query().module_lends == 0).then_some(()));
}

#[test]
fn any_bytes_of_a_command_are_survived() {
    const SEED: u64 = 20_230_430;
    let mut numbers = Numbers(SEED);
    let mut lending = Lending::new();
    let device = Device::open();
    let file = on_disk();
    file.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
    let (out, mut far) = connection();
    let (mut from, to) = connection();
    for (file, purpose) in
        [(file.as_raw_fd(), SOURCE), (out.as_raw_fd(), TARGET), (to.as_raw_fd(), SOURCE)]
    {
        lending.device.bind(&file, purpose).expect("binds");
    }
    let reader = thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while far.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    });
    let begin = Instant::now();
    let mut done = 0_u64;
    let operations = [
        crate::device::GET,
        crate::device::GET,
        crate::device::FRESH,
        crate::device::PUT,
        crate::device::CANCEL,
        crate::device::SEND,
    ];
    while begin.elapsed() < Duration::from_secs(1) {
        let operation = match numbers.below(20) {
            0 => numbers.next() as u32,
            some => operations[some as usize % operations.len()],
        };
        // Sometimes small numbers where they mean something, sometimes any.
        let mut word = |small: u64| match numbers.below(3) {
            0 => numbers.next() << 20 ^ numbers.next(),
            1 => numbers.below(small),
            _ => 0,
        };
        let words = [
            word(200_000),
            word(200_000) & 0xffff_ffff | (word(5) & 0xffff) << 32 | (word(3) & 0xffff) << 48,
        ];
        let slot = word(20) as u16;
        from.write_all(&[1; 10]).expect("sends");
        let entry = lending.command(operation, slot, words);
        lending.submit(&[entry]);
        let cancel = lending.cancel(0, crate::device::CANCEL_ALL);
        lending.submit(&[cancel]);
        lending.wait(2);
        done += 1;
    }
    assert!(done > 100, "{done}");
    drop(lending);
    out.shutdown(std::net::Shutdown::Both).expect("ends");
    reader.join().expect("ends");
    eventually("all lends are back", || (device.query().module_lends == 0).then_some(()));
}
