//! Runs a command and reads its output line by line, up to a deadline.
//!
//! Contracts:
//! - standard output and standard error arrive in the order in which they were written;
//! - the command runs in a process group of its own; at the deadline and on SIGINT, SIGTERM or SIGHUP
//!   the whole group gets SIGTERM, and SIGKILL five seconds later; if we are killed, it is killed at
//!   once.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use handoff_lab::die_with_us;
use handoff_sys::hangup;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

const LOOK: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(5);

/// The exit code of `handoff` where this machine cannot do it.
pub(crate) const NOT_POSSIBLE: i32 = 3;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    /// With its exit code, unless a signal ended it.
    Failure(Option<i32>),
    TimedOut,
    Stopped,
}

impl End {
    /// What went wrong, if anything.
    pub(crate) fn problem(self) -> Option<String> {
        Some(match self {
            Self::Success => return None,
            Self::Failure(Some(code)) => format!("ended with exit code {code}"),
            Self::Failure(None) => "was killed".to_owned(),
            Self::TimedOut => "had not ended at the time limit".to_owned(),
            Self::Stopped => "stopped by a signal".to_owned(),
        })
    }
}

/// Set by SIGINT, SIGTERM and, unless we were started to outlive the session, SIGHUP.
pub(crate) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    if !hangup::is_ignored() {
        // SAFETY: what this calls is allowed in a signal's handler.
        unsafe { signal_hook::low_level::register(SIGHUP, hangup::fall_silent) }?;
        signal_hook::flag::register(SIGHUP, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Runs `command` and hands every line to `take`.
pub(crate) fn lines(
    command: &mut Command,
    deadline: Instant,
    stop: &AtomicBool,
    mut take: impl FnMut(&str),
) -> io::Result<End> {
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).process_group(0);
    die_with_us(command, Signal::KILL);
    let mut child = command.spawn()?;
    // The command holds the write end too: let go of it, or the end of the output never comes.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let group = Pid::from_child(&child);
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { break };
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });

    let mut ending: Option<(End, Instant)> = None;
    let mut gone = false;
    loop {
        match receive.recv_timeout(LOOK) {
            Ok(line) => take(&line),
            // A grandchild that left the group may keep the pipe open for ever.
            Err(RecvTimeoutError::Timeout) if gone => break,
            // Its last output may still be on its way.
            Err(RecvTimeoutError::Timeout) => gone = child.try_wait()?.is_some(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let cut = if stop.load(Ordering::Acquire) {
            Some(End::Stopped)
        } else {
            (Instant::now() >= deadline).then_some(End::TimedOut)
        };
        match (ending, cut) {
            (None, Some(cut)) => ending = Some((cut, end(group, Signal::TERM))),
            (Some((_, since)), _) if since.elapsed() >= GRACE => {
                end(group, Signal::KILL);
            }
            _ => {}
        }
    }
    let status = child.wait()?;
    Ok(match ending {
        Some((end, _)) => end,
        None if status.success() => End::Success,
        None => End::Failure(status.code()),
    })
}

/// Signals the group; a group that is gone already is fine.
fn end(group: Pid, signal: Signal) -> Instant {
    let _ = kill_process_group(group, signal);
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, deadline: Duration, stop: bool) -> (End, Vec<String>) {
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let stop = AtomicBool::new(stop);
        let end = lines(&mut command, Instant::now() + deadline, &stop, |line| {
            seen.push(line.to_owned());
        });
        (end.expect("sh starts"), seen)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn both_streams_arrive_in_order() {
        let (end, seen) = shell("echo a; echo b >&2; echo c; exit 3", LONG, false);
        assert_eq!(
            (end, seen),
            (End::Failure(Some(3)), ["a", "b", "c"].map(str::to_owned).to_vec())
        );
        assert_eq!(shell("true", LONG, false).0, End::Success);
    }

    #[test]
    fn a_hanging_group_ends_at_the_deadline() {
        let hanging = "sleep infinity & wait";
        assert_eq!(shell(hanging, Duration::from_millis(300), false).0, End::TimedOut);
    }

    #[test]
    fn a_session_that_ends_is_heard() {
        let heard = !hangup::is_ignored();
        let stop = stop_flag().expect("handlers can be set");
        signal_hook::low_level::raise(SIGHUP).expect("a signal can be sent to oneself");
        assert_eq!(stop.load(Ordering::Acquire), heard);
    }

    #[test]
    fn a_signal_ends_the_group() {
        assert_eq!(shell("sleep infinity", LONG, true).0, End::Stopped);
    }
}
