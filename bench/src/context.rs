//! How a bench is called, and how it fails.

use std::io;

use handoff_lab::StopFlag;
use handoff_testbed::TopologyError;

/// How the command was called.
pub struct Context<'a> {
    /// One JSON object on `out` and nothing else.
    pub json: bool,
    /// Set when the user wants it to end (SIGINT, SIGTERM).
    pub stop: &'a StopFlag,
    /// Where results go.
    pub out: &'a mut dyn io::Write,
}

/// Why a bench fails. Each text is one line with the cause and what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line makes no sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// This machine cannot do it: exit code 3.
    #[error("{0}")]
    NotPossible(String),
    /// The attempt failed: exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The user ended it; nothing is left behind.
    #[error("stopped before the table was complete")]
    Stopped,
    /// The results could not be written to `out`.
    #[error("the result could not be written: {0}")]
    Output(#[source] io::Error),
}

impl From<TopologyError> for BenchError {
    fn from(error: TopologyError) -> Self {
        match error.is_unavailable() {
            true => Self::NotPossible(error.to_string()),
            false => Self::Failed(error.to_string()),
        }
    }
}
