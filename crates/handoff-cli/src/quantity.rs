//! Quantities of the command line.

use std::time::Duration;

/// Bytes, with k, m, g and t for KiB, MiB, GiB and TiB; `None` if it is no such number.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 1 << 10),
        b'm' => (&text[..text.len() - 1], 1 << 20),
        b'g' => (&text[..text.len() - 1], 1 << 30),
        b't' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// An amount of bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    bytes(text).ok_or_else(|| "a size is a number of bytes, with k, m, g or t behind it".to_owned())
}

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
    fn bytes_have_units() {
        assert_eq!(bytes("64k"), Some(65_536));
        assert_eq!(bytes("1M"), Some(1 << 20));
        assert_eq!(bytes("17"), Some(17));
        assert_eq!(bytes("8T"), Some(8 << 40));
        for wrong in ["", "k", "-1", "1kk", "99999999999999999M", "\u{fc}"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

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
