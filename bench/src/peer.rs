//! Other programs, run beside us in the same network and in turns with our rows. Programs that serve live
//! as long as their row: see `network::program`.
//!
//! A peer is `NAME=COMMAND`. The shell runs the command, after its placeholders were replaced. A sending
//! peer runs once per round, inside the bench's namespace and on its processor; `{addr}`, `{port}`,
//! `{bytes}`, `{seconds}` and `{cpu}` stand for what it needs. Its figure is the last match of a regular
//! expression in its output:
//!
//! - the group `value`, or the first group, is the number;
//! - the group `unit`, or the second group, is its unit, unless you gave a unit; that is for programs that
//!   print MB and mean MiB, or print no unit;
//! - a unit per second is a rate. A unit without `/s` is a total, and is divided by the time that the
//!   program really ran, so a program that runs longer than asked is not favoured.

use std::{
    fs::File,
    os::unix::{fs::FileExt as _, process::CommandExt as _},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use handoff_command::Failure;
use handoff_command::named::parse_named;
use handoff_command::quantity::bytes_per_unit;
use handoff_lab::command::Carried;
use handoff_testbed::Namespace;
use regex_lite::Regex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
    thread::{CpuSet, sched_setaffinity},
};

use crate::{
    measure::{Cpu, Engine, Slot, Tally, Time},
    processor::Waits,
    tcp_table::listens,
};

/// The last number with the unit of a rate: `12.5 MB/s`, `9.42 Gbits/sec`.
const DEFAULT_PATTERN: &str =
    r"([0-9]+(?:\.[0-9]+)?)\s*((?:[kKMG]i?)?B/s(?:ec)?|(?:[kKMG]i?)?Bps|[kKMG]?bits?/s(?:ec)?)";

/// The time between two looks at a running peer, which shares its processor with us.
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The time that a receiver has to begin, where nothing shows that it has begun.
const START_UP: Duration = Duration::from_millis(300);

/// The longest wait for a receiver to listen at the port that it is known to have.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two looks whether a receiver listens yet.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// The options of benches that run other programs beside their rows.
#[derive(Debug, Args)]
pub struct ProgramOptions {
    /// Run another program in turns with the rows, as described below
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_named)]
    pub peer: Vec<(String, String)>,

    /// What the guest is given, with --lab.
    #[command(flatten)]
    pub carried: Carried,
}

impl ProgramOptions {
    /// The options for the guest's bench.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        named("peer", &self.peer)
    }

    /// Refuses an option whose values name a program that is no peer.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] with the first such name.
    pub(crate) fn must_have(
        &self,
        option: &str,
        values: &[(String, String)],
    ) -> Result<(), Failure> {
        match values.iter().find(|(name, _)| value_of(name, &self.peer).is_none()) {
            Some((name, _)) => Err(Failure::Usage(format!("{option}: no peer is called '{name}'"))),
            None => Ok(()),
        }
    }
}

/// The options of benches whose peers tell their own figures.
#[derive(Debug, Args)]
pub struct FigureOptions {
    /// Find a peer's figure in its output: one group for the number, one for its unit
    /// [default: the last rate]
    #[arg(long, value_name = "NAME=REGEX", value_parser = parse_named)]
    pub peer_regex: Vec<(String, String)>,

    /// The unit of a peer's figure, if its output has none: MB/s, MiB/s, Gbits/s; without /s it is a
    /// total
    #[arg(long, value_name = "NAME=UNIT", value_parser = parse_named)]
    pub peer_unit: Vec<(String, String)>,
}

impl FigureOptions {
    /// The options for the guest's bench.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = String> {
        named("peer-regex", &self.peer_regex).chain(named("peer-unit", &self.peer_unit))
    }

    /// How to read the figures of these programs, in their order.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for an option that is wrong, or names no program.
    pub(crate) fn of(&self, programs: &ProgramOptions) -> Result<Vec<Figure>, Failure> {
        programs.must_have("--peer-regex", &self.peer_regex)?;
        programs.must_have("--peer-unit", &self.peer_unit)?;
        let figure = |(name, _): &(String, String)| {
            Figure::new(value_of(name, &self.peer_regex), value_of(name, &self.peer_unit))
                .map_err(|error| Failure::Usage(format!("peer {name}: {error}")))
        };
        programs.peer.iter().map(figure).collect()
    }
}

