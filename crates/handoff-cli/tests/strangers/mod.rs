//! Crowds of hostile peers, and how much a program may take for them. The tests of every command that listens use
//! these.

use std::fmt::Debug;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use handoff_testbed::running::TIMEOUT;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use socket2::{SockFilter, SockRef};

/// Strangers of one kind.
pub(crate) const CROWD: usize = 200;

/// Between looks at a program, and between bytes of strangers that say one at a time.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Silent,
    /// Speaks the protocol, a byte at a time.
    Dripping,
    Random,
    /// Speaks the protocol, with the largest lengths that it has.
    HugeLengths,
    /// Has shut down its sending side, and still receives.
    HalfClosed,
    /// Receives nothing any more and sent no FIN, like a host without power.
    Gone,
    /// Asks, and never reads the answer, while its host acknowledges what comes.
    NeverReads,
}

/// Those who come by loopback. What is lent to those who never read is out only if they come by a cable.
pub(crate) const KINDS: [Kind; 6] =
    [Kind::Silent, Kind::Dripping, Kind::Random, Kind::HugeLengths, Kind::HalfClosed, Kind::Gone];

/// Has a good peer served by a program with --idle 1, which ends it where a busy machine stands still for as long: then
/// again.
pub(crate) fn despite_idle(serve: impl Fn()) {
    for _ in 0..10 {
        let begin = Instant::now();
        match catch_unwind(AssertUnwindSafe(&serve)) {
            Ok(()) => return,
            Err(panic) if begin.elapsed() < Duration::from_secs(1) => resume_unwind(panic),
            Err(_) => {}
        }
    }
    panic!("always stands still");
}

/// A protocol, as these peers speak it.
#[derive(Clone, Copy)]
pub(crate) struct Protocol {
    /// What a peer begins with.
    pub(crate) begin: &'static [u8],
    /// A message with the largest lengths, from the peer of this number.
    pub(crate) huge: fn(usize) -> Vec<u8>,
    /// What is answered with more than a host takes for a program that does not read, from the peer of this number.
    pub(crate) asks: fn(usize) -> Vec<u8>,
}

/// Connected hostile peers. They end with a reset.
pub(crate) struct Crowd {
    kind: Kind,
    protocol: Protocol,
    /// How many bytes each of those that drip has sent.
    sent_bytes: usize,
    streams: Vec<TcpStream>,
}

impl Crowd {
    /// Peers of a kind, each on the connection that `connect` makes for its number.
    pub(crate) fn new(
        kind: Kind,
        protocol: Protocol,
        connect: impl Fn(usize) -> TcpStream,
    ) -> Self {
        let join = |number| {
            let stream = connect(number);
            let socket = SockRef::from(&stream);
            socket.set_linger(Some(Duration::ZERO)).expect("sets");
            // The program decides how much it reads; nobody waits for that here.
            stream.set_nonblocking(true).expect("sets");
            // The program may end a connection that it refuses at any time.
            let _ = match kind {
                Kind::Silent | Kind::Dripping => Ok(()),
                Kind::Random => { &stream }.write_all(&noise(number)),
                Kind::HugeLengths => { &stream }.write_all(&(protocol.huge)(number)),
                Kind::NeverReads => { &stream }.write_all(&(protocol.asks)(number)),
                Kind::HalfClosed => stream.shutdown(Shutdown::Write),
                Kind::Gone => socket.attach_filter(&[nothing_arrives()]),
            };
            stream
        };
        let mut crowd =
            Self { kind, protocol, sent_bytes: 0, streams: (0..CROWD).map(join).collect() };
        crowd.go_on();
        crowd
    }

    /// Those that drip say their next byte.
    pub(crate) fn go_on(&mut self) {
        if self.kind != Kind::Dripping {
            return;
        }
        let byte = [self.protocol.begin[self.sent_bytes % self.protocol.begin.len()]];
        self.sent_bytes += 1;
        for stream in &mut self.streams {
            // As above.
            let _ = stream.write_all(&byte);
        }
    }

