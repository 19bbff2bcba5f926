//! The process that waits beside a device's server.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use handoff_block::policy::Watch;
use handoff_block::state::Record;

use super::lives::{Lives, pause_after};
use super::log::Log;
use super::{NoServer, Task, answered, end, ending, process};
use crate::Failure;
use crate::stop::Stop;

/// The process that waits until its device has no server. It ends when this is dropped.
pub(super) struct Spare {
    /// `None` where none is to wait.
    task: Option<Task>,
    /// With what becomes readable when it ends.
    waits: Option<(Child, OwnedFd)>,
    lives: Lives,
    /// When the next one may be started.
    next: Instant,
    /// Tells of another policy, which one that waits does not have.
    policies: Option<Watch>,
}

impl Spare {
    pub(super) fn of(record: &Record, id: u32) -> Self {
        let policies = record.spec.policy.as_ref().and_then(|_| {
            let watch = Watch::of(id);
            // It looks when it is called.
            let untold = |error: &io::Error| {
                tracing::warn!(
                    "a server that waits reads another policy when it is called: {error}"
                );
            };
            watch.inspect_err(untold).ok()
        });
        Self {
            task: Some(Task {
                waits: true,
                ..Task::following(record.spec.clone(), id, record.made)
            }),
            waits: None,
            lives: Lives::new(),
            next: Instant::now(),
            policies,
        }
    }

    /// Sees to it that one waits; for how long there is none, if one is to be started again.
    pub(super) fn tend(&mut self, log: &mut Log<'_>) -> io::Result<Option<Duration>> {
        if self.policies.as_ref().is_some_and(Watch::exchanged) {
            log.hold();
            self.waits.take().into_iter().for_each(|(child, _)| end(child));
        }
        let Some(task) = &self.task else { return Ok(None) };
        if let Some((child, _)) = &mut self.waits {
            let Some(status) = child.try_wait()? else { return Ok(None) };
            self.waits = None;
            self.none_waits(log, &status.to_string());
        } else if Instant::now() >= self.next {
            self.lives.begin();
            match start(task) {
                Ok(waits) => {
                    self.waits = Some(waits);
                    return Ok(None);
                }
                Err(failure) => self.none_waits(log, &failure.line().unwrap_or_default()),
            }
        }
        Ok(Some(self.next.saturating_duration_since(Instant::now())))
    }

    fn none_waits(&mut self, log: &mut Log<'_>, cause: &str) {
        self.lives.end();
        self.next = Instant::now() + pause_after(self.lives.short);
        log.say(&format!("no server waits any more, so another is started: {cause}"));
    }

    /// What becomes readable when there is something to tend.
    pub(super) fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ended = self.waits.as_ref().map(|(_, ended)| ended.as_fd());
        ended.into_iter().chain(self.policies.as_ref().map(Watch::as_fd))
    }

    /// Has it take the device over; `None` if none waits.
    pub(super) fn call(&mut self, stop: &Stop) -> Option<Result<(Child, u32), NoServer>> {
        let (mut child, _) = self.waits.take()?;
        // One that has ended reads nothing, and has no answer.
        let _ = child.stdin.take().expect("piped").write_all(b"\n");
        Some(answered(child, Some(stop)))
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
    let mut command = process("serve", task)?;
    let child = command.stdin(Stdio::piped()).spawn().map_err(Failure::failed)?;
    match ending(&child) {
        Ok(ended) => Ok((child, ended)),
        Err(error) => {
            end(child);
            Err(Failure::failed(error))
        }
    }
}
