//! Sizes, rates and times as people write them.

use std::time::Duration;

/// Reads a number of bytes, with an optional `k`, `m`, `g` or `t`, which are powers of 1,024.
///
/// # Errors
///
/// A line that says what is wrong, for the command line's parser.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| {
        format!("'{text}' is not a size: write a number, with k, m, g or t after it")
    })?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is out of range"))
}

/// The same, but not 0.
///
/// # Errors
///
/// As [`parse_bytes`].
pub fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err(format!("'{text}' is out of range")),
        bytes => Ok(bytes),
    }
}

/// Reads a count: a number from 1, with an optional `k` for a thousand.
///
/// # Errors
///
/// A line that says what is wrong, for the command line's parser.
pub fn parse_count(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => (text, 1),
    };
    let number: u32 =
        digits.parse().map_err(|_| format!("'{text}' is not a count: write 100 or 10k"))?;
    let count = number.checked_mul(unit).filter(|&count| count > 0);
    count.ok_or_else(|| format!("'{text}' is out of range"))
}

/// Writes a count as [`parse_count`] reads it, as short as it goes without rounding.
pub fn format_count(count: u32) -> String {
    match count {
        0 => "0".to_owned(),
        count if count % 1_000 == 0 => format!("{}k", count / 1_000),
        count => count.to_string(),
    }
}

/// Writes a size as [`parse_size`] reads it, as short as it goes without rounding.
pub fn format_size(bytes: u64) -> String {
    for (suffix, shift) in [("g", 30), ("m", 20), ("k", 10)] {
        if bytes > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// How many bytes a unit stands for: `B`, `kB`, `MB`, `GB` (powers of 1,000), `KiB`, `MiB`, `GiB`
/// (of 1,024), and bits: `bit`, `bits`, `Kbits`, `Mbits`, `Gbits`. A `/s`, `/sec` or `ps` may
/// follow. Upper and lower case of the prefix mean the same.
pub fn bytes_per_unit(unit: &str) -> Option<f64> {
    let unit = ["/sec", "/s", "ps"].iter().find_map(|end| unit.strip_suffix(end)).unwrap_or(unit);
    let (prefix, base) = if let Some(prefix) = unit.strip_suffix("iB") {
        (prefix, 1_024.0_f64)
    } else if let Some(prefix) = unit.strip_suffix('B').or(unit.strip_suffix("bytes")) {
        (prefix, 1_000.0)
    } else if let Some(prefix) = unit.strip_suffix("bits").or(unit.strip_suffix("bit")) {
        return prefix_exponent(prefix).map(|exponent| 1_000.0_f64.powi(exponent) / 8.0);
    } else {
        return None;
    };
    prefix_exponent(prefix).map(|exponent| base.powi(exponent))
}

fn prefix_exponent(prefix: &str) -> Option<i32> {
    match prefix.to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" => Some(1),
        "m" => Some(2),
        "g" => Some(3),
        _ => None,
    }
}

/// A share, for people.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time in seconds, 0 included.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| "a time is a number of seconds that is not below 0".to_owned())
}

/// A time in seconds, above 0.
pub fn seconds_above_0(text: &str) -> Result<Duration, String> {
    match seconds(text) {
        Ok(time) if time.is_zero() => Err("a time-out is a number of seconds above 0".to_owned()),
        time => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_as_they_are_read() {
        for (text, count) in [("1", 1), ("100", 100), ("1k", 1_000), ("10k", 10_000)] {
            assert_eq!(parse_count(text), Ok(count));
            assert_eq!(format_count(count), text);
        }
        for text in ["0", "0k", "", "k", "5m", "-1", "5000000k"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("65435"), Ok(65_435));
        assert_eq!(parse_size("1k"), Ok(1_024));
        assert_eq!(parse_size("64K"), Ok(65_536));
        assert_eq!(parse_size("3m"), Ok(3 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        assert_eq!(parse_size("8T"), Ok(8 << 40));
        assert_eq!(parse_bytes("0"), Ok(0));
        for wrong in ["", "k", "0", "-1", "1.5k", "1kk", "64kB", "99999999999g", "é"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_survives_writing_and_reading() {
        for bytes in [1, 1_000, 1_024, 65_435, 65_536, 1 << 20, 3 << 20, 1 << 30, (1 << 30) + 1] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(65_536), "64k");
        assert_eq!(format_size(1 << 30), "1g");
    }

    #[test]
    fn units() {
        assert_eq!(bytes_per_unit("MB/s"), Some(1e6));
        assert_eq!(bytes_per_unit("MiB"), Some(1_048_576.0));
        assert_eq!(bytes_per_unit("KiB/s"), Some(1_024.0));
        assert_eq!(bytes_per_unit("B/s"), Some(1.0));
        assert_eq!(bytes_per_unit("Gbits/sec"), Some(125e6));
        assert_eq!(bytes_per_unit("bps"), None);
        assert_eq!(bytes_per_unit("GBps"), Some(1e9));
        assert_eq!(bytes_per_unit("requests"), None);
        assert_eq!(bytes_per_unit("xB"), None);
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
