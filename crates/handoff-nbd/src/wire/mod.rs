//! What goes over a connection: numbers, flags, headers and the data of options. All numbers are big-endian.
//!
//! Unknown numbers and flags are kept as they came, and so encode to what was decoded.

mod flags;
mod gather;
mod handshake;
mod head;
mod numbers;
mod options;
mod reader;
mod text;
mod transmission;

pub use flags::{
    ClientFlags, CommandFlags, HandshakeFlags, ReplyFlags, StateFlags, TransmissionFlags,
};
pub(crate) use gather::Gather;
pub use handshake::{
    EXPORT_REPLY_LEN, GREETING_LEN, GreetingError, OPTION_LEN, OPTION_REPLY_LEN, OptionHeader,
    OptionReplyHeader, ZEROES, decode_greeting, encode_greeting,
};
pub use head::Head;
pub use numbers::{ChunkType, Command, ErrorCode, InfoType, OptionCode, OptionReply};
pub use options::{InfoRequest, Malformed, MetaRequest, Session};
pub(crate) use reader::Reader;
pub use text::{MAX_STRING, NameError, Printable, check_name};
pub use transmission::{
    ChunkHeader, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, Framing, REQUEST_MAGIC,
    RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply,
};

/// The one metadata context that is known here: which parts of an export are allocated.
pub const ALLOCATION: &str = "base:allocation";
