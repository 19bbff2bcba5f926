//! Reports where the guest's tasks stand, for a host whose command does not end.
//!
//! Contracts:
//! - the report has the threads of all user processes but our own two, and those kernel threads that run
//!   or wait uninterruptibly;
//! - it leaves out a task that vanishes meanwhile, and anything that `/proc` does not tell;
//! - it ends in time and fits into a message: if a file of `/proc` does not answer, or there are more
//!   tasks than fit, the text is cut short, and says so.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::proc::{Stat, describe};
use crate::wire;

/// How long `/proc` may take; shorter than the host waits for the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the text may be; the rest of a message is for the command's number and the last line.
const ROOM: usize = wire::LONGEST - 128;

/// A line or two for each task.
pub(crate) fn tell() -> String {
    let (sender, found) = mpsc::channel();
    // Reading files of a stuck task may get stuck too.
    if let Err(error) = thread::Builder::new().spawn(move || look(&sender)) {
        return format!("no thread could be started to look at the tasks: {error}\n");
    }
    let deadline = Instant::now() + TIMEOUT;
    let mut text = String::new();
    let cut = loop {
        match found.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(task) if text.len() + task.len() <= ROOM => text.push_str(&task),
            Ok(_) => break "there are more tasks",
            Err(RecvTimeoutError::Timeout) => break "/proc did not tell of the others in time",
            Err(RecvTimeoutError::Disconnected) => return text,
        }
    };
    text + cut + "\n"
}

fn look(found: &Sender<String>) {
    let ours = [1, std::process::id()];
    for process in numbers("/proc").into_iter().filter(|process| !ours.contains(process)) {
        for thread in numbers(&format!("/proc/{process}/task")) {
            if task(process, thread).is_some_and(|task| found.send(task).is_err()) {
                return;
            }
        }
    }
}

fn task(process: u32, thread: u32) -> Option<String> {
    let read = |file: &str| {
        let bytes = fs::read(format!("/proc/{process}/task/{thread}/{file}")).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let stat = Stat::parse(&read("stat")?)?;
    if stat.of_kernel && !matches!(stat.state, 'R' | 'D') {
        return None;
    }
    // Kernel threads make no system calls.
    let call = if stat.of_kernel { None } else { read("syscall") };
    Some(describe(process, thread, &stat, call.as_deref(), read("stack").as_deref()))
}

/// The entries of a directory that are numbers, in order.
fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
