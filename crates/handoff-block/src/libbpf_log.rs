//! Messages of libbpf about an object, as the cause of an error.
//!
//! Contracts: the text depends on the object's contents, so it need not be UTF-8; nothing here panics,
//! since libbpf is C and calls it.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::io;
use std::slice;

use crate::error::worded;

unsafe extern "C" {
    /// Makes libbpf report all its messages to `log`.
    fn handoff_blk_listen(log: unsafe extern "C" fn(c_int, *const c_char, usize));
}

/// The last level of `enum libbpf_print_level`.
const DEBUG: c_int = 2;

thread_local! {
    /// Messages of libbpf since a load began.
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Collects messages of libbpf from here on.
pub(crate) fn listen() {
    // SAFETY: the function may be called by any thread at any time.
    unsafe { handoff_blk_listen(log) };
    MESSAGES.take();
}

/// An error with libbpf's messages about it.
pub(crate) fn explained(error: &libbpf_rs::Error) -> io::Error {
    let messages = MESSAGES.take();
    let text = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    // It has no kind for descriptors, and gives the number only in words: the last ones. Earlier text may come from
    // the object.
    let no_descriptors = [libc::EMFILE, libc::ENFILE]
        .iter()
        .any(|number| text.ends_with(&format!("(os error {number})")));
    let is_lack = error.kind() == libbpf_rs::ErrorKind::OutOfMemory || no_descriptors;
    worded(
        complaint(&messages).map_or_else(|| text.clone(), |line| format!("{text}: {line}")),
        is_lack,
    )
}

/// The line that says what was wrong: the last line of the verifier's log before its sums, else libbpf's
/// first.
fn complaint(messages: &[String]) -> Option<String> {
    let state = |line: &&str| line.starts_with("cur state:") || line.starts_with("old state:");
    let lines = messages.iter().flat_map(|text| text.lines());
    let lines: Vec<&str> = lines.filter(|line| !state(line)).collect();
    let sums = lines.iter().position(|line| line.starts_with("processed "));
    let line = match sums {
        Some(sums) => lines[..sums].last(),
        None => lines.first(),
    };
    line.map(|line| shown(line.trim_start_matches("libbpf: ")))
}

/// A line of text with names from an object, which may contain anything, made fit for a terminal.
pub(crate) fn shown(line: &str) -> String {
    line.replace(|c: char| c.is_control(), "\u{fffd}")
}

/// # Safety
///
/// `text` must have `len` bytes.
unsafe extern "C" fn log(level: c_int, text: *const c_char, len: usize) {
    // SAFETY: by the contract of this function.
    let bytes = unsafe { slice::from_raw_parts(text.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end();
    if level >= DEBUG {
        tracing::trace!("libbpf: {text}");
        return;
    }
    tracing::debug!("libbpf: {text}");
    // Messages of a thread that is about to end do not matter.
    let _ = MESSAGES.try_with(|messages| messages.borrow_mut().push(text.to_owned()));
}

#[cfg(test)]
mod tests {
    use libbpf_rs::{Error, ErrorExt as _};

    use super::*;
    use crate::error::is_lack;

    #[test]
    fn a_lack_is_told_from_what_is_wrong_with_an_object() {
        // The context names maps and sections of the object.
        let explained = |number| {
            let error: Result<(), _> = Err(Error::from(io::Error::from_raw_os_error(number)));
            explained(&error.context("failed to load `(os error 24)`").expect_err("an error"))
        };
        for number in [libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            let error = explained(number);
            assert!(is_lack(&error), "{error}");
            assert!(error.to_string().contains("failed to load"), "{error}");
        }
        for number in [libc::EINVAL, libc::EACCES, libc::E2BIG] {
            assert!(!is_lack(&explained(number)), "{number}");
        }
    }
}
