//! The errors of the lab.

use std::fmt::Display;
use std::io;

/// Result of the lab's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the lab could not do it. The text is one line: the cause and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
    /// This machine lacks something; the text names the package or the remedy.
    #[error("{0}")]
    NotPossible(String),
    /// The caller's stop flag was set; everything was put back.
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// Exit code of a command that ends with this error: 1 failed, 2 usage, 3 not possible on this
    /// machine, 130 stopped.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotPossible(_) => 3,
            Self::Stopped => 130,
        }
    }

    /// It was tried and failed.
    pub fn failed(text: impl Display) -> Self {
        Self::Failed(text.to_string())
    }
}

/// Puts what was tried in front of an operating system error.
pub trait Trying<T> {
    /// The same, with `what` in front of the cause.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`].
    fn trying(self, what: impl Display) -> Result<T>;
}

impl<T, E: Into<io::Error>> Trying<T> for std::result::Result<T, E> {
    fn trying(self, what: impl Display) -> Result<T> {
        self.map_err(|error| Error::Failed(format!("{what}: {}", error.into())))
    }
}
