//! Watches the kernel's console for reports that something is wrong with the kernel.
//!
//! Contracts:
//! - only what the kernel prints about itself is a [`Fault`]: warnings, oopses, sanitizer and
//!   lock reports, stalls, hung tasks, panics; an ordinary error message is not;
//! - the first report is kept with the two lines before it, which contain a warning's text, and with the
//!   lines after it; the last lines, and those of the running command, are always kept.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::wire::MARK;

/// Lines kept from the first report on.
const REPORT_LINES: usize = 80;
/// Lines kept of what came before it.
const LINES_BEFORE: usize = 2;
/// Lines kept of the end.
const LAST_LINES: usize = 30;

/// Lines kept of one command; the first ones go.
const COMMAND_LINES: usize = 1000;

/// How the first line of a report begins, after its time stamp.
const BEGINNINGS: [&str; 17] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops: ",
    "Kernel panic - not syncing",
    "general protection fault",
    "stack segment: ",
    "invalid opcode: ",
    "divide error: ",
    "double fault: ",
    "traps: PANIC",
    "UBSAN: ",
    "unregister_netdevice: waiting for ",
    "watchdog: BUG: ",
    "watchdog: Watchdog detected hard LOCKUP",
    "INFO: trying to register non-static key",
    "DEBUG_LOCKS_WARN_ON",
];

/// A report of the kernel about itself.
///
/// [`Outcome`](crate::Outcome) and [`Guest::power_off`](crate::Guest::power_off) report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What happened: the report's first line without its time stamp.
    pub headline: String,
    /// The report as it stood on the console, with what came just before it.
    pub lines: Vec<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.lines.join("\n"))
    }
}

/// The state of a console, shared by the thread that reads it and those that ask.
#[derive(Debug, Default)]
pub(crate) struct Console {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    partial: Vec<u8>,
    last: VecDeque<String>,
    /// Those since the end of the last command that ended.
    running: VecDeque<String>,
    /// Those of the command with the number `mark`.
    ended: VecDeque<String>,
    fault: Option<Fault>,
    /// Number of the last command whose end was seen.
    mark: u32,
    closed: bool,
}

