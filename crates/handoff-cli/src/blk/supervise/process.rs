//! The processes behind a device: how they are started, what they say first, and when they end.

use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use handoff_block::state::Directory;
use handoff_command::stop::Stop;
use handoff_command::{Context, Failure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::task::{Answer, NoServer, Task};
use crate::blk::{ending, starting};

/// Starts a supervisor that outlives this process, and returns the device's number. Until it serves, it ends when this
/// process is asked to end. It has nothing open that this process was given.
pub(in crate::blk) fn detach(task: &Task, context: &Context) -> Result<u32, Failure> {
    let mut command = process("supervise", task)?;
    command.stderr(Stdio::null()).current_dir("/");
    // SAFETY: between fork and exec only setsid, close_range and sigaction, which are safe there.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            handoff_sys::inherited::keep_from_programs();
            // The signals for a session's end do not concern it either.
            handoff_sys::hangup::ignore()
        });
    }
    let stop = &context.stop;
    let mut asks = true;
    let before = |child: &Child, stdout: &ChildStdout| {
        if asks && !is_readable(stdout, stop)? {
            asks = false;
            kill_process(Pid::from_child(child), Signal::TERM).map_err(io::Error::from)?;
        }
        Ok(())
    };
    let answered = spawn(command).and_then(|child| hear(child, before, starting::bar(context)));
    // A device that it may have made goes.
    stop.check()?;
    Ok(answered?.1)
}

/// Gives this process its program's name, which it lacks when it was started from [`ending::PROGRAM`].
pub(super) fn call_it_handoff() {
    // Only who looks at processes sees it.
    let _ = rustix::thread::set_name(c"handoff");
}

fn process(role: &str, task: &Task) -> Result<Command, Failure> {
    let task = serde_json::to_string(task).map_err(Failure::failed)?;
    let mut command = Command::new(ending::PROGRAM);
    command
        .arg0(ending::SURVIVES)
        .args(["blk", role, &task])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    Ok(command)
}

/// A server. A signal to a terminal's programs does not reach it.
pub(super) fn server(task: &Task) -> Result<Command, Failure> {
    let mut command = process("serve", task)?;
    command.process_group(0);
    Ok(command)
}

/// Ends a process that has nothing to put back.
pub(super) fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Becomes readable when a process ends.
pub(super) fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    Ok(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)
}

/// The processes that have the files of a device open, and end when the device is gone.
pub(in crate::blk) fn processes(id: u32) -> Vec<OwnedFd> {
    let all = Directory::of(id).processes().into_iter();
    let all = all.filter_map(|process| Pid::from_raw(process.try_into().ok()?));
    all.filter_map(|process| pidfd_open(process, PidfdFlags::empty()).ok()).collect()
}

/// Waits until a process has ended, so long at most.
pub(in crate::blk) fn await_end(process: &OwnedFd, most: Duration) {
    let most = Timespec::try_from(most).ok();
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], most.as_ref());
}

fn spawn(mut command: Command) -> Result<Child, NoServer> {
    command.spawn().map_err(|error| NoServer {
        starved: matches!(
            error.raw_os_error(),
            Some(libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE)
        ),
        failure: Failure::failed(format!("a process cannot be started: {error}")),
    })
}

/// Starts a process and reads its line.
pub(super) fn begin(command: Command) -> Result<(Child, u32), NoServer> {
    answered(spawn(command)?)
}

/// A process that has printed its line.
pub(super) fn answered(child: Child) -> Result<(Child, u32), NoServer> {
    hear(child, |_, _| Ok(()), |_, _| {})
}

/// A process that has printed its last line. Before each is read, `before` may wait for it; `starting` hears how far it
/// is.
fn hear(
    mut child: Child,
    mut before: impl FnMut(&Child, &ChildStdout) -> io::Result<()>,
    mut starting: impl FnMut(u64, u64),
) -> Result<(Child, u32), NoServer> {
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let refused = loop {
        if stdout.buffer().is_empty() {
            before(&child, stdout.get_ref()).map_err(Failure::failed)?;
        }
        let mut line = String::new();
        // A process that ended without a word has an empty line.
        let _ = stdout.read_line(&mut line);
        match serde_json::from_str(&line) {
            Ok(Answer::Starting { done, all }) => starting(done, all),
            Ok(Answer::Serving { id }) => return Ok((child, id)),
            Ok(Answer::Refused { usage, possible, starved, line }) => {
                let failure = match (usage, possible) {
                    (true, _) => Failure::Usage(line),
                    (_, false) => Failure::NotPossible(line),
                    _ => Failure::Failed(line),
                };
                break Some(NoServer { failure, starved });
            }
            Err(_) => break None,
        }
    };
    let status = child.wait().map_err(Failure::failed)?;
    Err(refused.unwrap_or_else(|| NoServer {
        failure: Failure::failed(format!("the server ended before it served: {status}")),
        starved: is_starved(status),
    }))
}

/// Waits until there is something to read, or its end; unless we are asked to end before.
pub(super) fn is_readable(fd: impl AsFd, stop: &Stop) -> io::Result<bool> {
    let wake = stop.fd();
    while !stop.requested() {
        let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&wake, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[0].revents().is_empty() => return Ok(!stop.requested()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Whether the OOM killer may have killed a process; its signal looks like anybody's.
pub(super) fn is_starved(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}
