//! What tests of several crates need: bytes that show their place, and time-outs.

use std::time::{Duration, Instant};

/// Longer than anything takes that a test waits for, also under emulation.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest step that is believed: where its host is busy, the clock of a guest leaps.
const STEP: Duration = Duration::from_secs(1);

/// The byte of a stream at this position: no short period, so misplaced parts show.
pub fn byte_at(position: usize) -> u8 {
    (position ^ (position >> 8) ^ (position >> 16)).wrapping_mul(31) as u8
}

/// The bytes of a stream from a position on.
pub fn bytes_at(position: usize, count: usize) -> Vec<u8> {
    (position..position + count).map(byte_at).collect()
}

/// Asks until there is an answer.
///
/// # Panics
///
/// If there is none for half a minute; `what` says what was waited for.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let (mut left, mut last) = (TIMEOUT, Instant::now());
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        let step = last.elapsed();
        (left, last) = (left.saturating_sub(step.min(STEP)), last + step);
        assert!(!left.is_zero(), "not within {TIMEOUT:?}: {what}");
        std::thread::yield_now();
    }
}