    /// They go on while a good peer works.
    pub(crate) fn go_on_beside<T>(&mut self, work: impl FnOnce() -> T) -> T {
        // Its end is that of the work, also where that fails.
        let (works, over) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                self.go_on();
                while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    self.go_on();
                }
            });
            let done = work();
            drop(works);
            done
        })
    }

    /// Waits until the program has ended them all.
    pub(crate) fn all_end(self) {
        for mut stream in self.streams {
            stream.set_nonblocking(false).expect("sets");
            stream.set_read_timeout(Some(TIMEOUT)).expect("sets");
            // Ended or reset.
            if let Err(error) = std::io::copy(&mut stream, &mut std::io::sink()) {
                assert_ne!(error.kind(), ErrorKind::WouldBlock, "a stranger stays");
            }
        }
    }
}

/// A thousand bytes that mean nothing.
fn noise(number: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 131 + number * 17 + at / 7) as u8;
    (0..1_000).map(byte).collect()
}

/// Has the kernel drop what arrives at a socket, acknowledgements and all, as if it came to no host.
fn nothing_arrives() -> SockFilter {
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0)
}

/// A program that strangers come to.
#[derive(Clone, Copy)]
pub(crate) struct Visited {
    pid: u32,
    begin: Instant,
    /// Before they came.
    memory: [Memory; 2],
    descriptors: usize,
}

impl Visited {
    /// The program as it is before they come.
    pub(crate) fn new(pid: u32) -> Self {
        let begin = Instant::now();
        Self { pid, begin, memory: memory(pid), descriptors: descriptors(pid) }
    }

    /// From now on it can open descriptors below this number only.
    pub(crate) fn limit_descriptors(&self, below: u64) {
        // It could not be raised again.
        let most = Rlimit { current: Some(below), ..getrlimit(Resource::Nofile) };
        prlimit(Pid::from_raw(self.pid as i32), Resource::Nofile, most).expect("is ours");
    }

    /// From now on it can open so many descriptors more.
    pub(crate) fn leave_descriptors(&self, more: usize) {
        let taken = |number: &u64| Path::new(&format!("/proc/{}/fd/{number}", self.pid)).exists();
        let last = (0..).filter(|number| !taken(number)).nth(more).expect("are many");
        self.limit_descriptors(last);
    }

    /// Strangers of such a kind have cost it no more than `each` KiB of memory, used or set aside, and the good peer no
    /// more than `good`.
    pub(crate) fn assert_kept_memory(&self, kind: impl Debug, each: u64, good: u64) {
        for (before, now) in self.memory.into_iter().zip(memory(self.pid)) {
            let most = before.kib + CROWD as u64 * each + good;
            assert!(now.kib <= most, "{kind:?}: {now:?}, after {before:?}; at most {most}");
        }
    }

    /// Waits until it has given all descriptors back but so many that it has for something else. Meanwhile the
    /// crowd goes on.
    pub(crate) fn gives_back_descriptors(&self, mut crowd: Option<&mut Crowd>, others: usize) {
        let begin = Instant::now();
        loop {
            let now = descriptors(self.pid);
            if now <= self.descriptors + others {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "{now} descriptors, after {}", self.descriptors);
            crowd.iter_mut().for_each(|crowd| crowd.go_on());
            thread::sleep(LOOK);
        }
    }

    /// Its lines on stderr, but for so many that strangers have no part in, are no more than one a second.
    pub(crate) fn assert_said_little(&self, stderr: &str, others: usize) {
        let most = others as u64 + self.begin.elapsed().as_secs() + 1;
        let lines = stderr.lines().count();
        assert!(lines as u64 <= most, "{lines} lines, at most {most}: {stderr}");
    }
}

/// A line of a process's status.
#[derive(Clone, Copy, Debug)]
struct Memory {
    #[expect(dead_code, reason = "printed")]
    name: &'static str,
    kib: u64,
}

/// The most that a process has used, and what it has set aside.
fn memory(pid: u32) -> [Memory; 2] {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    ["VmHWM:", "VmData:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("is told");
        let kib = line.trim().trim_end_matches(" kB").parse().expect("a number");
        Memory { name, kib }
    })
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}
