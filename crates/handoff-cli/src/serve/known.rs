//! Headers of files, kept while the files do not change: making them costs more than everything else that a request
//! takes outside of the kernel.
//!
//! Contracts:
//! - a changed or exchanged file gets new headers: each entry is for one inode, size and pair of times;
//! - names of [`MOST`] files at most are kept.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;

use http::header::{
    ACCEPT_RANGES, CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue};
use rustix::fs::Stat;

use super::conditions::State;

/// The most files whose fields are kept.
const MOST: usize = 1_024;

/// A file's headers.
pub(super) struct Told {
    stamp: Stamp,
    pub(super) state: State,
    /// Those of an answer with the whole file.
    pub(super) fields: HeaderMap,
}

/// The kernel's facts about a file, if unchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            place: (stat.st_dev, stat.st_ino),
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// By name.
#[derive(Default)]
pub(super) struct Known(RefCell<HashMap<Vec<u8>, Rc<Told>>>);

impl Known {
    /// The headers for a file of this name.
    pub(super) fn told(&self, name: &[u8], stat: &Stat) -> Rc<Told> {
        let stamp = Stamp::of(stat);
        let mut known = self.0.borrow_mut();
        if let Some(told) = known.get(name).filter(|told| told.stamp == stamp) {
            return Rc::clone(told);
        }
        let now = SystemTime::now();
        let told = Rc::new(Told::new(stamp, name, now));
        // A time in the future changes what is sent with the clock.
        if told.state.modified.is_none_or(|modified| modified <= now) {
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(name.to_vec(), Rc::clone(&told));
        }
        told
    }
}

impl Told {
    fn new(stamp: Stamp, name: &[u8], now: SystemTime) -> Self {
        let Stamp { place: (_, inode), size, modified, changed } = stamp;
        let state = State::new(size as u64, modified, changed, inode);
        let mut fields = HeaderMap::new();
        let mut tell = |name: HeaderName, value: &str| {
            // None of them has a byte that a field cannot have.
            if let Ok(value) = HeaderValue::from_str(value) {
                fields.insert(name, value);
            }
        };
        tell(CONTENT_TYPE, &content_type(name));
        tell(X_CONTENT_TYPE_OPTIONS, "nosniff");
        tell(ETAG, &state.etag);
        tell(ACCEPT_RANGES, "bytes");
        if let Some(modified) = state.modified {
            // None is later than the answer (RFC 9110, 8.8.2.1).
            tell(LAST_MODIFIED, &httpdate::fmt_http_date(modified.min(now)));
        }
        Self { stamp, state, fields }
    }
}

/// The type of content, by the name.
fn content_type(name: &[u8]) -> String {
    let kind = mime_guess::from_path(Path::new(OsStr::from_bytes(name))).first_or_octet_stream();
    match kind.type_() {
        mime_guess::mime::TEXT => format!("{kind}; charset=utf-8"),
        _ => kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};
    use std::time::Duration;

    use rustix::fs::stat;

    use super::*;

    #[test]
    fn a_changed_file_is_told_anew() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("a.txt");
        let known = Known::default();
        let told = |content: &str, modified: SystemTime| {
            let next = place.path().join("next");
            fs::write(&next, content).expect("writes");
            let file = File::options().write(true).open(&next).expect("opens");
            file.set_times(FileTimes::new().set_modified(modified)).expect("sets");
            fs::rename(&next, &path).expect("moves");
            known.told(b"a.txt", &stat(&path).expect("is there"))
        };
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let first = told("one", past);
        assert_eq!(first.fields[LAST_MODIFIED], "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(first.fields[CONTENT_TYPE], "text/plain; charset=utf-8");
        let again = known.told(b"a.txt", &stat(&path).expect("is there"));
        assert!(Rc::ptr_eq(&first, &again));
        let longer = told("three", past);
        assert_ne!(longer.fields[ETAG], first.fields[ETAG]);
        assert_eq!(longer.state.size, 5);
        // Of the same size and modification time, which any program may set.
        let exchanged = told("seven", past);
        assert_ne!(exchanged.fields[ETAG], longer.fields[ETAG]);
        // A time in the future is sent as now, and so is not kept.
        let future = SystemTime::now() + Duration::from_secs(1_000_000);
        let first = told("eight", future);
        let again = known.told(b"a.txt", &stat(&path).expect("is there"));
        assert!(!Rc::ptr_eq(&first, &again));
    }

    #[test]
    fn names_of_some_files_are_kept() {
        let place = tempfile::tempdir().expect("a directory");
        let stat = stat(place.path()).expect("is there");
        let known = Known::default();
        for number in 0..3 * MOST {
            known.told(number.to_string().as_bytes(), &stat);
            assert!(known.0.borrow().len() <= MOST);
        }
    }
}
