//! Signals: the first asks, the second ends. Signals belong to the process, so each case runs in a
//! copy of this program.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use handoff_command::{Failure, Stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::raise;
use terminal::{Terminal, in_its_own_session};

#[allow(dead_code, reason = "each test program uses a part")]
mod terminal;

const CASE: &str = "HANDOFF_STOP_CASE";

#[test]
fn one_signal_asks_and_two_end() {
    if let Ok(case) = std::env::var(CASE) {
        return run_case(&case);
    }
    assert_eq!(in_a_copy("asked").code(), Some(0));
    let ended = in_a_copy("ended");
    assert_eq!((ended.code(), ended.signal()), (Some(143), None));
}

#[test]
fn a_session_that_ends_asks_and_never_more() {
    let ended = in_a_copy("hung up");
    assert_eq!((ended.code(), ended.signal()), (Some(143), None));
    let mut detached = copy("detached");
    // SAFETY: between fork and exec only sigaction, which is safe there.
    unsafe { detached.pre_exec(handoff_sys::hangup::ignore) };
    assert_eq!(detached.status().expect("the copy starts").code(), Some(0));
}

#[test]
fn a_terminal_that_is_gone_is_survived() {
    let Terminal { ours, theirs } = Terminal::new();
    let mut command = copy("terminal gone");
    // What the test program itself has to say goes elsewhere.
    command.stderr(theirs.try_clone().expect("duplicates"));
    command.arg("--nocapture").stdin(theirs);
    in_its_own_session(&mut command);
    let mut child = command.spawn().expect("the copy starts");
    drop(command);
    // It has its handlers once it says so.
    let mut terminal = ours;
    let mut output = Vec::new();
    while !output.ends_with(b"ready\r\n") {
        let mut byte = [0];
        terminal.read_exact(&mut byte).expect("it lives");
        output.push(byte[0]);
    }
    drop(terminal);
    let ended = child.wait().expect("ends");
    assert_eq!((ended.code(), ended.signal()), (Some(0), None));
}

fn copy(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "one_signal_asks_and_two_end"]).env(CASE, case);
    // However these tests were started themselves.
    // SAFETY: between fork and exec only sigaction, which is safe there.
    unsafe {
        command.pre_exec(|| {
            libc::signal(SIGHUP, libc::SIG_DFL);
            Ok(())
        })
    };
    command
}

fn in_a_copy(case: &str) -> ExitStatus {
    copy(case).status().expect("the copy starts")
}

fn run_case(case: &str) {
    let stop = Stop::on_signals().expect("handlers can be set");
    let readable = || {
        let mut waiting = [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
        poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll works") == 1
    };
    assert!(!stop.requested() && !readable());
    match case {
        "hung up" => {
            for _ in 0..3 {
                raise(SIGHUP).expect("a signal can be sent to oneself");
                assert_eq!(stop.check(), Err(Failure::Stopped(SIGHUP)));
            }
            raise(SIGTERM).expect("a signal can be sent to oneself");
            assert_eq!(stop.check(), Err(Failure::Stopped(SIGHUP)));
            raise(SIGTERM).expect("a signal can be sent to oneself");
            unreachable!("the second signal that is not the session's ends the process");
        }
        "detached" => {
            raise(SIGHUP).expect("a signal can be sent to oneself");
            return assert!(!stop.requested());
        }
        "terminal gone" => {
            eprintln!("ready");
            let mut waiting = [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
            while poll(&mut waiting, None).is_err() {}
            eprintln!("heard by nobody");
            return assert_eq!(stop.check(), Err(Failure::Stopped(SIGHUP)));
        }
        _ => {}
    }
    assert_eq!(stop.check(), Ok(()));
    let failed = || Failure::failed("interrupted");
    assert_eq!(stop.explain(failed()), failed());
    raise(SIGINT).expect("a signal can be sent to oneself");
    assert!(stop.requested() && readable() && readable());
    assert_eq!(stop.check(), Err(Failure::Stopped(SIGINT)));
    assert_eq!(stop.explain(failed()), Failure::CutShort(SIGINT, "interrupted".to_owned()));
    assert_eq!(stop.explain(Failure::usage("x")), Failure::usage("x"));
    if case == "ended" {
        raise(SIGTERM).expect("a signal can be sent to oneself");
        unreachable!("the second signal ends the process");
    }
}
