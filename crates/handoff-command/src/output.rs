//! Results on stdout: one JSON value, or text. Lines for the user meanwhile on stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use handoff::Tally;
use handoff_sys::hangup;
use serde::{Serialize, Serializer};

use crate::failure::Failure;
use crate::progress;

/// Something was printed on stdout.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// Standard output, for code that writes to it directly.
pub struct Stdout(StdoutLock<'static>);

impl Stdout {
    /// Nobody else writes to it as long as this lives.
    pub fn lock() -> Self {
        Self(io::stdout().lock())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        PRINTED.store(true, Ordering::Relaxed);
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether colours are shown where this goes: a terminal that has them, unless the user wants none (`NO_COLOR`).
pub fn takes_colour(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stream.is_terminal()
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Says something to the user, in a line on stderr above the progress line. Without a reader there it is lost.
pub fn say(line: impl Display) {
    print_aside(format_args!("handoff: {line}"));
}

/// Prints lines on stderr as they are, in the way of [`say`].
pub fn print_aside(lines: impl Display) {
    progress::above(|| hangup::say(lines));
}

/// Where the log's lines go, each in one write: to stderr, in the way of [`say`].
#[derive(Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        print_aside(String::from_utf8_lossy(line).trim_end());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line of a report about the bytes of this hop.
pub fn tally_line(way: &str, tally: Tally) -> String {
    let Tally { zero_copy, copied, ciphered, unknown } = tally;
    let ciphered = match ciphered {
        0 => String::new(),
        bytes => format!("{bytes} ciphered, "),
    };
    format!("  {way:15} {zero_copy} zero-copy, {copied} copied, {ciphered}{unknown} unknown\n")
}

/// Prints `value` as one indented JSON value.
///
/// # Errors
///
/// [`Failure::ReaderGone`] when the reader left, else [`Failure::Failed`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut document = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::failed(format!("the result has no JSON form: {error}")))?;
    document.push('\n');
    text(&document)
}

/// Prints a failure as a JSON object, unless there is a value already or nothing should be printed; `aside`
/// on standard error.
pub fn failure(failure: &Failure, aside: bool) {
    let Some(error) = failure.line() else { return };
    let object = serde_json::json!({ "error": error, "exit_code": failure.code() });
    if aside {
        print_aside(format_args!("{object:#}"));
    } else if !PRINTED.load(Ordering::Relaxed) {
        // The failure is reported on standard error as well.
        let _ = text(&format!("{object:#}\n"));
    }
}

/// The fields of a tally, for use with `serialize_with`.
pub fn tally<S: Serializer>(tally: &Tally, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields {
        zero_copy: u64,
        copied: u64,
        ciphered: u64,
        unknown: u64,
    }
    let Tally { zero_copy, copied, ciphered, unknown } = *tally;
    Fields { zero_copy, copied, ciphered, unknown }.serialize(serializer)
}

/// Prints `text` unchanged.
///
/// # Errors
///
/// As [`json`].
pub fn text(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

/// Prints `bytes` unchanged.
///
/// # Errors
///
/// As [`json`].
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = Stdout::lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
}
