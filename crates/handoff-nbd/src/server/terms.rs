//! The terms of a negotiation: what a server agrees to, the steps on the way, and what both sides have at the end.

use super::exports::Export;
use crate::target::Target;
use crate::wire::{OptionCode, Session};

/// Whether connections are ciphered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// Never; the server does not know TLS.
    Unsupported,
    /// Never; the server knows TLS, and does not want it here.
    Unwanted,
    /// If the client asks for it.
    Offered,
    /// Always.
    Required,
}

/// What a server agrees to.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// TLS.
    pub tls: Tls,
    /// Whether clients may list the exports.
    pub lists: bool,
    /// Replies in chunks.
    pub structured: bool,
    /// Headers of 64 bits.
    pub extended: bool,
    /// Sessions of our clients ([`OptionCode::Session`]).
    pub sessions: bool,
}

impl Default for Policy {
    /// All but TLS.
    fn default() -> Self {
        Self {
            tls: Tls::Unsupported,
            lists: true,
            structured: true,
            extended: true,
            sessions: true,
        }
    }
}

/// What a client has got.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// The export.
    pub export: Export,
    /// What requests must keep to.
    pub target: Target,
    /// Who the client is, if it said so.
    pub session: Option<Session>,
    /// Whether TLS runs.
    pub tls: bool,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Step {
    /// All was taken, and more must come.
    More,
    /// Send this, and go on.
    Send(Vec<u8>),
    /// Send this, and start TLS with the connection's next byte; then call [`Negotiation::tls_started`](super::Negotiation::tls_started).
    StartTls(Vec<u8>),
    /// End what older turns of this session have under way, then call
    /// [`Negotiation::admit`](super::Negotiation::admit) or [`Negotiation::reject`](super::Negotiation::reject).
    Session(Session),
    /// Send this: the next byte of the connection begins a request.
    Ready(Vec<u8>, Box<Agreed>),
    /// Send this, and close the connection: the client has done with it.
    Abort(Vec<u8>),
    /// Nothing: the step before has not been answered, or there is no next one.
    Waiting,
}

/// Why a connection cannot go on. Nothing can be sent about it: close it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Unknown flags, or some that were not offered.
    #[error("the client sets handshake flags that were not offered ({0:#x})")]
    Flags(u32),
    /// The bytes do not begin as an option.
    #[error("the client sends no option of NBD")]
    Magic,
    /// An option that only fixed newstyle has.
    #[error("the client uses {0:?} without fixed newstyle")]
    NotFixed(OptionCode),
    /// An option that is too long to be skipped.
    #[error("an option of the client has {0} bytes")]
    TooLong(u32),
    /// More options than the limit.
    #[error("the client sends more than {0} options")]
    TooMany(u32),
    /// An export that the client does not get, chosen in the old way, which has no answer for that.
    #[error(
        "the client chose an export by NBD_OPT_EXPORT_NAME, which has no answer for errors: {0}"
    )]
    NoExport(String),
}
