//! Both sides of a stress, and what they say.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Output, Stdio};

use handoff_lab::topology::PairEnd;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs `handoff rds` at one end of the pair.
pub(crate) fn rds(end: &PairEnd, arguments: &[&str]) -> Output {
    command(end, arguments).output().expect("starts")
}

pub(crate) fn command(end: &PairEnd, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    end.namespace().attach(command.arg("rds").args(arguments));
    command
}

/// What the command printed, which ended well.
pub(crate) fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An answering side; killed when it is dropped.
pub(crate) struct Answering(Child);

impl Answering {
    /// Returns once it answers.
    pub(crate) fn start(end: &PairEnd, engine: &str) -> Self {
        Self::at(end, end.v4(), &["--engine", engine])
    }

    /// At one of the addresses of this end.
    pub(crate) fn at(end: &PairEnd, own: Ipv4Addr, more: &[&str]) -> Self {
        let own = own.to_string();
        let mut child = command(end, &[&["stress", &own, "--json"], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut said = String::new();
        let mut errors = BufReader::new(child.stderr.as_mut().expect("piped"));
        while !said.contains("answering") {
            assert!(errors.read_line(&mut said).expect("reads") > 0, "{said}");
        }
        Self(child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("is there");
    }

    /// Interrupts it; gives its exit code and report.
    pub(crate) fn stop(mut self) -> (Option<i32>, Value) {
        self.signal(Signal::INT);
        let mut text = String::new();
        self.0.stdout.take().expect("piped").read_to_string(&mut text).expect("reads");
        let status = self.0.wait().expect("ends");
        (status.code(), serde_json::from_str(&text).expect("JSON"))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // Both fail where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
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
    let patient = ["--timeout", "100"];
    let asked = report(&rds(left, &[&base[..], engine, &patient, more].concat()));
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
