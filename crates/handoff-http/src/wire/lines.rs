//! Finds the end of a head as its bytes come.

use http::StatusCode;

use super::Refusal;
use crate::limits::Limits;

/// Bytes of empty lines that may come before a request.
const EMPTY: usize = 64;

/// Looks for the empty line that ends a head or trailers; looks at each byte once.
///
/// [`Head`](super::Head) has an example.
#[derive(Debug, Default)]
pub struct Lines {
    /// Where the first line begins, behind empty ones.
    start: usize,
    /// Where the current line begins.
    line: usize,
    /// Bytes already looked at.
    seen: usize,
}

impl Lines {
    /// Looks at new bytes since the last call; `bytes` has all. Returns where the head begins and ends once
    /// it is there.
    ///
    /// # Errors
    ///
    /// A line that ends by LF alone, a first byte that begins no request, and heads beyond the limits.
    pub fn find(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Option<(usize, usize)>, Refusal> {
        self.check_begin(bytes)?;
        while let Some(at) = bytes[self.seen..].iter().position(|byte| *byte == b'\n') {
            let end = self.seen + at;
            check_length(end + 1, limits)?;
            if end == self.line || bytes[end - 1] != b'\r' {
                return Err(Refusal::bad("a line ends by LF without CR"));
            }
            let is_empty = end - self.line == 1;
            let is_first = self.is_in_first();
            (self.line, self.seen) = (end + 1, end + 1);
            if is_empty && !is_first {
                return Ok(Some((self.start, end + 1)));
            }
            if is_empty {
                self.start = end + 1;
                self.check_begin(bytes)?;
            }
        }
        self.seen = bytes.len();
        check_length(bytes.len(), limits)?;
        Ok(None)
    }

    /// Whether a request may begin with this.
    fn check_begin(&self, bytes: &[u8]) -> Result<(), Refusal> {
        if self.start > EMPTY {
            return Err(Refusal::bad("there are many empty lines, and no request"));
        }
        match bytes.get(self.start) {
            Some(byte) if !is_token(*byte) && !b"\r\n".contains(byte) => {
                Err(Refusal::bad("this is no HTTP request"))
            }
            _ => Ok(()),
        }
    }

    /// Whether no line has ended yet.
    pub fn is_in_first(&self) -> bool {
        self.line == self.start
    }
}

fn check_length(end: usize, limits: &Limits) -> Result<(), Refusal> {
    if end <= limits.head {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "the request's fields are longer than this server takes",
    ))
}

/// A byte of a token, as in methods and field names.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
