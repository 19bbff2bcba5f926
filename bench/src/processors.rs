//! How busy all processors of this host are.
//!
//! Kernel interface: the first line of `/proc/stat`, in clock ticks, as top(1) and mpstat(1) read it: times
//! shorter than a tick are sampled, or accounted exactly, depending on the kernel's build.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustix::param::clock_ticks_per_second;

/// The times of all processors since the start of the system, each as a sum over all of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processors {
    ticks: Ticks,
    at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    softirq: u64,
}

/// Shares of the time between two looks, as a sum over all processors: 1 is one processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    /// The share in which the processors were not idle.
    pub busy: f64,
    /// The share in which the processors served software interrupts, where packets arrive.
    pub softirq: f64,
}

impl Processors {
    /// Reads the times so far.
    ///
    /// # Errors
    ///
    /// If the kernel does not report them, in one line.
    pub(crate) fn now() -> Result<Self, String> {
        let text =
            fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
        let ticks =
            Ticks::of(&text).ok_or("/proc/stat does not say how busy the processors are")?;
        Ok(Self { ticks, at: Instant::now() })
    }

    /// The shares between an earlier look and this one; `None` if no time has passed.
    pub(crate) fn since(&self, earlier: &Self) -> Option<Busy> {
        let time = self.at.duration_since(earlier.at);
        let share = |now: u64, then: u64| {
            let seconds = now.saturating_sub(then) as f64 / clock_ticks_per_second() as f64;
            seconds / time.as_secs_f64()
        };
        (time > Duration::ZERO).then(|| Busy {
            busy: share(self.ticks.busy, earlier.ticks.busy),
            softirq: share(self.ticks.softirq, earlier.ticks.softirq),
        })
    }
}

impl Ticks {
    fn of(stat: &str) -> Option<Self> {
        let fields: Vec<u64> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))?
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        // The time of guests is part of the time of users, too.
        let [user, nice, system, _idle, _waiting, irq, softirq, steal, ..] = fields[..] else {
            return None;
        };
        Some(Self { busy: user + nice + system + irq + softirq + steal, softirq })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_busy() {
        let stat = "cpu  100 20 30 4000 50 6 7 8 90 10\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n";
        assert_eq!(Ticks::of(stat), Some(Ticks { busy: 171, softirq: 7 }));
        assert_eq!(Ticks::of("cpu  1 2 3\n"), None);
        assert_eq!(Ticks::of("intr 5\n"), None);
    }

    #[test]
    fn a_thread_that_spins_keeps_a_processor_busy() {
        let before = Processors::now().unwrap();
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {}
        let busy = Processors::now().unwrap().since(&before).unwrap();
        assert!(busy.busy > 0.2 && busy.softirq <= busy.busy, "{busy:?}");
    }
}
