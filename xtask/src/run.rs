//! Runs a command and reads its output line by line, up to a deadline.
//!
//! Contracts:
//! - standard output and standard error arrive in the order in which they were written;
//! - the command runs in a process group of its own; at the deadline and on SIGINT, SIGTERM or SIGHUP
//!   the whole group gets SIGTERM, and SIGKILL five seconds later; if we are killed, it is killed at
//!   once.

use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use handoff_sys::hangup;
use handoff_testbed::die_with_us;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
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
    let (mut reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).process_group(0);
    die_with_us(command, Signal::KILL);
    let mut child = command.spawn()?;
    // The command holds the write end too: let go of it, or the end of the output never comes.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let group = Pid::from_child(&child);
    // What has come, from the beginning of a line on.
    let mut text = Vec::new();
    let mut ending: Option<(End, Instant)> = None;
    let mut gone = false;
    loop {
        if has_come(&reader)? {
            let mut bytes = [0; 1 << 13];
            match reader.read(&mut bytes)? {
                0 => break,
                count => text.extend_from_slice(&bytes[..count]),
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                take(&String::from_utf8_lossy(&text[..end]));
                text.drain(..=end);
            }
        } else if gone {
            // A grandchild that left the group may keep the pipe open for ever.
            break;
        } else {
            // Its last output may lie in the pipe.
            gone = child.try_wait()?.is_some();
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
    if !text.is_empty() {
        take(&String::from_utf8_lossy(&text));
    }
    let status = child.wait()?;
    Ok(match ending {
        Some((end, _)) => end,
        None if status.success() => End::Success,
        None => End::Failure(status.code()),
    })
}

/// Waits a moment for output, or its end; tells whether it is there.
fn has_come(reader: &PipeReader) -> io::Result<bool> {
    let mut waiting = [PollFd::new(reader, PollFlags::IN)];
    let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    Ok(retry_on_intr(|| poll(&mut waiting, Some(&look)))? > 0)
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
    fn the_last_line_needs_no_end() {
        let (end, seen) = shell("printf 'a\\nb'", LONG, false);
        assert_eq!((end, seen), (End::Success, ["a", "b"].map(str::to_owned).to_vec()));
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
