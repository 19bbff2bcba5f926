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
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    last: Option<Instant>,
    unsaid: u64,
}

impl RateLimit {
    /// `more` makes the line about those that were left out, and `say` prints it.
    pub fn new(more: fn(u64) -> String, say: fn(String)) -> Self {
        Self(Arc::new(Lines { more, say, said: Mutex::default() }))
    }

    /// The line to print now, with the number left out before it; `None` if it is too early for one.
    pub fn now(&self, line: impl FnOnce() -> String) -> Option<String> {
        Some(match self.0.said().others_before(Instant::now())? {
            0 => line(),
            others => format!("{}; and {others} others before", line()),
        })
    }
}

impl Lines {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    /// Counts one more. Returns how many were left out before it, if its line is printed.
    fn others_before(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < QUIET) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let unsaid = self.said().unsaid;
        if unsaid > 0 {
            (self.say)((self.more)(unsaid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_line_a_second() {
        let (mut said, begin) = (Said::default(), Instant::now());
        let lines: Vec<_> = (0..2_500)
            .filter_map(|millis| said.others_before(begin + Duration::from_millis(millis)))
            .collect();
        assert_eq!((lines, said.unsaid), (vec![0, 999, 999], 499));
    }
}
