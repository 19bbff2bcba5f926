//! Which part of a file a request wants: all, a range, or only word that it is unchanged (RFC 9110,
//! sections 13 and 14).

use std::ops::Range;
use std::time::{Duration, SystemTime};

use http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, Method};

/// The first second of the year 10000, for which HTTP has no date.
const NO_DATE: u64 = 253_402_300_800;

/// Without these fields the whole file is wanted.
const CONDITIONS: [HeaderName; 6] =
    [IF_MATCH, IF_UNMODIFIED_SINCE, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_RANGE, RANGE];

/// A file that changed less long ago may change again without another time: kernels and file systems count in steps.
const SETTLED: Duration = Duration::from_secs(1);

/// Seconds since 1970, and nanoseconds.
type Time = (i64, u64);

/// Identifies one state of a file.
pub(super) struct State {
    pub(super) size: u64,
    /// Of the size and the time of modification in nanoseconds, so that copies on other servers have the same one. It is
    /// weak (`W/`) until the file is [`SETTLED`].
    pub(super) etag: String,
    /// In whole seconds, as in HTTP; `None` before 1970 and after 9999.
    pub(super) modified: Option<SystemTime>,
}

/// The wanted part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    Part(Range<u64>),
    /// 304.
    Unchanged,
    /// 412.
    NotThis,
    /// 416.
    NoSuchPart,
}

impl State {
    pub(super) fn new(size: u64, modified: Time, now: SystemTime) -> Self {
        let since = u64::try_from(modified.0).ok().filter(|since| *since < NO_DATE);
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let settled = now.checked_sub(SETTLED).unwrap_or_default();
        let settled = (settled.as_secs() as i64, u64::from(settled.subsec_nanos()));
        let weak = if modified <= settled { "" } else { "W/" };
        Self {
            size,
            etag: format!("{weak}\"{:x}-{:x}-{size:x}\"", modified.0, modified.1),
            modified: since
                .and_then(|since| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))),
        }
    }

    /// The part of it that a request wants.
    pub(super) fn wanted(&self, method: &Method, fields: &HeaderMap) -> Wanted {
        // Most requests have none, and one look at each of their fields costs less than a search for all of
        // these.
        if !fields.keys().any(|name| CONDITIONS.contains(name)) {
            return Wanted::Whole;
        }
        let is_later = |date| self.modified.is_none_or(|modified| modified > date);
        if fields.contains_key(IF_MATCH) {
            if !self.is_named(fields, &IF_MATCH, false) {
                return Wanted::NotThis;
            }
        } else if date(fields, &IF_UNMODIFIED_SINCE).is_some_and(is_later) {
            return Wanted::NotThis;
        }
        if fields.contains_key(IF_NONE_MATCH) {
            if self.is_named(fields, &IF_NONE_MATCH, true) {
                return Wanted::Unchanged;
            }
        } else if date(fields, &IF_MODIFIED_SINCE).is_some_and(|date| !is_later(date)) {
            return Wanted::Unchanged;
        }
        if method != Method::GET || !self.may_be_in_parts(fields) {
            return Wanted::Whole;
        }
        let Some(range) = text(fields, &RANGE) else { return Wanted::Whole };
        self.part(range).unwrap_or(Wanted::Whole)
    }

    /// Whether the tag will be another when the file is settled.
    pub(super) fn is_weak(&self) -> bool {
        self.etag.starts_with("W/")
    }

    /// Whether a list of tags has this state's: with or without `W/` before both, or without.
    fn is_named(&self, fields: &HeaderMap, name: &HeaderName, weak: bool) -> bool {
        let plain = |tag| str::strip_prefix(tag, "W/").unwrap_or(tag);
        let values = fields.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| {
            tag == "*"
                || match weak {
                    true => plain(tag) == plain(&self.etag),
                    false => tag == self.etag && !self.is_weak(),
                }
        })
    }

    fn may_be_in_parts(&self, fields: &HeaderMap) -> bool {
        let Some(state) = fields.get(IF_RANGE) else { return true };
        let Ok(state) = state.to_str() else { return false };
        if state.starts_with('"') || state.starts_with("W/") {
            return state == self.etag && !self.is_weak();
        }
        // A file that changed in this second may change again in it.
        let age =
            self.modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        let settled = age.is_some_and(|age| age > SETTLED);
        settled && httpdate::parse_http_date(state).ok() == self.modified
    }

    /// The only range of a field; `None` without one, or with several.
    fn part(&self, field: &str) -> Option<Wanted> {
        let (unit, range) = field.split_once('=')?;
        let (first, last) = range.trim().split_once('-')?;
        // An empty file has no bytes to be satisfied with, and its whole is what everybody wants of it: some clients ask
        // for ranges always.
        if !unit.trim().eq_ignore_ascii_case("bytes") || self.size == 0 {
            return None;
        }
        let range = if first.is_empty() {
            let len = number(last)?;
            let len = len.min(self.size);
            self.size - len..self.size
        } else {
            let first = number(first)?;
            let end = match last {
                "" => self.size,
                last => number(last).filter(|last| first <= *last)?.saturating_add(1),
            };
            first..end.min(self.size)
        };
        Some(if range.is_empty() { Wanted::NoSuchPart } else { Wanted::Part(range) })
    }
}

