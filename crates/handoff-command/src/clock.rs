//! Time and CPU time of a subcommand, and waiting for a time.

use std::time::{Duration, Instant};

use handoff::Driver;
use rustix::time::{ClockId, clock_gettime};

/// Waits this long.
pub async fn pass(driver: &Driver, time: Duration) {
    // A driver that is gone takes everything else along.
    let _ = driver.sleep(time).await;
}

/// How often to check whether a time is over that is measured in checks.
pub fn between_looks(time: Duration) -> Duration {
    (time / 4).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

/// Both since its start.
#[derive(Clone, Copy)]
pub struct Clock {
    start: Instant,
    cpu: Duration,
}

/// User and kernel time of all threads of the process, the kernel's own workers for it included.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Clock {
    /// Begins now.
    pub fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu() }
    }

    /// Seconds, and seconds of CPU.
    pub fn read(&self) -> (f64, f64) {
        (self.start.elapsed().as_secs_f64(), (cpu() - self.cpu).as_secs_f64())
    }
}
