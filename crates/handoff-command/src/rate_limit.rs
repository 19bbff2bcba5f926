//! Log lines that strangers can cause as often as they like.
//!
//! Contract: all clones together print at most one line a second, and count the others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two lines.
const QUIET: Duration = Duration::from_secs(1);

/// Limits such lines for all threads that have a clone. The last clone prints how many were left out.
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Lines>);

#[derive(Debug)]
struct Lines {
    /// The line about so many that were left out.
    more: fn(u64) -> String,
    say: fn(String),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// `more` makes the line about those that were left out, and `say` prints it.
    pub fn new(more: fn(u64) -> String, say: fn(String)) -> Self {
        Self(Arc::new(Lines { more, say, state: Mutex::default() }))
    }

    /// The line to print now, with the number left out before it; `None` if it is too early for one.
    pub fn now(&self, line: impl FnOnce() -> String) -> Option<String> {
        Some(match self.0.state().others_before(Instant::now())? {
            0 => line(),
            others => format!("{}; and {others} others before", line()),
        })
    }
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts one more. Returns how many were left out before it, if its line is printed.
    fn others_before(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < QUIET) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let suppressed = self.state().suppressed;
        if suppressed > 0 {
            (self.say)((self.more)(suppressed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_a_second() {
        let (mut state, begin) = (State::default(), Instant::now());
        let lines: Vec<_> = (0..2_500)
            .filter_map(|millis| state.others_before(begin + Duration::from_millis(millis)))
            .collect();
        assert_eq!((lines, state.suppressed), (vec![0, 999, 999], 499));
    }
}