/// A number of digits only; one that is too large counts as the largest.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// The text of a field that occurs once.
fn text<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = fields.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn date(fields: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(text(fields, name)?).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// Of 1,000 bytes, changed on 2001-09-09 at 01:46:40.
    fn wanted(fields: &[(HeaderName, &'static str)]) -> Wanted {
        let state = State::new(1_000, (1_000_000_000, 5), SystemTime::now());
        let fields = fields.iter().cloned();
        let fields: HeaderMap =
            fields.map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
        state.wanted(&Method::GET, &fields)
    }

    const ETAG: &str = "\"3b9aca00-5-3e8\"";
    const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
    const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";

    #[test]
    fn ranges() {
        for (range, told) in [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=0-999", Wanted::Part(0..1_000)),
            ("Bytes = 10-", Wanted::Part(10..1_000)),
            ("bytes=990-2000", Wanted::Part(990..1_000)),
            ("bytes=999-99999999999999999999999", Wanted::Part(999..1_000)),
            ("bytes=-1", Wanted::Part(999..1_000)),
            ("bytes=-5000", Wanted::Part(0..1_000)),
            ("bytes=-0", Wanted::NoSuchPart),
            ("bytes=1000-", Wanted::NoSuchPart),
            ("bytes=99999999999999999999999-", Wanted::NoSuchPart),
            ("bytes=5-4", Wanted::Whole),
            ("bytes=0-1,5-6", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("lines=0-1", Wanted::Whole),
        ] {
            assert_eq!(wanted(&[(RANGE, range)]), told, "{range}");
        }
        let empty = State::new(0, (0, 0), SystemTime::now());
        for range in ["bytes=-1", "bytes=-0", "bytes=0-", "bytes=5-"] {
            assert_eq!(empty.part(range), None, "{range}");
        }
    }

    #[test]
    fn a_file_that_may_change_again_has_a_weak_tag() {
        let now = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_001, 5);
        let tag = |modified| State::new(1, modified, now).etag;
        assert_eq!(tag((1_000_000_000, 5)), "\"3b9aca00-5-1\"");
        assert_eq!(tag((1_000_000_000, 6)), "W/\"3b9aca00-6-1\"");
        assert_eq!(tag((1_000_000_009, 0)), "W/\"3b9aca09-0-1\"");
        let weak = State::new(1, (1_000_000_000, 6), now);
        let fields = |name: HeaderName| {
            HeaderMap::from_iter([
                (name, HeaderValue::from_static("W/\"3b9aca00-6-1\"")),
                (RANGE, HeaderValue::from_static("bytes=0-0")),
            ])
        };
        for (name, wanted) in [
            (IF_NONE_MATCH, Wanted::Unchanged),
            (IF_MATCH, Wanted::NotThis),
            (IF_RANGE, Wanted::Whole),
        ] {
            assert_eq!(weak.wanted(&Method::GET, &fields(name)), wanted);
        }
    }

    #[test]
    fn times_without_a_date() {
        for (seconds, has_one) in [
            (-1, false),
            (0, true),
            (253_402_300_799, true),
            (253_402_300_800, false),
            (i64::MAX, false),
        ] {
            let state = State::new(1, (seconds, 0), SystemTime::now());
            assert_eq!(state.modified.is_some(), has_one, "{seconds}");
        }
    }

    #[test]
    fn states() {
        let range = (RANGE, "bytes=0-0");
        let part = Wanted::Part(0..1);
        for (fields, told) in [
            (vec![(IF_NONE_MATCH, ETAG)], Wanted::Unchanged),
            (vec![(IF_NONE_MATCH, "W/\"3b9aca00-5-3e8\"")], Wanted::Unchanged),
            (vec![(IF_NONE_MATCH, "\"a\", \"3b9aca00-5-3e8\"")], Wanted::Unchanged),
            (vec![(IF_NONE_MATCH, "*"), range.clone()], Wanted::Unchanged),
            (vec![(IF_NONE_MATCH, "\"a\""), (IF_MODIFIED_SINCE, DATE)], Wanted::Whole),
            (vec![(IF_MODIFIED_SINCE, DATE)], Wanted::Unchanged),
            (vec![(IF_MODIFIED_SINCE, BEFORE)], Wanted::Whole),
            (vec![(IF_MODIFIED_SINCE, "yesterday")], Wanted::Whole),
            (vec![(IF_MATCH, ETAG)], Wanted::Whole),
            (vec![(IF_MATCH, "W/\"3b9aca00-5-3e8\"")], Wanted::NotThis),
            (vec![(IF_MATCH, "\"a\"")], Wanted::NotThis),
            (vec![(IF_UNMODIFIED_SINCE, DATE)], Wanted::Whole),
            (vec![(IF_UNMODIFIED_SINCE, BEFORE)], Wanted::NotThis),
            (vec![(IF_RANGE, ETAG), range.clone()], part),
            (vec![(IF_RANGE, "\"a\""), range.clone()], Wanted::Whole),
            (vec![(IF_RANGE, "W/\"3b9aca00-5-3e8\""), range.clone()], Wanted::Whole),
            (vec![(IF_RANGE, DATE), range.clone()], Wanted::Part(0..1)),
            (vec![(IF_RANGE, BEFORE), range], Wanted::Whole),
        ] {
            assert_eq!(wanted(&fields), told, "{fields:?}");
        }
    }
}
