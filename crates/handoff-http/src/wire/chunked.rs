//! Bodies in chunks.

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;

use super::head::fields_of;
use super::{Lines, Refusal, TOO_LONG, TOO_MANY_FIELDS};
use crate::limits::Limits;

/// Bytes of the line before a chunk: its size and extensions.
const LINE: usize = 256;
/// Bytes of such lines that a body may have beyond its own length.
const LINES: u64 = 16 << 10;

/// What comes next in a body.
#[derive(Debug)]
pub enum Piece {
    /// Bytes, at least one.
    Data(Bytes),
    /// Fields, behind which nothing comes.
    Trailers(HeaderMap),
    /// Nothing.
    End,
}

enum State {
    Size,
    /// So many bytes of the chunk are left, and the end of its line.
    Chunk(u64),
    Trailers(Lines),
    Over,
}

/// Takes chunks apart.
///
/// ```
/// use bytes::BytesMut;
/// use handoff_http::Limits;
/// use handoff_http::wire::{Chunked, Piece};
///
/// let mut received = BytesMut::from(&b"5\r\nhello\r\n0\r\n\r\n"[..]);
/// let mut body = Chunked::new();
/// let piece = body.next(&mut received, &Limits::default()).unwrap();
/// assert!(matches!(piece, Some(Piece::Data(bytes)) if bytes == "hello"));
/// ```
pub struct Chunked {
    state: State,
    /// Bytes of chunks.
    body: u64,
    /// Bytes of lines between them.
    lines: u64,
}

impl Chunked {
    /// A body that begins here.
    #[allow(clippy::new_without_default, reason = "it is a beginning, not a default")]
    pub fn new() -> Self {
        Self { state: State::Size, body: 0, lines: 0 }
    }

    /// Whether all of the body was taken.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Takes the next piece out of received bytes; `None` if it is not there yet.
    ///
    /// # Errors
    ///
    /// Status 400 for something that is no chunk, 413 and 431 beyond the limits. The body ends with that.
    pub fn next(
        &mut self,
        received: &mut BytesMut,
        limits: &Limits,
    ) -> Result<Option<Piece>, Refusal> {
        loop {
            match &mut self.state {
                State::Size => {
                    let Some(line) = take_line(received)? else { return Ok(None) };
                    let size = size(&line)?;
                    self.body = self.body.checked_add(size).ok_or(TOO_LONG)?;
                    self.lines += line.len() as u64;
                    if self.body > limits.body {
                        return Err(TOO_LONG);
                    }
                    // Many small chunks with long extensions would be useless work.
                    if self.lines > LINES + self.body {
                        return Err(Refusal::bad("the body has more lines than bytes"));
                    }
                    self.state = match size {
                        0 => State::Trailers(Lines::default()),
                        _ => State::Chunk(size),
                    };
                }
                State::Chunk(0) => {
                    if !received.starts_with(&b"\r\n"[..received.len().min(2)]) {
                        return Err(Refusal::bad("a chunk is longer than its size"));
                    }
                    if received.len() < 2 {
                        return Ok(None);
                    }
                    received.advance(2);
                    self.state = State::Size;
                }
                State::Chunk(_) if received.is_empty() => return Ok(None),
                State::Chunk(left) => {
                    let len = received.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= len as u64;
                    return Ok(Some(Piece::Data(received.split_to(len).freeze())));
                }
                State::Trailers(lines) => {
                    if received.starts_with(b"\r\n") {
                        received.advance(2);
                        self.state = State::Over;
                        return Ok(Some(Piece::End));
                    }
                    let Some((_, end)) = lines.find(received, limits)? else { return Ok(None) };
                    let trailers = trailers(&received.split_to(end).freeze(), limits)?;
                    self.state = State::Over;
                    return Ok(Some(Piece::Trailers(trailers)));
                }
                State::Over => return Ok(Some(Piece::End)),
            }
        }
    }
}

/// The next line, without its end.
fn take_line(received: &mut BytesMut) -> Result<Option<Bytes>, Refusal> {
    let within = &received[..received.len().min(LINE)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        return match within.len() {
            LINE => Err(Refusal::bad("the line before a chunk is longer than 256 bytes")),
            _ => Ok(None),
        };
    };
    if end == 0 || within[end - 1] != b'\r' {
        return Err(Refusal::bad("a line ends by LF without CR"));
    }
    let mut line = received.split_to(end + 1).freeze();
    line.truncate(end - 1);
    Ok(Some(line))
}

/// The size at the beginning of a line; extensions behind it are ignored.
fn size(line: &[u8]) -> Result<u64, Refusal> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    let blanks = rest.iter().take_while(|byte| b" \t".contains(byte)).count();
    let extends = matches!(&rest[blanks..], [b';', extension @ ..]
        if extension.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control()));
    if !(1..=16).contains(&digits.len()) || !(rest.is_empty() || extends) {
        return Err(Refusal::bad("a chunk's size is no number of at most 16 hexadecimal digits"));
    }
    Ok(digits.iter().fold(0, |size, digit| {
        size << 4 | u64::from(char::from(*digit).to_digit(16).unwrap_or_default())
    }))
}

fn trailers(lines: &Bytes, limits: &Limits) -> Result<HeaderMap, Refusal> {
    let mut fields = vec![httparse::EMPTY_HEADER; limits.fields];
    match httparse::parse_headers(lines, &mut fields) {
        Ok(httparse::Status::Complete((len, fields))) if len == lines.len() => {
            fields_of(lines, fields)
        }
        Err(httparse::Error::TooManyHeaders) => Err(TOO_MANY_FIELDS),
        _ => Err(Refusal::bad("the trailers are no fields")),
    }
}
