//! How long the successive processes live, and the pauses between them.

use std::time::{Duration, Instant};

/// A process that lives for less than this has not served.
const SHORT_LIFETIME: Duration = Duration::from_secs(1);
/// The shortest pause.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Lifetimes of successive processes.
pub(super) struct Lifetimes {
    /// So many in a row were short.
    pub(super) short: u32,
    since: Instant,
}

impl Lifetimes {
    pub(super) fn new() -> Self {
        Self { short: 0, since: Instant::now() }
    }

    pub(super) fn begin(&mut self) {
        self.since = Instant::now();
    }

    pub(super) fn end(&mut self) {
        self.short = if self.since.elapsed() < SHORT_LIFETIME { self.short + 1 } else { 0 };
    }
}

/// The first pause, doubled so many times.
pub(super) fn pause_after(doubled: u32) -> Duration {
    PAUSE.saturating_mul(1u32.checked_shl(doubled).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
}
