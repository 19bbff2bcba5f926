//! How a device can fail to be, each in one line with the cause and the remedy.

use std::io;

use serde::{Deserialize, Serialize};

/// Error of this crate; the kinds are the exit codes of the command.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// This machine, kernel or user cannot do it.
    #[error("{0}")]
    NotPossible(String),
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// The kernel had no memory for it, and may have some later.
    #[error("{0}")]
    NoMemory(String),
}

impl Error {
    pub(crate) fn usage(cause: impl Into<String>) -> Self {
        Self::Usage(cause.into())
    }

    pub(crate) fn failed(cause: impl Into<String>) -> Self {
        Self::Failed(cause.into())
    }

    /// For `map_err`: what was being done, and the kernel's answer.
    pub(crate) fn doing<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |error| {
            let error = error.into();
            let text = format!("{what}: {error}");
            match error.kind() {
                io::ErrorKind::OutOfMemory => Self::NoMemory(text),
                _ => Self::Failed(text),
            }
        }
    }
}
