//! Both sides of a stress, and what they say.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use handoff_testbed::running::{Ended, Running, TIMEOUT};
use handoff_testbed::{Pair, PairEnd};
use rustix::process::Signal;
use serde_json::Value;

/// Runs `handoff rds` at one end of the pair.
pub(crate) fn rds(end: &PairEnd, arguments: &[&str]) -> Ended {
    Running::start(&mut command(end, arguments)).end()
}

pub(crate) fn command(end: &PairEnd, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    end.namespace().attach(command.arg("rds").args(arguments));
    command
}

/// What `rds stress` sends to ask for an answer of so many bytes.
pub(crate) fn request(number: u64, answer: u32) -> Vec<u8> {
    [b"hoRQ".as_slice(), &answer.to_le_bytes(), &number.to_le_bytes()].concat()
}

/// An answering side; killed when it is dropped.
pub(crate) struct Answering(Running);

impl Answering {
    /// Returns once it answers.
    pub(crate) fn start(end: &PairEnd, engine: &str) -> Self {
        Self::at(end, end.v4(), &["--engine", engine])
    }

    /// At one of the addresses of this end.
    pub(crate) fn at(end: &PairEnd, own: Ipv4Addr, more: &[&str]) -> Self {
        let own = own.to_string();
        let answers = [&["stress", &own, "--json"], more].concat();
        let running = Running::start(&mut command(end, &answers));
        running.line("answering");
        Self(running)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Interrupts it.
    pub(crate) fn end(self) -> Ended {
        self.signal(Signal::INT);
        self.0.end()
    }

    /// Interrupts it; gives its exit code and report.
    pub(crate) fn stop(self) -> (Option<i32>, Value) {
        let ended = self.end();
        (ended.code, ended.json())
    }
}

/// A stress of so many seconds from one end to the other, with an engine that both are told of in these options; both
/// reports.
pub(crate) fn stress(
    left: &PairEnd,
    right: &PairEnd,
    engine: &[&str],
    seconds: u32,
    more: &[&str],
) -> [Value; 2] {
    let answering = Answering::at(right, right.v4(), engine);
    let [own, peer] = [left, right].map(|end| end.v4().to_string());
    let time = seconds.to_string();
    // A busy machine may have nobody answer for a while.
    let base = ["stress", &own, "-s", &peer, "--json", "--time", &time];
    let timeout = ["--timeout", "100"];
    let asked = rds(left, &[&base[..], engine, &timeout, more].concat()).report();
    let (code, answered) = answering.stop();
    assert_eq!(code, Some(130));
    assert_eq!((&asked["corrupt"], &answered["corrupt"]), (&0.into(), &0.into()));
    // Nobody was restarted.
    assert_eq!(asked["lost"], 0, "{asked}");
    assert!(asked["messages"].as_u64() > Some(0), "{asked}");
    assert!(answered["messages"].as_u64() >= asked["messages"].as_u64(), "{answered}");
    let latency = &asked["latency_us"];
    assert!(latency["p50"].as_f64() > Some(0.0), "{asked}");
    assert!(latency["p999"].as_f64() >= latency["p50"].as_f64(), "{asked}");
    [asked, answered]
}

/// Counts the pings from the left end that get no answer: the first, since `answering` stands still.
pub(crate) fn loses_pings(pair: &Pair, answering: &Answering, engine: &str) {
    answering.signal(Signal::STOP);
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["ping", &own, &peer, "-c", "3", "--engine", engine, "--timeout", "2"];
    let mut ping = command(&pair.left, &asks).stdout(Stdio::piped()).spawn().expect("starts");
    let mut printed = BufReader::new(ping.stdout.take().expect("piped")).lines();
    let mut next = || printed.next().expect("a line").expect("reads");
    assert_eq!(next(), "1: no answer within 2 s");
    answering.signal(Signal::CONT);
    let (second, third, last) = (next(), next(), next());
    assert!(ping.wait().expect("ends").success());
    let lost = 1 + [&second, &third].iter().filter(|line| line.contains("no answer")).count();
    assert!(lost < 3 && last == format!("{lost} of 3 lost"), "{second}, {third}, {last}");
}

/// Packets that have come to this end.
fn packets(end: &PairEnd) -> u64 {
    let table = end.namespace().run(|| fs::read_to_string("/proc/thread-self/net/dev"));
    let table = table.expect("enters").expect("reads");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(end.device()));
    let mut figures = line.expect("its line").trim_start_matches(':').split_whitespace();
    figures.nth(1).expect("bytes, packets").parse().expect("a number")
}

/// Waits until the two talk.
pub(crate) fn many_packets_come_to(end: &PairEnd) {
    let enough = packets(end) + 500;
    let deadline = Instant::now() + TIMEOUT;
    while packets(end) < enough {
        assert!(Instant::now() < deadline, "{} of {enough} packets", packets(end));
        thread::sleep(Duration::from_millis(5));
    }
}

/// Each end in turn asks the other, which is killed meanwhile and started again: the requests go on, and those that
/// were lost are sent again.
pub(crate) fn goes_on_after_a_restart(pair: &Pair, engine: &str) {
    // Either side connects to the other.
    for [from, to] in [[&pair.left, &pair.right], [&pair.right, &pair.left]] {
        let first = Answering::start(to, engine);
        let [own, peer] = [from, to].map(|end| end.v4().to_string());
        let asks = ["stress", &own, "-s", &peer, "--engine", engine, "--json", "--time", "200"];
        let more = ["-t", "2", "-d", "8", "--timeout", "100"];
        let mut asking = command(from, &[&asks[..], &more].concat());
        let asking = Running::start(&mut asking);
        many_packets_come_to(to);
        drop(first);
        let second = Answering::start(to, engine);
        many_packets_come_to(to);
        asking.signal(Signal::INT);
        let asked = asking.end();
        assert_eq!(asked.code, Some(130), "{}", asked.stderr);
        let asked = asked.json();
        let (_, answered) = second.stop();
        assert_eq!((&asked["corrupt"], &answered["corrupt"]), (&0.into(), &0.into()), "{asked}");
        assert!(answered["messages"].as_u64() > Some(16), "{answered}");
        assert!(asked["asked_again"].as_u64() > Some(0), "{asked}");
    }
}
