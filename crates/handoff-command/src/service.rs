//! Messages between systemd and a service that it runs. Outside of systemd this does nothing.
//!
//! Kernel interface: none; `sd_notify(3)` and `sd_listen_fds(3)`.

use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;

use crate::failure::Failure;

/// Reports that the service is ready, in words.
pub fn ready(what: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// Reports what a service that is not ready yet is doing. systemd waits a minute more.
pub fn starting(what: &str) {
    notify(&[NotifyState::Status(what), NotifyState::ExtendTimeoutUsec(60_000_000)]);
}

/// Reports what the service is doing.
pub fn status(what: &str) {
    notify(&[NotifyState::Status(what)]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd is not told");
    }
}

/// Whether systemd, which runs this process, ends the machine.
pub fn machine_ends() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
        && Command::new("systemctl")
            .arg("is-system-running")
            .output()
            .is_ok_and(|said| said.stdout.starts_with(b"stopping"))
}

/// The one socket that systemd has opened for this process, at the first call of this or of [`sockets`].
///
/// # Errors
///
/// If there are several.
pub fn socket() -> Result<Option<OwnedFd>, Failure> {
    let mut passed = sockets()?;
    match passed.len() {
        0 | 1 => Ok(passed.pop()),
        many => Err(Failure::usage(format!(
            "systemd passes {many} sockets, and one is listened on: leave one address in the .socket unit"
        ))),
    }
}

/// All sockets that systemd has opened for this process, at the first call.
///
/// # Errors
///
/// What it says of them that makes no sense.
pub fn sockets() -> Result<Vec<OwnedFd>, Failure> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let passed = sd_notify::listen_fds()
        .map_err(|error| Failure::failed(format!("the sockets that systemd passes: {error}")))?;
    // SAFETY: systemd has opened them for this process, and they are taken once.
    Ok(passed.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect())
}
