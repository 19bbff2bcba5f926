//! The date of answers, made once a second.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

/// The last date that was made.
pub(crate) struct Dates(RefCell<(u64, String)>);

impl Dates {
    pub(crate) fn new() -> Self {
        Self(RefCell::new((u64::MAX, String::new())))
    }

    /// Appends the current date in the form of HTTP.
    pub(crate) fn append(&self, to: &mut Vec<u8>) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (second, text) = &mut *self.0.borrow_mut();
        if *second != now.as_secs() {
            *second = now.as_secs();
            let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(*second);
            *text = httpdate::fmt_http_date(whole);
        }
        to.extend_from_slice(text.as_bytes());
    }
}
