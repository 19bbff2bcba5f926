//! The terms of a negotiation: what a client wants, the steps on the way, what it has at the end, or why it has nothing.

use crate::target::Target;
use crate::wire::{GreetingError, OptionCode, OptionReply, Printable, Session};

/// What a negotiation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// To use an export.
    Use,
    /// To learn about an export.
    Describe,
    /// To learn the names of all exports.
    List,
}

/// What a client wants.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The export's name; empty for the default one.
    pub export: String,
    /// What for.
    pub goal: Goal,
    /// Headers of 64 bits, if the server has them.
    pub extended: bool,
    /// Replies in chunks, if the server has them and no extended headers.
    pub structured: bool,
    /// Which extents are allocated, if the server tells.
    pub allocation: bool,
    /// Who the client is. Servers that do not know what that is go on without.
    pub session: Option<Session>,
    /// The connection must be ciphered.
    pub tls: bool,
}

impl Wish {
    /// To use an export, with all that the server has.
    pub fn export(name: impl Into<String>) -> Self {
        let (export, goal, session) = (name.into(), Goal::Use, None);
        let (extended, structured, allocation) = (true, true, true);
        Self { export, goal, extended, structured, allocation, session, tls: false }
    }
}

/// An export in a server's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: Printable,
}

/// What the server has agreed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// What requests must keep to.
    pub target: Target,
    /// Whether the server told its block sizes; otherwise they are the protocol's default.
    pub told_block_sizes: bool,
    /// The number of the context [`ALLOCATION`](crate::wire::ALLOCATION), if it was chosen.
    pub allocation: Option<u32>,
    /// Numbers of all contexts that the server chose.
    pub contexts: Vec<u32>,
    /// The name that the server has for the export, if it told.
    pub name: Option<String>,
    /// A text for people.
    pub description: Printable,
    /// The server's instance, if it knows sessions. As long as it stays the same, nothing that was answered is lost.
    pub instance: Option<u128>,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Step {
    /// All was taken, and more must come.
    More,
    /// Send this, and go on.
    Send(Vec<u8>),
    /// Start TLS with the connection's next byte; then call [`Negotiation::tls_started`](super::Negotiation::tls_started).
    StartTls,
    /// The next byte of the connection begins a reply.
    Ready(Box<Agreed>),
    /// What was asked about the export. Send [`abort`](super::abort), and close the connection.
    Described(Box<Agreed>),
    /// The exports. Send [`abort`](super::abort), and close the connection.
    Listed(Vec<Listed>),
    /// Nothing: the step before has not been answered, or there is no next one.
    Waiting,
}

/// Why a negotiation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// The server speaks something else, or too old a style.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// The server has only what fixed newstyle replaced, which cannot do what was asked for.
    #[error("the server does not speak fixed newstyle, and so has no {0}")]
    NotFixed(&'static str),
    /// The server refused an option; with its text, if it sent one. Send [`abort`](super::abort) before you close the connection.
    #[error("the server refused {}: {}", option_words(*.option), refused_words(*.reply, .text))]
    Refused {
        /// The option.
        option: OptionCode,
        /// Its reply.
        reply: OptionReply,
        /// What it says.
        text: Printable,
    },
    /// The server broke the protocol.
    #[error("the server breaks the NBD protocol: {0}")]
    Violation(&'static str),
    /// A reply, or all replies to one option, are longer than the limit.
    #[error("the server sends more than {0} bytes about one option")]
    TooLong(usize),
}

fn option_words(option: OptionCode) -> &'static str {
    match option {
        OptionCode::Go | OptionCode::ExportName | OptionCode::Info => "the export",
        OptionCode::List => "to list its exports",
        OptionCode::StartTls => "TLS",
        OptionCode::Session => "this session",
        _ => "an option",
    }
}

fn refused_words(reply: OptionReply, text: &Printable) -> String {
    let reason = match reply {
        OptionReply::ErrUnsup => "it does not know that",
        OptionReply::ErrPolicy => "its policy forbids that",
        OptionReply::ErrInvalid => "it takes the request for invalid",
        OptionReply::ErrPlatform => "its platform cannot do that",
        OptionReply::ErrTlsReqd => "it wants TLS first",
        OptionReply::ErrUnknown => "there is no such export",
        OptionReply::ErrShutdown => "it is about to end",
        OptionReply::ErrBlockSizeReqd => "it wants to be asked for block sizes",
        OptionReply::ErrTooBig => "the request is too big for it",
        OptionReply::ErrExtHeaderReqd => "it wants extended headers",
        _ => "it does not say why in a way that is known",
    };
    if text.as_str().is_empty() { reason.to_owned() } else { format!("{reason} ({text})") }
}
