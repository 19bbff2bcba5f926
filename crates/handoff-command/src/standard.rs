//! Standard input and output, as this process was given them.
//!
//! Contract: one that was closed is an error, and not /dev/null, which the runtime of Rust opens in its place before
//! `main`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::failure::{Failed as _, Failure};

/// Standard input and output were closed when this process began.
static CLOSED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// Called before the runtime of Rust, which opens what is closed.
// SAFETY: the section holds addresses of functions that are called without waiting for anything of ours; `look` needs
// nothing that is set up later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for (number, closed) in (0..).zip(&CLOSED) {
        // SAFETY: the call takes a number, and changes nothing.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        closed.store(flags < 0, Ordering::Relaxed);
    }
}

/// Standard input.
///
/// # Errors
///
/// When it is closed.
pub fn input() -> Result<OwnedFd, Failure> {
    given(0, io::stdin().as_fd().try_clone_to_owned(), "standard input can't be used")
}

/// Standard output.
///
/// # Errors
///
/// When it is closed.
pub fn output() -> Result<OwnedFd, Failure> {
    given(1, io::stdout().as_fd().try_clone_to_owned(), "standard output can't be used")
}

fn given(number: usize, fd: io::Result<OwnedFd>, action: &str) -> Result<OwnedFd, Failure> {
    if CLOSED[number].load(Ordering::Relaxed) {
        return Err(Errno::BADF).failed(action);
    }
    fd.failed(action)
}