/// An option for the guest's bench, once for each of its values.
pub(crate) fn named(option: &str, values: &[(String, String)]) -> impl Iterator<Item = String> {
    values.iter().map(move |(name, value)| format!("--{option}={name}={value}"))
}

/// The value that an option has for a peer; `None` if it has none.
pub(crate) fn value_of<'a>(name: &str, values: &'a [(String, String)]) -> Option<&'a str> {
    values.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
}

/// How to read a peer's figure.
#[derive(Debug, Clone)]
pub struct Figure {
    pattern: Regex,
    unit: Option<String>,
}

/// A number that a peer printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reading {
    /// Bytes per second.
    Rate(f64),
    /// Bytes in all.
    Total(f64),
}

impl Figure {
    /// Takes a pattern in place of the default one, and a unit in place of the printed one.
    ///
    /// # Errors
    ///
    /// A line that says what is wrong with the pattern or the unit.
    pub fn new(pattern: Option<&str>, unit: Option<&str>) -> Result<Self, String> {
        let pattern = Regex::new(pattern.unwrap_or(DEFAULT_PATTERN))
            .map_err(|error| error.to_string().replace('\n', " "))?;
        if pattern.captures_len() < 2 {
            return Err(format!("the pattern {pattern} has no group for the number"));
        }
        if let Some(unit) = unit
            && bytes_per_unit(unit).is_none()
        {
            return Err(format!("'{unit}' is no unit: use for example MB/s, MiB/s, Gbits/s, MiB"));
        }
        Ok(Self { pattern, unit: unit.map(str::to_owned) })
    }

    /// Finds the figure in the program's output.
    ///
    /// # Errors
    ///
    /// A line that says why there is none.
    pub fn read(&self, output: &str) -> Result<Reading, String> {
        let found = self
            .pattern
            .captures_iter(output)
            .last()
            .ok_or_else(|| format!("nothing in its output matches {}", self.pattern))?;
        let group = |name: &str, number| found.name(name).or_else(|| found.get(number));
        let value = group("value", 1).map_or("", |it| it.as_str());
        let number: f64 =
            value.parse().map_err(|_| format!("its figure '{value}' is no number"))?;
        let unit = match &self.unit {
            Some(unit) => unit.as_str(),
            None => group("unit", 2).ok_or("its figure has no unit: give one by hand")?.as_str(),
        };
        let bytes = bytes_per_unit(unit).ok_or_else(|| format!("'{unit}' is no unit"))? * number;
        let per_second = unit.contains('/') || unit.ends_with("ps");
        Ok(if per_second { Reading::Rate(bytes) } else { Reading::Total(bytes) })
    }
}

