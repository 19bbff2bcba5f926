//! Why a connection ends early.

use handoff::Error;

/// Why an answer, and with it the connection, ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    #[error("{0}")]
    Connection(#[from] Error),
    #[error("the client takes too little of the answer")]
    Stalled,
    #[error("the client has ended the connection within the request's body")]
    Left,
    #[error("a file is shorter than the answer has said: it was cut while it was sent")]
    FileEnded,
    #[error("the body of the answer failed: {0}")]
    Body(String),
    #[error("the body of the answer has {0} bytes than its Content-Length")]
    Length(&'static str),
    #[error("{0}, when the answer had begun")]
    Refused(crate::wire::Refusal),
}
