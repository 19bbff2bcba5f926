//! Any bytes, in any commands, in any order. Where the kernel reports the code reached, inputs that reach
//! new code are kept, and others are made from them.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

use handoff_testbed::helpers::{bytes_at, eventually};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

use crate::coverage::Coverage;
use crate::device::{
    Bind, CANCEL, CANCEL_ALL, Device, FRESH, GET, Lending, PUT, Queues, SEND, SOURCE, TARGET,
    connection, going_on, in_memory, on_disk, write,
};
use crate::numbers::Numbers;
use crate::resizing::{Resizing, any_size};

const FILE: usize = 1 << 20;
/// Slots cleared between inputs.
const SLOTS: u16 = 24;
/// The cancellation whose completion the test waits for.
const LAST: u64 = u64::MAX;
/// After so many steps it looks for completions.
const ACTIONS: usize = 16;

/// What to do, with which slot, and two words of a command: [`Testbed::act`] takes any numbers.
type Action = [u64; 4];
type Input = Vec<Action>;

/// Sometimes small numbers where they have a meaning, sometimes any.
fn word(numbers: &mut Numbers, small: u64) -> u64 {
    match numbers.below(3) {
        0 => (numbers.next() << 20) ^ numbers.next(),
        1 => numbers.below(small),
        _ => 0,
    }
}

/// A length, the number of a file or slot, and flags, as they stand in commands.
fn packed(numbers: &mut Numbers) -> u64 {
    let flags = [0, 0, 1, 2, 4, 4 | (numbers.below(4) << 8), numbers.next()];
    (1 + numbers.below(100_000)) | (numbers.below(8) << 32) | (numbers.one(&flags) << 48)
}

fn action(numbers: &mut Numbers) -> Action {
    let words = [(); 2].map(|()| match numbers.below(2) {
        0 => packed(numbers),
        _ => word(numbers, 200_000),
    });
    [numbers.next(), word(numbers, 20), words[0], words[1]]
}

/// A new input, or a slight change of another.
fn input(numbers: &mut Numbers, kept: &[Input]) -> Input {
    if kept.is_empty() || numbers.below(8) == 0 {
        return (0..=numbers.below(6)).map(|_| action(numbers)).collect();
    }
    let mut input = numbers.one(kept).clone();
    for _ in 0..=numbers.below(3) {
        let place = numbers.below(1 + input.len() as u64) as usize;
        match numbers.below(8) {
            0 => input.extend(numbers.one(kept)),
            1 => input.insert(place, action(numbers)),
            2 if place < input.len() => drop(input.remove(place)),
            _ if place < input.len() => {
                let number = &mut input[place][numbers.below(4) as usize];
                *number = match numbers.below(4) {
                    0 => numbers.next(),
                    1 => word(numbers, 32),
                    2 => packed(numbers),
                    _ => *number ^ (1 << numbers.below(64)),
                };
            }
            _ => {}
        }
    }
    input.truncate(ACTIONS);
    input
}

/// What commands refer to. The device of each input is new.
struct Testbed {
    lending: Lending<Box<dyn Queues>>,
    /// Requests that have not completed.
    out: usize,
    file: File,
    memory: File,
    made: File,
    source: TcpStream,
    feed: TcpStream,
    target: TcpStream,
    readers: Vec<thread::JoinHandle<std::io::Result<u64>>>,
}

fn device() -> Device {
    Device(OpenOptions::new().read(true).write(true).open("/dev/getbuf").expect("opens"))
}

impl Testbed {
    fn new(ring: Box<dyn Queues>) -> Self {
        let (file, memory) = (on_disk(), in_memory());
        for file in [&file, &memory] {
            file.write_all_at(&bytes_at(0, FILE), 0).expect("writes");
        }
        let ((target, far), (feed, source)) = (connection(), connection());
        // Either may be bound as a target.
        let sent = [far, feed.try_clone().expect("clones")];
        let readers = sent
            .map(|mut sent| thread::spawn(move || std::io::copy(&mut sent, &mut std::io::sink())));
        Self {
            lending: Lending::on(ring, Device::open()),
            out: 0,
            file,
            memory,
            made: File::open("/proc/cpuinfo").expect("opens"),
            source,
            feed,
            target,
            readers: readers.into(),
        }
    }

    fn files(&self) -> [(RawFd, u32); 5] {
        [
            (self.file.as_raw_fd(), SOURCE),
            (self.memory.as_raw_fd(), SOURCE),
            (self.made.as_raw_fd(), SOURCE),
            (self.source.as_raw_fd(), SOURCE),
            (self.target.as_raw_fd(), TARGET),
        ]
    }

    fn submit(&mut self, entry: squeue::Entry) {
        self.out += 1;
        self.lending.submit(&[entry]);
    }

