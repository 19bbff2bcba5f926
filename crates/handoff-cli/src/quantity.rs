//! Quantities of the command line.

use std::time::Duration;

/// A time in seconds, 0 included.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "a time is a number of seconds that is not below 0".to_owned())
}

/// A time in seconds, above 0.
pub(crate) fn seconds_above_0(text: &str) -> Result<Duration, String> {
    match seconds(text) {
        Ok(time) if time.is_zero() => Err("a time-out is a number of seconds above 0".to_owned()),
        time => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_not_below_0() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for wrong in ["-1", "nan", "inf", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(seconds_above_0("0").is_err());
    }
}
