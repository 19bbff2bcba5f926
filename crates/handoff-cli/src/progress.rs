//! Progress on a terminal; elsewhere nothing is drawn.
//!
//! Contract: what is said meanwhile stands above the bar, whoever says it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};

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

/// Prints above the bar, if there is one.
pub(crate) fn above(print: impl FnOnce()) {
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
        true => "{bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
        false => "{spinner} {decimal_bytes} {decimal_bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
