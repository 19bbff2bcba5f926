use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use handoff_testbed::helpers::{bytes_at, eventually};
use handoff_testbed::load;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::device::{
    Device, Lending, NULL, Queues, REPLACE, SOURCE, TARGET, connection, free_memory, further,
    going_on, in_memory, long_form, on_disk, write,
};
use crate::numbers::Numbers;
use crate::resizing::{Resizing, any_size};

const FILE: usize = 1 << 20;

/// Sources that lend at random, in rings that go with lends out.
struct Churn<'a> {
    numbers: Numbers,
    file: &'a File,
    /// The same file, past the page cache.
    direct: &'a File,
    /// Open in all threads.
    shared: &'a Device,
    stop: &'a AtomicBool,
}

/// A ring with its sources and targets.
struct Testbed {
    lending: Lending<Box<dyn Queues>>,
    /// A file in the page cache, past it, one in memory, and one generated as it is read.
    files: [u16; 4],
    /// A stream that always has data, one that never has, and one that is sent to.
    stream: u16,
    still: u16,
    target: u16,
    from: TcpStream,
    out: TcpStream,
    /// The unused ends.
    _open: (TcpStream, TcpStream, TcpStream),
    reader: thread::JoinHandle<std::io::Result<u64>>,
}

impl Testbed {
    fn new(ring: Box<dyn Queues>, device: Device, file: &File, direct: &File) -> Self {
        ring.make_table(16);
        let lending = Lending { ring, device };
        let bind = |file: &dyn AsRawFd, purpose| {
            lending.device.bind(&file.as_raw_fd(), purpose).expect("binds")
        };
        let memory = in_memory();
        memory.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
        let made = File::open("/proc/cpuinfo").expect("opens");
        let files = [file, direct, &memory, &made].map(|file| bind(file, SOURCE));
        let ((out, mut far), (from, to), (silent, still)) =
            (connection(), connection(), connection());
        let reader = thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()));
        Self {
            files,
            stream: bind(&to, SOURCE),
            still: bind(&still, SOURCE),
            target: bind(&out, TARGET),
            lending,
            from,
            out,
            _open: (to, silent, still),
            reader,
        }
    }

    /// Ends with lends not given back, and with a request that waits, which goes with its source or with
    /// its ring.
    fn end(mut self, source_first: bool) {
        let waits = self.lending.get_with(0, self.still, 0, 1, REPLACE);
        self.lending.submit(&[waits]);
        let Self { lending, files, stream, still, target, out, reader, .. } = self;
        let Lending { ring, device } = lending;
        let (sooner, later) = if source_first { (None, Some(ring)) } else { (Some(ring), None) };
        drop(sooner);
        for id in files.into_iter().chain([stream, still, target]) {
            device.unbind(id).expect("unbinds");
        }
        drop(later);
        out.shutdown(Shutdown::Both).expect("ends");
        reader.join().expect("ends").expect("receives");
    }
}

impl Churn<'_> {
    /// Until told to stop, and at least one ring; returns how many rings it had.
    fn run(mut self) -> u64 {
        let mut rings = 0;
        while rings == 0 || !self.stop.load(Ordering::Relaxed) {
            let ring: Box<dyn Queues> = match rings % 3 {
                0 => Box::new(IoUring::new(128).expect("a ring")),
                1 => Box::new(Resizing::new(128)),
                _ => Box::new(IoUring::builder().setup_sqpoll(10).build(128).expect("a ring")),
            };
            let device = match self.numbers.below(2) {
                0 => Device::open(),
                _ => Device(self.shared.0.try_clone().expect("duplicates")),
            };
            let mut testbed = Testbed::new(ring, device, self.file, self.direct);
            let memory = in_memory();
            for _ in 0..100 {
                self.step(&mut testbed, &memory);
            }
            testbed.end(self.numbers.below(2) == 0);
            rings += 1;
        }
        rings
    }

    fn step(&mut self, testbed: &mut Testbed, memory: &File) {
        let numbers = &mut self.numbers;
        // Some in a worker.
        let flags = match numbers.below(4) {
            0 => squeue::Flags::ASYNC,
            _ => squeue::Flags::empty(),
        };
        let slot = numbers.below(8) as u16;
        let bytes = 1 + numbers.below(100_000) as u32;
        let replace = if numbers.below(2) == 0 { REPLACE } else { 0 };
        let how = replace | further(numbers.below(4) as u8);
        let Testbed { lending, files, .. } = testbed;
        let result = match numbers.below(12) {
            0 => lending.run(lending.get_with(slot, NULL, 0, bytes % 5_000 + 1, how).flags(flags)),
            1..=4 => {
                let source = files[numbers.below(4) as usize];
                let offset = numbers.below(FILE as u64);
                lending.run(lending.get_with(slot, source, offset, bytes, how).flags(flags))
            }
            5 => {
                testbed.from.write_all(&bytes_at(0, 3_000)).expect("sends");
                lending.run(lending.get_with(slot, testbed.stream, 0, bytes, replace).flags(flags))
            }
            6 => {
                // In order, since the second is for the first.
                let waits = lending.get_with(slot, testbed.still, 0, bytes, replace).user_data(1);
                let cancel = lending.cancel(1, 0);
                if numbers.below(2) == 0 {
                    lending.submit(&[waits, cancel]);
                } else {
                    lending.submit(&[waits]);
                    lending.ring.resize(any_size(numbers.next()));
                    lending.submit(&[cancel]);
                }
                let done = lending.wait(2);
                done.iter().map(cqueue::Entry::result).min().expect("two")
            }
            7 => lending.run(lending.fresh(slot, slot + 8, bytes).flags(flags)),
            8 => lending.run(lending.send(slot, testbed.target, 0, bytes % 5_000, 0).flags(flags)),
            9 => {
                let file = Fd(self.file.as_raw_fd());
                let read = opcode::ReadFixed::new(file, std::ptr::null_mut(), bytes % 5_000, slot);
                let read = lending.run(read.build().flags(flags));
                let written = lending.run(write(slot + 8, memory, 0, bytes % 5_000, 0));
                read.min(written)
            }
            10 => {
                let _ = lending.run(lending.put(slot + 8));
                lending.run(lending.put(slot).flags(flags))
            }
            _ => {
                let fd = Fd(testbed.out.as_raw_fd());
                let send = opcode::SendZc::new(fd, std::ptr::null(), bytes % 5_000);
                lending.submit(&[send.buf_index(Some(slot)).build()]);
                let done = &lending.wait(1)[0];
                if cqueue::more(done.flags()) {
                    lending.wait(1);
                }
                done.result()
            }
        };
        let foreseen = [-libc::EBUSY, -libc::EINVAL, -libc::EFAULT, -libc::ECANCELED];
        assert!(result >= 0 || foreseen.contains(&result), "{result}");
    }
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

