//! How long tests wait, also in a guest whose clock leaps.

use std::time::{Duration, Instant};

pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The longest step that [`Timeout`] believes.
pub(crate) const STEP: Duration = Duration::from_secs(1);

/// Measures [`LONG`] by steps: where its host is busy, the clock of a guest leaps, by more than a minute.
pub(crate) struct Timeout {
    left: Duration,
    last: Instant,
}

impl Timeout {
    pub(crate) fn new() -> Self {
        Self { left: LONG, last: Instant::now() }
    }

    /// To be asked after each step.
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        let step = now.duration_since(self.last).min(STEP);
        (self.left, self.last) = (self.left.saturating_sub(step), now);
        self.left.is_zero()
    }
}
