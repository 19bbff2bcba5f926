//! Progress on a terminal; elsewhere nothing is drawn.
//!
//! Contract: what is said meanwhile stands above the bar, whoever says it.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::style::ProgressTracker;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, WeakProgressBar};

/// The bar on the terminal: the newest one, while it exists.
static DRAWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar that counts bytes on stderr, in MB as reports do (a million bytes); hidden when stderr is no terminal or `quiet` is set.
///
/// `total` in bytes, `None` if the end is not known (a pipe, a listener). The caller ends it with
/// `finish_and_clear`, so that nothing of it stays among the results.
pub fn bytes(total: Option<u64>, quiet: bool) -> ProgressBar {
    let target = if quiet {
        ProgressDrawTarget::hidden()
    } else {
        // indicatif draws nothing to a stderr that is no terminal.
        ProgressDrawTarget::stderr_with_hz(10)
    };
    let bar = ProgressBar::with_draw_target(total, target);
    set_style(&bar, total.is_some());
    bar.enable_steady_tick(Duration::from_millis(200));
    *DRAWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
    bar
}

/// After how long the bar says that nothing moves.
const STILL: Duration = Duration::from_secs(20);

/// Since when nothing moves, once something has.
#[derive(Clone, Default)]
struct Standstill {
    since: Option<(u64, Instant)>,
    for_: Duration,
}

impl Standstill {
    fn look(&mut self, position: u64, now: Instant) {
        let since = match self.since {
            Some((seen, since)) if seen == position => since,
            _ => now,
        };
        self.since = Some((position, since));
        self.for_ = if position == 0 { Duration::ZERO } else { now.duration_since(since) };
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.for_ < STILL {
            return Ok(());
        }
        write!(f, "  nothing has moved for {} s", self.for_.as_secs())
    }
}

impl ProgressTracker for Standstill {
    fn clone_box(&self) -> Box<dyn ProgressTracker> {
        Box::new(self.clone())
    }

    fn tick(&mut self, state: &ProgressState, now: Instant) {
        self.look(state.pos(), now);
    }

    fn reset(&mut self, _: &ProgressState, _: Instant) {
        *self = Self::default();
    }

    fn write(&self, _: &ProgressState, w: &mut dyn fmt::Write) {
        // The bar then has a line without it.
        let _ = write!(w, "{self}");
    }
}

/// Prints above the bar, if there is one.
pub fn above(print: impl FnOnce()) {
    let drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match drawn.and_then(|bar| bar.upgrade()) {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// The end of a bar that began without one is known now.
pub fn set_total(bar: &ProgressBar, total: u64) {
    bar.set_length(total);
    set_style(bar, true);
}

fn set_style(bar: &ProgressBar, has_total: bool) {
    let template = match has_total {
        true => {
            "{bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}{still}"
        }
        false => "{spinner} {decimal_bytes} {decimal_bytes_per_sec}{still}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.with_key("still", Standstill::default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_for_long_is_said() {
        let (mut still, begin) = (Standstill::default(), Instant::now());
        let mut at = |position, seconds| {
            still.look(position, begin + Duration::from_secs(seconds));
            still.to_string()
        };
        // Nobody has come yet.
        assert_eq!((at(0, 0), at(0, 100)), (String::new(), String::new()));
        assert_eq!((at(7, 101), at(7, 120)), (String::new(), String::new()));
        assert_eq!(at(7, 121), "  nothing has moved for 20 s");
        assert_eq!(at(8, 122), "");
    }

    #[test]
    fn templates_are_valid() {
        for total in [Some(1 << 30), None] {
            let bar = bytes(total, true);
            bar.inc(4096);
            if total.is_none() {
                set_total(&bar, 8192);
                assert_eq!((bar.position(), bar.length()), (4096, Some(8192)));
                continue;
            }
            assert_eq!((bar.position(), bar.length()), (4096, total));
            bar.finish_and_clear();
        }
    }
}