/// Set when this goes, also by a panic.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_module_goes_and_comes_while_it_is_used() {
    let (stop, pause) = (AtomicBool::new(false), AtomicBool::new(false));
    let opened = AtomicU64::new(0);
    drop(Device::open());
    let remove = || Command::new("rmmod").arg("getbuf").output().expect("starts").status.success();
    thread::scope(|scope| {
        let _stop = SetAtEnd(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Who only opens the device keeps it as well.
                    let device = (!pause.load(Ordering::Relaxed))
                        .then(|| OpenOptions::new().read(true).write(true).open("/dev/getbuf"));
                    let Some(Ok(device)) = device else {
                        thread::yield_now();
                        continue;
                    };
                    let mut lending = Lending::with(Device(device));
                    assert_eq!(lending.run(lending.get(0, NULL, 0, 64)), 64);
                    assert_eq!(lending.run(lending.fresh(1, 2, 10_000)), 10_000);
                    // Sometimes the ring is the last holder of it.
                    let Lending { ring, device } = lending;
                    drop(device);
                    drop(ring);
                    opened.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < going_on(2, 5) {
            let before = opened.load(Ordering::Relaxed);
            eventually("it is used", || (opened.load(Ordering::Relaxed) > before).then_some(()));
            // Under load, and when the last loan comes back.
            if !remove() {
                pause.store(true, Ordering::Relaxed);
                eventually("it can be removed", || remove().then_some(()));
                pause.store(false, Ordering::Relaxed);
            }
            load("getbuf", &[]).expect("the lab's kernel has it");
        }
    });
}

#[test]
fn eight_threads_lend_while_the_file_changes_and_no_page_is_lost() {
    const THREADS: u64 = 8;
    /// What the kernel may keep for itself meanwhile.
    const KEPT: u64 = 64 << 20;
    let device = Device::open();
    let file = on_disk();
    file.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .expect("opens");
    let stop = AtomicBool::new(false);
    let free = free_memory();
    let rings: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|seed| {
                let numbers = Numbers(seed);
                let churn =
                    Churn { numbers, file: &file, direct: &direct, shared: &device, stop: &stop };
                scope.spawn(|| churn.run())
            })
            .collect();
        let begin = Instant::now();
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        while begin.elapsed() < going_on(3, 10) && threads.iter().all(|it| !it.is_finished()) {
            rustix::fs::fallocate(&file, hole, 100_000, 200_000).expect("punches");
            file.set_len(FILE as u64 / 2).expect("truncates");
            file.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicts");
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("ends")).sum()
    });
    assert!(rings >= THREADS, "{rings}");
    eventually("all lends are back", || (device.query().module_lends == 0).then_some(()));
    let query = device.query();
    assert_eq!((query.lends, query.bytes, query.waiting, query.bound), (0, 0, 0, 0), "{query:?}");
    assert_eq!(query.returned, query.lent, "{query:?}");
    let of_sources = [query.from_null, query.from_cache, query.from_splice, query.from_stream];
    assert!(of_sources.iter().chain([&query.fresh]).all(|&lends| lends > 0), "{query:?}");
    // In seconds, less is lent than the kernel keeps for itself.
    if long_form() {
        eventually("the memory is back", || (free_memory() + KEPT > free).then_some(()));
    }
}
