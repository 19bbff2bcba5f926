//! Children that end with their parent.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Sends the child this signal when the thread that starts it ends, in any way.
pub fn die_with_us(command: &mut Command, signal: Signal) {
    let us = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(signal))?;
            // The parent may have died before the request.
            if rustix::process::getppid() != Some(us) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}
