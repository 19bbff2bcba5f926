//! Signals: the first asks, the second ends. Signals belong to the process, so each case runs in a
//! copy of this program.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use handoff_cli::{Failure, Stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::raise;

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

fn in_a_copy(case: &str) -> ExitStatus {
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "one_signal_asks_and_two_end"])
        .env(CASE, case)
        .status()
        .expect("the copy starts")
}

fn run_case(case: &str) {
    let stop = Stop::on_signals().expect("handlers can be set");
    let readable = || {
        let mut waiting = [PollFd::from_borrowed_fd(stop.fd(), PollFlags::IN)];
        poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll works") == 1
    };
    assert!(!stop.requested() && !readable());
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