    fn act(&mut self, [what, slot, first, second]: Action) {
        let slot = slot as u16;
        let flags = match what >> 8 & 3 {
            0 => squeue::Flags::ASYNC,
            _ => squeue::Flags::empty(),
        };
        let bytes = (second % 10_000) as u32;
        match what as u8 % 16 {
            0 => self.lending.ring.resize(any_size(first)),
            1 => self.submit(self.lending.cancel(first, second as u32)),
            2 => {
                let (fd, purpose) = self.files()[(first % 5) as usize];
                let of_file = |it: &mut Bind| (it.fd, it.purpose) = (fd, purpose);
                let mut bind = Bind {
                    fd: first as i32,
                    purpose: second as u32,
                    flags: (second >> 32) as u32,
                    ..Bind::default()
                };
                if what >> 10 & 1 == 0 {
                    of_file(&mut bind);
                }
                let _ = self.lending.device.bind_raw(&mut bind);
            }
            3 => {
                let _ = self.lending.device.unbind(first as u16 % 8);
                let _ = self.lending.device.query();
            }
            4 => {
                let to = write(slot, &self.memory, first as usize % FILE, bytes, 0);
                self.submit(to.flags(flags));
            }
            5 => {
                let from = Fd(self.file.as_raw_fd());
                let read = opcode::ReadFixed::new(from, std::ptr::null_mut(), bytes, slot);
                self.submit(read.build().flags(flags));
            }
            6 => self.feed.write_all(&bytes_at(0, bytes as usize)).expect("sends"),
            _ => {
                let any = (what >> 32) as u32;
                let of_all = [GET, GET, GET, FRESH, FRESH, PUT, CANCEL, SEND, SEND, any];
                let operation = of_all[(what >> 16) as usize % of_all.len()];
                let mut command = [0; 16];
                command[..8].copy_from_slice(&first.to_ne_bytes());
                command[8..].copy_from_slice(&second.to_ne_bytes());
                let fd = Fd(self.lending.device.0.as_raw_fd());
                let slot = Some(slot).filter(|_| what >> 11 & 15 != 0);
                let command = opcode::UringCmd16::new(fd, operation).cmd(command).buf_index(slot);
                self.submit(command.build().flags(flags));
            }
        }
    }

    /// Ends everything that waits, also requests that a worker of the ring is only about to begin.
    fn settle(&mut self) {
        while self.out > 0 {
            self.submit(self.lending.cancel(0, CANCEL_ALL).user_data(LAST));
            while self.lending.wait(1)[0].user_data() != LAST {
                self.out -= 1;
            }
            self.out -= 1;
        }
    }

    fn run(&mut self, input: &[Action]) {
        self.lending.device = device();
        for (fd, purpose) in self.files() {
            self.lending.device.bind(&fd, purpose).expect("binds");
        }
        input.iter().for_each(|action| self.act(*action));
        self.settle();
        for slot in 0..SLOTS {
            self.submit(self.lending.put(slot));
        }
        self.settle();
    }

    /// Goes with its lends, and with requests under way.
    fn end(mut self, input: &[Action]) {
        input.iter().for_each(|action| self.act(*action));
        drop(self.lending);
        for stream in [&self.target, &self.feed, &self.source] {
            stream.shutdown(Shutdown::Both).expect("ends");
        }
        for reader in self.readers {
            reader.join().expect("ends").expect("receives");
        }
    }
}

/// Inputs for one kind of ring, whose rings come and go.
fn survive(mut numbers: Numbers, ring: fn() -> Box<dyn Queues>) {
    let coverage = Coverage::new();
    let (mut kept, mut known) = (Vec::new(), HashSet::new());
    let (begin, mut count) = (Instant::now(), 0);
    // On the sanitizer kernel only few run per second.
    while count < 100 || begin.elapsed() < going_on(1, 30) {
        let mut testbed = Testbed::new(ring());
        for _ in 0..50 {
            let input = input(&mut numbers, &kept);
            if let Some(coverage) = &coverage {
                let reached = coverage.of(|| testbed.run(&input));
                let before = known.len();
                known.extend(reached.windows(2).map(|steps| (steps[0], steps[1])));
                if known.len() > before {
                    kept.push(input);
                }
            } else {
                testbed.run(&input);
            }
            count += 1;
        }
        testbed.end(&input(&mut numbers, &kept));
    }
    let places: HashSet<usize> = known.iter().map(|(_, to)| *to).collect();
    println!(
        "{count} inputs, {} of them kept, reached {} places by {} ways",
        kept.len(),
        places.len(),
        known.len()
    );
    assert!(coverage.is_none() || places.len() > 100, "kcov tells nothing of the module");
    eventually("all lends are back", || (device().query().module_lends == 0).then_some(()));
}

#[test]
fn any_commands_are_survived() {
    survive(Numbers(20_230_430), || Box::new(IoUring::new(128).expect("a ring")));
    survive(Numbers(20_230_431), || Box::new(Resizing::new(128)));
}
