//! Strings: names that are checked, and texts of peers that are safe to print.

use std::fmt::{self, Write};

/// The longest string of the protocol, in bytes.
pub const MAX_STRING: usize = 4096;
/// The longest text that is kept to be printed, in bytes.
const PRINTED: usize = 256;

/// Why bytes are no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Longer than [`MAX_STRING`].
    #[error("the name has more than {MAX_STRING} bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("the name is not UTF-8")]
    NotUtf8,
    /// It has a NUL.
    #[error("the name has a NUL")]
    Nul,
}

/// The bytes as a name of an export or of a metadata context. It may be empty: that is the default export.
///
/// # Errors
///
/// Too long, no UTF-8, or a NUL in it.
pub fn check_name(bytes: &[u8]) -> Result<&str, NameError> {
    if bytes.len() > MAX_STRING {
        return Err(NameError::TooLong);
    }
    let name = std::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8)?;
    if name.contains('\0') { Err(NameError::Nul) } else { Ok(name) }
}

/// A text that came from a peer, safe to print: at most 256 bytes and an ellipsis, without control characters and
/// without those that change the direction of writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printable(String);

impl Printable {
    /// Makes a text safe. What is no UTF-8 is replaced.
    pub fn new(bytes: &[u8]) -> Self {
        // An escape is at least as long as what it stands for, so more would be cut off anyway.
        let cut = &bytes[..bytes.len().min(PRINTED + 4)];
        let mut text = String::new();
        for character in String::from_utf8_lossy(cut).chars() {
            let before = text.len();
            let directs = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if character.is_control() || directs || character == '\\' {
                let escaped = character.escape_default();
                write!(text, "{escaped}").expect("a string takes all");
            } else {
                text.push(character);
            }
            if text.len() > PRINTED {
                text.truncate(before);
                text.push('…');
                break;
            }
        }
        Self(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Printable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}
