//! Time and CPU time of a subcommand.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Both since it was started.
pub(crate) struct Clock {
    start: Instant,
    cpu: Duration,
}

/// User and kernel time of all threads of the process, the kernel's own workers for it included.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu() }
    }

    /// Seconds, and seconds of CPU.
    pub(crate) fn read(&self) -> (f64, f64) {
        (self.start.elapsed().as_secs_f64(), (cpu() - self.cpu).as_secs_f64())
    }
}
