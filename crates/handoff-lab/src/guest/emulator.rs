//! What a busy host leaves to a guest's emulator.

use std::fs;
use std::time::{Duration, Instant};

/// What the thread of a process that took most did until now.
#[derive(Debug, Clone, Copy)]
struct Spent {
    ran: Duration,
    /// It was ready to run, and others ran.
    waited: Duration,
}

impl Spent {
    /// `None` where the kernel does not tell, and when the process is gone.
    fn by(process: u32) -> Option<Self> {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let told = threads.filter_map(|thread| {
            let counts = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let mut counts = counts.split_whitespace().map_while(|count| count.parse().ok());
            let [ran, waited] = [counts.next()?, counts.next()?].map(Duration::from_nanos);
            Some(Self { ran, waited })
        });
        told.max_by_key(|spent| spent.ran + spent.waited)
    }
}

/// A stretch of an emulator's time, from now on.
#[derive(Debug)]
pub(super) struct Stretch {
    process: u32,
    begin: Instant,
    before: Option<Spent>,
}

impl Stretch {
    pub(super) fn of(process: u32) -> Self {
        Self { process, begin: Instant::now(), before: Spent::by(process) }
    }

    /// What was spent since the beginning, if the kernel tells.
    fn spent(&self) -> Option<Spent> {
        let (before, after) = (self.before?, Spent::by(self.process)?);
        let ran = after.ran.saturating_sub(before.ran);
        Some(Spent { ran, waited: after.waited.saturating_sub(before.waited) })
    }

    /// Whether it is longer than `limit`. Only time in which nobody kept the emulator from running counts, so
    /// a busy host makes no guest late.
    pub(super) fn is_past(&self, limit: Duration) -> bool {
        let waited = || self.spent().map_or(Duration::ZERO, |spent| spent.waited);
        self.begin.elapsed() > limit && self.begin.elapsed() > limit + waited()
    }

    /// How much of the time that others left to it the emulator ran, in percent, if the kernel tells.
    pub(super) fn percent(&self) -> Option<u32> {
        let spent = self.spent()?;
        let left = self.begin.elapsed().saturating_sub(spent.waited).max(spent.ran);
        Some((100.0 * spent.ran.as_secs_f64() / left.as_secs_f64()) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::process::Command;
    use std::thread;

    #[test]
    fn a_process_that_spins_is_busy_and_one_that_sleeps_is_idle() {
        let running = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().expect("starts");
            let stretch = Stretch::of(child.id());
            while !stretch.is_past(Duration::from_millis(200)) {
                thread::sleep(Duration::from_millis(10));
            }
            let percent = stretch.percent();
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            percent
        };
        let Some(spins) = running("while :; do :; done") else {
            crate::skip!("this kernel does not tell how long threads ran and waited");
        };
        let sleeps = running("exec sleep 100").expect("the kernel tells of each process");
        assert!(spins > 50 && sleeps < 50, "{spins} {sleeps}");
    }
}