impl Console {
    /// Takes the guest's output; returns the complete lines for display.
    pub(crate) fn feed(&self, bytes: &[u8]) -> Vec<String> {
        let mut state = self.lock();
        let mut shown = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                state.partial.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&state.partial).trim_end().to_owned();
            state.partial.clear();
            if state.line(&line) {
                shown.push(line);
            }
        }
        self.changed.notify_all();
        shown
    }

    /// The guest will write no more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for everything that was written before the end of command `number`.
    pub(crate) fn wait_for_mark(&self, number: u32, timeout: Duration) {
        self.wait(timeout, |state| state.mark >= number);
    }

    /// Waits until the guest writes no more.
    pub(crate) fn wait_for_close(&self, timeout: Duration) {
        self.wait(timeout, |_| false);
    }

    /// Returns the first report since the last call, and forgets it.
    pub(crate) fn take_fault(&self) -> Option<Fault> {
        self.lock().fault.take()
    }

    /// Whether the kernel has given up: it is about to reset the machine.
    pub(crate) fn panicked(&self) -> bool {
        self.lock().fault.as_ref().is_some_and(|fault| {
            fault.lines.iter().any(|line| message(line).starts_with("Kernel panic"))
        })
    }

    /// The last lines.
    pub(crate) fn last_lines(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    /// The lines printed while a command ran, its end included if that was seen.
    pub(crate) fn of_command(&self, number: u32) -> Vec<String> {
        let state = self.lock();
        let lines = if state.mark >= number { &state.ended } else { &state.running };
        lines.iter().cloned().collect()
    }

    fn wait(&self, timeout: Duration, done: impl Fn(&State) -> bool) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !done(&state) && !state.closed {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
            let (next, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            state = next;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements of `feed`.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Takes one line; false for those that only concern our two ends.
    fn line(&mut self, line: &str) -> bool {
        if let Some(number) = message(line).strip_prefix(MARK) {
            self.mark = number.trim().parse().unwrap_or(self.mark);
            self.ended = mem::take(&mut self.running);
            return false;
        }
        for (kept, most) in [(&mut self.last, LAST_LINES), (&mut self.running, COMMAND_LINES)] {
            if kept.len() == most {
                kept.pop_front();
            }
            kept.push_back(line.to_owned());
        }
        match &mut self.fault {
            Some(fault) if fault.lines.len() < REPORT_LINES => fault.lines.push(line.to_owned()),
            Some(_) => {}
            None if begins_report(message(line)) => {
                // This line is among the last ones already.
                let first = self.last.len().saturating_sub(LINES_BEFORE + 1);
                let lines = self.last.range(first..).cloned().collect();
                self.fault = Some(Fault { headline: message(line).to_owned(), lines });
            }
            None => {}
        }
        true
    }
}

/// A console line without its time stamp and, where the kernel prints it, its caller.
fn message(line: &str) -> &str {
    let mut rest = line;
    while let Some((bracket, tail)) = rest.strip_prefix('[').and_then(|tail| tail.split_once(']')) {
        if !bracket.trim().starts_with(|c: char| c.is_ascii_digit() || c == 'T' || c == 'C') {
            break;
        }
        rest = tail.trim_start();
    }
    rest
}

fn begins_report(message: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| message.starts_with(beginning))
        || (message.starts_with("INFO: task ") && message.contains(" blocked for more than "))
        || (message.starts_with("rcu: INFO: ") && message.contains("stall"))
        || (message.starts_with("kmemleak: ") && message.contains("new suspected memory leak"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_of(text: &str) -> Option<Fault> {
        let console = Console::default();
        // In pieces, as a serial port delivers it.
        for piece in text.as_bytes().chunks(7) {
            console.feed(piece);
        }
        console.take_fault()
    }

    #[test]
    fn reports_are_faults() {
        for line in [
            "[    5.000000] WARNING: CPU: 0 PID: 1 at fs/x.c:1 f+0x1/0x2",
            "[    5.000000][  T12] WARNING: fs/x.c:1 at f+0x1/0x2, CPU#0: sh/12",
            "[   12.345678] WARNING: possible circular locking dependency detected",
            "[   12.345678] BUG: KASAN: slab-use-after-free in f+0x1/0x2",
            "[   12.345678] BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "[   12.345678] Oops: Oops: 0002 [#1] SMP NOPTI",
            "[   12.345678] Kernel panic - not syncing: sysrq triggered crash",
            "[  122.345678] INFO: task sync:99 blocked for more than 60 seconds.",
            "[  122.345678] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "[  122.345678] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [sh:1]",
            "[  122.345678] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
        ] {
            let fault = fault_of(&format!("[    1.0] before\n{line}\nafter\n"));
            assert_eq!(fault.expect(line).lines, ["[    1.0] before", line, "after"]);
        }
    }

    #[test]
    fn ordinary_messages_are_not() {
        for line in [
            "[    0.1] Linux version 7.2.12",
            "[    5.0] EXT4-fs warning (device vda): something",
            "[    5.0] INFO: lockdep is turned off.",
            "[    5.0] handoff: WARNING: of a program",
            "[    5.0] module verification failed: signature and/or required key missing",
        ] {
            assert_eq!(fault_of(&format!("{line}\n")), None);
        }
    }

    #[test]
    fn a_mark_orders_reports_and_is_not_shown() {
        let console = Console::default();
        let shown = console.feed(format!("[ 1.0] a\n[ 1.1] {MARK}3\n").as_bytes());
        assert_eq!(shown, ["[ 1.0] a"]);
        console.wait_for_mark(3, Duration::from_secs(60));
        assert_eq!(console.last_lines(), ["[ 1.0] a"]);
    }

    #[test]
    fn a_panic_is_told_from_a_warning() {
        let console = Console::default();
        console.feed(b"[ 1.0] WARNING: x\n");
        assert!(!console.panicked());
        console.feed(b"[ 1.1] Kernel panic - not syncing: y\n");
        assert!(console.panicked());
        assert_eq!(console.take_fault().expect("a report").headline, "WARNING: x");
    }
}
