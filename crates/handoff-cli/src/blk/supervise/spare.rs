//! The process that waits beside a device's server.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use handoff_block::policy::{Change, Watch};
use handoff_command::Failure;

use super::lifetimes::{Lifetimes, pause_after};
use super::log::Log;
use super::process::{answered, end, pidfd_of, server};
use super::task::{NoServer, Task};

/// The process that waits until its device has no server. Dropping this ends it.
pub(super) struct Spare {
    /// `None` if none should wait.
    task: Option<Task>,
    /// With a descriptor that is readable when it ends.
    waits: Option<(Child, OwnedFd)>,
    lifetimes: Lifetimes,
    /// When the next one may be started.
    next: Instant,
    /// Reports another policy, which the waiting process does not have, and what is removed.
    changes: Option<Watch>,
    /// Whether the waiting process may have another policy than the device.
    is_outdated: bool,
    /// Whether the missing watch was reported.
    is_told: bool,
}

impl Spare {
    /// One that waits for this task.
    pub(super) fn of(following: &Task) -> Self {
        Self {
            task: Some(Task { waits: true, ..following.clone() }),
            waits: None,
            lifetimes: Lifetimes::new(),
            next: Instant::now(),
            changes: None,
            is_outdated: false,
            is_told: false,
        }
    }

    /// Keeps one waiting; returns how long there will be none, if one must be started again.
    pub(super) fn tend(&mut self, log: &mut Log<'_>) -> io::Result<Option<Duration>> {
        self.look(log);
        let Some(task) = &self.task else { return Ok(None) };
        let ended = self.waits.as_mut().map(|(child, _)| child.try_wait()).transpose()?.flatten();
        if let Some(status) = ended {
            self.waits = None;
            self.put_off(log, &status.to_string());
        } else if self.waits.is_some() && !self.is_outdated {
            return Ok(None);
        } else if Instant::now() >= self.next {
            self.lifetimes.begin();
            match start(task) {
                Ok(waits) => {
                    self.is_outdated = false;
                    if let Some((outdated, _)) = self.waits.replace(waits) {
                        end(outdated);
                    }
                    return Ok(None);
                }
                Err(failure) => self.put_off(log, &failure.line().unwrap_or_default()),
            }
        }
        Ok(Some(self.next.saturating_duration_since(Instant::now())))
    }

    /// Checks whether the device has another policy. Before there is a watch, it may have had one. What was
    /// removed is put back.
    fn look(&mut self, log: &mut Log<'_>) {
        let mut change = self.changes.as_ref().and_then(Watch::change);
        if change == Some(Change::Removed) {
            log.hold();
            self.changes = None;
        }
        if let (None, Some(id)) = (&self.changes, self.watched()) {
            match Watch::of(id) {
                Ok(watch) => {
                    self.changes = Some(watch);
                    change = change.max(Some(Change::Policy));
                }
                // The device is being removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    // It checks that itself when it is called.
                    if !std::mem::replace(&mut self.is_told, true) {
                        log.say(&format!(
                            "a server that waits reads another policy when it is called, and what is removed is \
                             put back then: {error}"
                        ));
                    }
                }
            }
        }
        if change.is_some() {
            log.hold();
        }
        let has_policy = self.task.as_ref().is_some_and(|task| task.spec.policy.is_some());
        self.is_outdated |= has_policy && change >= Some(Change::Policy);
    }

    /// The number of the device, unless none should wait.
    fn watched(&self) -> Option<u32> {
        self.task.as_ref()?.recover
    }

    /// Whether a watch is missing, and must be tried again.
    pub(super) fn lacks(&self) -> bool {
        self.changes.is_none() && self.watched().is_some()
    }

    fn put_off(&mut self, log: &mut Log<'_>, cause: &str) {
        self.lifetimes.end();
        self.next = Instant::now() + pause_after(self.lifetimes.short);
        let what = match self.waits {
            Some(_) => "the server that waits has the last policy until another is started",
            None => "no server waits any more, so another is started",
        };
        log.say(&format!("{what}: {cause}"));
    }

    /// A descriptor that is readable when there is something to do.
    pub(super) fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ended = self.waits.as_ref().map(|(_, ended)| ended.as_fd());
        ended.into_iter().chain(self.changes.as_ref().map(Watch::as_fd))
    }

    /// Makes it take the device over; `None` if none waits.
    pub(super) fn call(&mut self) -> Option<Result<(Child, u32), NoServer>> {
        let (mut child, _) = self.waits.take()?;
        // A process that has ended reads nothing, and has no answer.
        let _ = child.stdin.take().expect("piped").write_all(b"\n");
        Some(answered(child))
    }

    /// None waits from here on.
    pub(super) fn dismiss(&mut self) {
        self.task = None;
        if let Some((child, _)) = self.waits.take() {
            end(child);
        }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.dismiss();
    }
}

fn start(task: &Task) -> Result<(Child, OwnedFd), Failure> {
    let mut command = server(task)?;
    let child = command.stdin(Stdio::piped()).spawn().map_err(Failure::failed)?;
    match pidfd_of(&child) {
        Ok(ended) => Ok((child, ended)),
        Err(error) => {
            end(child);
            Err(Failure::failed(error))
        }
    }
}
