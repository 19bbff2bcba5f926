//! The load: wrk(1), from the Debian package of this name, at the far end.
//!
//! Kernel interface: `/proc/PID/net/netstat` and `snmp`, which count what arrives in wrk's namespace.

use std::{
    fs,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{Job, testbed::Testbed};
use crate::{
    measure::Slot,
    network::{TIMEOUT, program::installed},
    peer::{Affinity, Output, Running},
    processor::Waits,
};

/// Bytes of a packet's IP and TCP headers, with the time stamps that Linux sends in all but the first.
const HEADERS: u64 = 20 + 20 + 12;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// A running wrk.
pub(super) struct Wrk {
    running: Running,
    output: Output,
}

/// Checks that wrk is installed.
///
/// # Errors
///
/// The errors of [`installed`].
pub(super) fn must_be_there() -> Result<(), String> {
    installed("wrk").map(drop)
}

impl Wrk {
    /// Starts wrk, which sends requests as long as this value lives.
    ///
    /// # Errors
    ///
    /// One line that says why wrk does not start.
    pub(super) fn start(
        testbed: &Testbed,
        address: (Ipv4Addr, u16),
        job: Job,
    ) -> Result<Self, String> {
        let (address, port) = address;
        let Job { size, connections } = job;
        let program = installed("wrk")?;
        let command = format!(
            "exec '{}' --threads 1 --connections {connections} --duration 1h --timeout 60s \
             http://{address}:{port}/{size}",
            program.display()
        );
        let network = testbed.network();
        let namespace = network.connecting().namespace();
        let output = Output::new()?;
        let affinity = Affinity::Only(network.others());
        let running = Running::start(&command, Some(namespace), || output.sink(), affinity)?;
        Ok(Self { running, output })
    }

    /// The bytes of streams that have arrived at wrk so far.
    ///
    /// # Errors
    ///
    /// One line that says that the kernel does not report them.
    pub(super) fn arrived(&self) -> Result<u64, String> {
        let table = |name: &str| {
            let path = format!("/proc/{}/net/{name}", self.running.id());
            fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))
        };
        let bytes = counter(&table("netstat")?, "IpExt:", "InOctets");
        let packets = counter(&table("snmp")?, "Ip:", "InReceives");
        let counted = bytes.zip(packets);
        let (bytes, packets) = counted.ok_or("the kernel does not count what arrives")?;
        Ok(bytes.saturating_sub(packets * HEADERS))
    }

    /// How long wrk has run, and how long it was kept waiting so far.
    pub(super) fn waits(&self) -> Waits {
        Waits::of_process(self.running.id())
    }

    /// Fails if wrk has ended, or the bench must end.
    ///
    /// # Errors
    ///
    /// One line that says which of them it was, and why wrk ended.
    pub(super) fn must_run(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        if slot.is_stopped() {
            return Err("stopped".to_owned());
        }
        match self.running.ended()? {
            Some(status) => Err(format!("wrk ended: {}", self.output.failure(status))),
            None => Ok(()),
        }
    }

    /// Ends wrk.
    ///
    /// # Errors
    ///
    /// One line with wrk's report of failed requests.
    pub(super) fn end(mut self) -> Result<(), String> {
        let process = Pid::from_raw(self.running.id() as i32).ok_or("wrk has no process")?;
        kill_process(process, Signal::INT).map_err(|errno| format!("wrk: {errno}"))?;
        let begin = Instant::now();
        while self.running.ended()?.is_none() {
            if begin.elapsed() > TIMEOUT {
                return Err(format!("wrk does not end for {TIMEOUT:?}"));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
        complaint(&self.output.text()?).map_or(Ok(()), Err)
    }
}

/// The value of `name` in `group`, which has a line of names and then a line of values, as in both files.
fn counter(table: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter(|line| line.starts_with(group));
    let (titles, values) = (lines.next()?, lines.next()?);
    let place = titles.split_whitespace().position(|title| title == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

/// wrk's own report of errors; `None` if there were none.
fn complaint(output: &str) -> Option<String> {
    let mut lines = output.lines().map(str::trim);
    lines
        .find(|line| line.starts_with("Socket errors") || line.starts_with("Non-2xx"))
        .map(|line| format!("wrk says: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let table = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets\nIpExt: 3 4\n";
        assert_eq!(counter(table, "IpExt:", "InOctets"), Some(4));
        assert_eq!(counter(table, "TcpExt:", "A"), Some(1));
        assert_eq!(counter(table, "IpExt:", "A"), None);
        assert_eq!(counter("", "IpExt:", "A"), None);
        let own = fs::read_to_string("/proc/net/snmp").unwrap();
        assert!(counter(&own, "Ip:", "InReceives").is_some());
    }

    #[test]
    fn what_went_wrong_is_told() {
        let output =
            "Running 1h test @ http://127.0.0.1:8080/\n  10 requests in 1.00s, 1.00MB read\n";
        assert_eq!(complaint(output), None);
        let errors = format!("{output}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert_eq!(
            complaint(&errors).unwrap(),
            "wrk says: Socket errors: connect 0, read 3, write 0, timeout 0"
        );
        assert!(complaint(&format!("{output}  Non-2xx or 3xx responses: 9\n")).is_some());
    }
}
