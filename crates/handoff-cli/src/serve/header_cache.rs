//! Headers of files, kept while the files do not change: making them costs more than everything else that a request
//! takes outside of the kernel.
//!
//! Contracts:
//! - a changed or exchanged file gets new headers: each entry is for one inode, size and pair of times;
//! - names of [`MOST`] files at most are kept.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
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
pub(super) struct FileHeaders {
    stamp: Stamp,
    pub(super) state: State,
    /// Those of an answer with the whole file.
    pub(super) fields: HeaderMap,
}

/// The kernel's facts about a file, if unchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: (stat.st_dev, stat.st_ino),
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// By name.
#[derive(Default)]
pub(super) struct HeaderCache(RefCell<HashMap<Vec<u8>, Rc<FileHeaders>>>);

impl HeaderCache {
    /// The headers for a file of this name.
    pub(super) fn get(&self, name: &[u8], file: &File, stat: &Stat) -> Rc<FileHeaders> {
        let stamp = Stamp::of(stat);
        let mut cache = self.0.borrow_mut();
        if let Some(headers) = cache.get(name).filter(|headers| headers.stamp == stamp) {
            return Rc::clone(headers);
        }
        let now = SystemTime::now();
        let headers = Rc::new(FileHeaders::new(stamp, name, file, now));
        // What is sent of a time in the future, and of a moment ago, changes with the clock.
        if !headers.state.is_weak() {
            if cache.len() >= MOST {
                cache.clear();
            }
            cache.insert(name.to_vec(), Rc::clone(&headers));
        }
        headers
    }
}

impl FileHeaders {
    fn new(stamp: Stamp, name: &[u8], file: &File, now: SystemTime) -> Self {
        let state = State::new(stamp.size as u64, stamp.modified, now);
        let mut fields = HeaderMap::new();
        let mut tell = |name: HeaderName, value: &str| {
            // None of them has a byte that a field cannot have.
            if let Ok(value) = HeaderValue::from_str(value) {
                fields.insert(name, value);
            }
        };
        tell(CONTENT_TYPE, &content_type(name, file));
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

/// The type of content, by the name; with the encoding of a text that looks like UTF-8. A page, a style sheet and XML can
/// name their own: where their beginning says nothing else, it counts.
fn content_type(name: &[u8], file: &File) -> String {
    use mime_guess::mime;
    let kind = mime_guess::from_path(Path::new(OsStr::from_bytes(name))).first_or_octet_stream();
    if kind.type_() != mime::TEXT {
        return kind.to_string();
    }
    let names_its_own = matches!(kind.subtype(), mime::HTML | mime::CSS | mime::XML);
    match begins_with(file) {
        Begins::Utf8 => format!("{kind}; charset=utf-8"),
        Begins::Ascii if !names_its_own => format!("{kind}; charset=utf-8"),
        Begins::Ascii | Begins::Other => kind.to_string(),
    }
}

enum Begins {
    Ascii,
    Utf8,
    Other,
}

/// What the beginning of a file looks like.
fn begins_with(file: &File) -> Begins {
    let mut bytes = [0; 4096];
    // It is sent at once, so this waits for nothing that the answer would not wait for.
    let Ok(len) = file.read_at(&mut bytes, 0) else { return Begins::Other };
    let is_cut = len == bytes.len();
    match std::str::from_utf8(&bytes[..len]) {
        Ok(text) if text.is_ascii() => Begins::Ascii,
        Ok(_) => Begins::Utf8,
        // A character may go on behind it.
        Err(error) if is_cut && error.error_len().is_none() => Begins::Utf8,
        Err(_) => Begins::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, FileTimes};
    use std::time::Duration;

    use rustix::fs::stat;

    use super::*;

    #[test]
    fn a_changed_file_is_told_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.txt");
        let cache = HeaderCache::default();
        let again = || {
            let file = File::open(&path).expect("opens");
            cache.get(b"a.txt", &file, &stat(&path).expect("is there"))
        };
        let headers = |content: &str, modified: SystemTime| {
            let next = directory.path().join("next");
            fs::write(&next, content).expect("writes");
            let file = File::options().write(true).open(&next).expect("opens");
            file.set_times(FileTimes::new().set_modified(modified)).expect("sets");
            fs::rename(&next, &path).expect("moves");
            again()
        };
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let first = headers("one", past);
        assert_eq!(first.fields[LAST_MODIFIED], "Sun, 09 Sep 2001 01:46:40 GMT");
        assert_eq!(first.fields[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert!(Rc::ptr_eq(&first, &again()));
        let longer = headers("three", past);
        assert_ne!(longer.fields[ETAG], first.fields[ETAG]);
        assert_eq!(longer.state.size, 5);
        // A copy has the same tag, wherever it is.
        let copied = headers("three", past);
        assert!(!Rc::ptr_eq(&copied, &longer));
        assert_eq!(copied.fields[ETAG], longer.fields[ETAG]);
        let later = headers("seven", past + Duration::from_nanos(1));
        assert_ne!(later.fields[ETAG], longer.fields[ETAG]);
        // A time in the future is sent as now, and so is not kept.
        let future = SystemTime::now() + Duration::from_secs(1_000_000);
        let first = headers("eight", future);
        assert!(!Rc::ptr_eq(&first, &again()));
    }

    #[test]
    fn names_of_some_files_are_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "").expect("writes");
        let file = File::open(&path).expect("opens");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("sets");
        let stat = stat(&path).expect("is there");
        let cache = HeaderCache::default();
        for number in 0..3 * MOST {
            cache.get(number.to_string().as_bytes(), &file, &stat);
            assert!(cache.0.borrow().len() <= MOST);
        }
    }

    #[test]
    fn texts_have_the_encoding_that_they_look_like() {
        let split = [b"a".repeat(4095), "\u{e4}".into()].concat();
        for (name, content, expected) in [
            ("a.txt", &b"text"[..], "text/plain; charset=utf-8"),
            ("a.txt", "\u{e4}".as_bytes(), "text/plain; charset=utf-8"),
            ("a.txt", &split, "text/plain; charset=utf-8"),
            ("a.txt", b"\xe4", "text/plain"),
            ("a.txt", b"\xff\xfea\0", "text/plain"),
            ("a.html", b"<meta charset=iso-8859-1>", "text/html"),
            ("a.html", "\u{e4}".as_bytes(), "text/html; charset=utf-8"),
            ("a.css", b"@charset \"iso-8859-1\";", "text/css"),
            ("a.xml", b"<?xml version='1.0' encoding='iso-8859-1'?>", "text/xml"),
            ("a.js", b"", "text/javascript; charset=utf-8"),
            ("a.json", b"{}", "application/json"),
        ] {
            let mut file = tempfile::tempfile().expect("a file");
            std::io::Write::write_all(&mut file, content).expect("writes");
            assert_eq!(content_type(name.as_bytes(), &file), expected, "{name}");
        }
    }
}