/// Values for the placeholders of a command: `{name}`.
#[derive(Debug, Clone, Default)]
pub struct Placeholders(pub Vec<(&'static str, String)>);

impl Placeholders {
    /// Replaces all placeholders in a command.
    pub(crate) fn fill(&self, command: &str) -> String {
        self.0.iter().fold(command.to_owned(), |command, (name, value)| {
            command.replace(&format!("{{{name}}}"), value)
        })
    }
}

/// A program's output, kept in memory.
#[derive(Debug)]
pub struct Output(File);

impl Output {
    /// Makes memory for an output.
    ///
    /// # Errors
    ///
    /// One line that says why there is none.
    pub fn new() -> Result<Self, String> {
        let file = memfd_create("peer", MemfdFlags::CLOEXEC)
            .map_err(|errno| format!("no memory for its output: {errno}"))?;
        Ok(Self(file.into()))
    }

    /// The file that the program must print to.
    pub fn sink(&self) -> Stdio {
        self.0.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// The program's output so far.
    ///
    /// # Errors
    ///
    /// One line that says why the output cannot be read.
    pub fn text(&self) -> Result<String, String> {
        let mut text = Vec::new();
        // The program shares the file's offset and may go on, so this reads at an offset of its own.
        let mut at = 0;
        loop {
            let mut piece = [0; 4_096];
            match self.0.read_at(&mut piece, at) {
                Ok(0) => return Ok(String::from_utf8_lossy(&text).into_owned()),
                Ok(read) => {
                    text.extend_from_slice(&piece[..read]);
                    at += read as u64;
                }
                Err(error) => return Err(format!("its output is unreadable: {error}")),
            }
        }
    }

    /// How the program ended, with the last line that it printed.
    pub(crate) fn failure(&self, status: ExitStatus) -> String {
        format!("{status}: {}", self.last_line())
    }

    /// The last line that the program has printed so far.
    pub(crate) fn last_line(&self) -> String {
        let text = self.text().unwrap_or_default();
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
        last.trim().to_owned()
    }
}

/// A program as an engine: each slot is one run of the program.
#[derive(Debug)]
pub struct Peer {
    /// The command, with placeholders.
    pub command: String,
    /// How to read the program's figure.
    pub figure: Figure,
    /// The values for the placeholders.
    pub placeholders: Placeholders,
    /// The namespace that the program runs in.
    pub namespace: Namespace,
    /// The program that receives; `None` if the bench's own receiver suffices.
    pub receiver: Option<Receiver>,
}

/// A program at the far end. It runs as long as this value lives.
#[derive(Debug)]
pub struct Receiver {
    _running: Running,
}

impl Receiver {
    /// Starts the command through the shell, and waits until somebody listens at its TCP port. A receiver
    /// without such a port has [`START_UP`] to begin.
    ///
    /// # Errors
    ///
    /// A line that says why it does not listen.
    pub(crate) fn start(
        command: &str,
        namespace: &Namespace,
        port: Option<u16>,
        processors: Affinity,
    ) -> Result<Self, String> {
        let output = Output::new()?;
        let mut running = Running::start(command, Some(namespace), || output.sink(), processors)?;
        let begin = Instant::now();
        let is_ready = || match port {
            Some(port) => listens(namespace, port),
            None => Ok(begin.elapsed() > START_UP),
        };
        while !is_ready()? {
            if let Some(status) = running.ended()? {
                return Err(format!("the receiver '{command}' ended: {}", output.failure(status)));
            }
            if begin.elapsed() > TIMEOUT {
                return Err(format!("the receiver '{command}' does not listen for {TIMEOUT:?}"));
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        Ok(Self { _running: running })
    }
}

/// Which processors a program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// The bench's processor.
    Inherited,
    /// These processors.
    Only(CpuSet),
    /// All processors.
    All,
}

/// A process group that ends with its owner.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The call fails if the group is gone, which is fine.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Running {
    /// Starts a command through the shell; for `None`, in the caller's namespace.
    pub(crate) fn start(
        command: &str,
        namespace: Option<&Namespace>,
        output: impl Fn() -> Stdio,
        affinity: Affinity,
    ) -> Result<Self, String> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).process_group(0);
        shell.stdin(Stdio::null()).stdout(output()).stderr(output());
        let processors = match affinity {
            Affinity::Inherited => None,
            Affinity::Only(processors) => Some(processors),
            Affinity::All => {
                let mut all = CpuSet::new();
                (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
                Some(all)
            }
        };
        if let Some(processors) = processors {
            // SAFETY: between fork and exec only sched_setaffinity is called, a bare system call.
            unsafe { shell.pre_exec(move || Ok(sched_setaffinity(None, &processors)?)) };
        }
        handoff_testbed::die_with_us(&mut shell, Signal::KILL);
        if let Some(namespace) = namespace {
            namespace.attach(&mut shell);
        }
        shell
            .spawn()
            .map(|child| Self { child })
            .map_err(|error| format!("cannot start the shell: {error}"))
    }

    /// The process ID of the shell.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the shell ended; `None` if it still runs.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|error| error.to_string())
    }

    /// Waits for the end, at most for `limit`. Returns `None` if the user ended the bench meanwhile.
    fn wait(
        &mut self,
        slot: &Slot<'_>,
        limit: Duration,
    ) -> Result<Option<(ExitStatus, Time)>, String> {
        let line = |error: std::io::Error| error.to_string();
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        let handle = handle.map_err(|errno| line(errno.into()))?;
        let begin = Instant::now();
        let mut time = Time::default();
        loop {
            // The last look is a little early: a thread that has ended reports nothing any more.
            let waits = Waits::of_process(self.child.id());
            time.kept_waiting = time.kept_waiting.max(waits.since(&Waits::default()));
            let mut ended = [PollFd::new(&handle, PollFlags::IN)];
            match poll(&mut ended, Some(&BETWEEN_LOOKS)) {
                // The call may end with a signal. The check below sees whether that ends the bench.
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(line(errno.into())),
            }
            time.elapsed = begin.elapsed();
            if let Some(status) = self.ended()? {
                return Ok(Some((status, time)));
            }
            if slot.is_stopped() {
                return Ok(None);
            }
            if time.elapsed > limit {
                return Err(format!("still running after {} s, ended", limit.as_secs()));
            }
        }
    }
}

impl Engine for Peer {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        // Programs take whole seconds.
        let seconds = slot.length().as_secs().max(1);
        let output = Output::new()?;
        let command = self.placeholders.fill(&self.command);
        let command = command.replace("{seconds}", &seconds.to_string());
        let (namespace, sink) = (Some(&self.namespace), || output.sink());
        let mut running = Running::start(&command, namespace, sink, Affinity::Inherited)?;
        let limit = Duration::from_secs(seconds * 3 + 10);
        let Some((status, mut time)) = running.wait(slot, limit)? else {
            return Ok(Tally::default());
        };
        if !status.success() {
            return Err(output.failure(status));
        }
        let text = output.text()?;
        let bytes = match self.figure.read(&text)? {
            // The program's own clock ran on while the program was kept waiting, and so does this one.
            Reading::Rate(rate) => {
                if self.command.contains("{seconds}") {
                    // The program sent for this long, whatever its start and end took.
                    time.elapsed = time.elapsed.min(Duration::from_secs(seconds));
                }
                rate * time.elapsed.as_secs_f64()
            }
            Reading::Total(total) => total,
        };
        Ok(Tally { bytes: bytes as u64, cpu: Cpu::Unknown, time: Some(time), ..Tally::default() })
    }

    fn warms_up(&self) -> bool {
        false
    }

    fn counts_bytes(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::atomic::AtomicBool};

    use handoff_testbed::topology_or_skip;

    use super::*;

    fn read(pattern: Option<&str>, unit: Option<&str>, output: &str) -> Result<Reading, String> {
        Figure::new(pattern, unit).unwrap().read(output)
    }

    #[test]
    fn the_default_pattern_takes_the_last_rate() {
        let output = "1 s: 10 MB/s\n2 s: 12.5 MB/s, 100 requests\n";
        assert_eq!(read(None, None, output), Ok(Reading::Rate(12.5e6)));
        let iperf = "[  5]   0.00-1.00   sec  1.10 GBytes  9.42 Gbits/sec    0   receiver";
        assert_eq!(read(None, None, iperf), Ok(Reading::Rate(9.42e9 / 8.0)));
        assert_eq!(read(None, None, "3 GiB/s"), Ok(Reading::Rate(3.0 * 1_073_741_824.0)));
        assert!(read(None, None, "12 packets").unwrap_err().contains("matches"));
    }

    #[test]
    fn a_given_unit_corrects_the_printed_one() {
        let output = "packets=10 (MB=5), rps=100 (MB/s=2000)";
        let pattern = Some(r"(?P<unit>MB/s)=(?P<value>\d+)");
        assert_eq!(read(pattern, None, output), Ok(Reading::Rate(2e9)));
        assert_eq!(read(pattern, Some("MiB/s"), output), Ok(Reading::Rate(2_000.0 * 1_048_576.0)));
        assert_eq!(read(Some(r"rps=(\d+)"), Some("kB/s"), output), Ok(Reading::Rate(1e5)));
        assert!(read(Some(r"rps=(\d+)"), None, output).unwrap_err().contains("unit"));
    }

    #[test]
    fn a_unit_without_time_is_a_total() {
        let output = "tx=1000 (64 MB) txc=1000 zc=y";
        let pattern = Some(r"\((\d+) (MB)\)");
        assert_eq!(read(pattern, None, output), Ok(Reading::Total(64e6)));
        assert_eq!(read(pattern, Some("MiB"), output), Ok(Reading::Total(64.0 * 1_048_576.0)));
    }

    #[test]
    fn wrong_patterns_and_units_are_named() {
        assert!(Figure::new(Some("("), None).is_err());
        assert!(Figure::new(Some("no group"), None).unwrap_err().contains("group"));
        assert!(Figure::new(None, Some("furlongs")).unwrap_err().contains("furlongs"));
    }

    fn peer(namespace: Namespace, command: &str) -> Peer {
        Peer {
            command: command.into(),
            figure: Figure::new(None, None).unwrap(),
            placeholders: Placeholders(
                [("addr", "10.0.0.1"), ("port", "9"), ("bytes", "77"), ("cpu", "0")]
                    .map(|(name, value)| (name, value.to_owned()))
                    .to_vec(),
            ),
            namespace,
            receiver: None,
        }
    }

    #[test]
    fn needs_root_a_peer_runs_with_its_placeholders_filled() {
        let namespace = topology_or_skip!(Namespace::new());
        let stop = AtomicBool::new(false);
        let slot = Slot::new(Duration::from_millis(10), &stop);
        let command = "test {addr}:{port}:{seconds}:{cpu} = 10.0.0.1:9:1:0 && echo {bytes} MB/s";
        let tally = peer(namespace.clone(), command).run(&slot).unwrap();
        let rate = tally.bytes as f64 / tally.time.unwrap().elapsed.as_secs_f64();
        assert!((rate - 77e6).abs() < 1e5, "{rate}");

        let lingers = ": {seconds}; sleep 1.2; echo {bytes} MB/s";
        let tally = peer(namespace.clone(), lingers).run(&slot).unwrap();
        assert_eq!((tally.bytes, tally.time.unwrap().elapsed.as_secs_f64()), (77_000_000, 1.0));

        let error = peer(namespace, "echo first; echo broken; exit 3").run(&slot).unwrap_err();
        assert!(error.contains('3') && error.ends_with("broken"), "{error}");
    }

    #[test]
    fn needs_root_a_receiver_lives_as_long_as_its_owner() {
        let namespace = topology_or_skip!(Namespace::new());
        let start = |command| Receiver::start(command, &namespace, Some(9), Affinity::All);
        let error = start("echo broken >&2; exit 3").unwrap_err();
        assert!(error.ends_with("ended: exit status: 3: broken"), "{error}");
        // The test listens in place of the receiver.
        let _listener = namespace.run(|| TcpListener::bind("[::]:9")).unwrap().unwrap();
        let receiver = start("exec sleep 3600").unwrap();
        let process = receiver._running.child.id();
        let exists = || std::path::Path::new(&format!("/proc/{process}")).exists();
        assert!(exists());
        drop(receiver);
        assert!(!exists());
    }

    #[test]
    fn needs_root_a_peer_ends_when_the_bench_is_stopped() {
        let namespace = topology_or_skip!(Namespace::new());
        let stop = AtomicBool::new(true);
        let slot = Slot::new(Duration::from_millis(10), &stop);
        assert_eq!(peer(namespace, "sleep infinity").run(&slot), Ok(Tally::default()));
    }
}
