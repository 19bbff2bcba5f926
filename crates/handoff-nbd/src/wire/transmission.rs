//! Headers of requests and replies.

use super::{ChunkType, Command, CommandFlags, ErrorCode, Head, Reader, ReplyFlags};

/// Begins a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a reply that is no chunk.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Begins an extended chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Which headers a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Replies are a header, and the bytes of a read.
    Simple,
    /// Reads are answered in chunks, other requests also by simple replies.
    Structured,
    /// Headers have 64 bits, and all replies are chunks.
    Extended,
}

impl Framing {
    /// Bytes of a request's header.
    pub fn request_len(self) -> usize {
        match self {
            Self::Simple | Self::Structured => 28,
            Self::Extended => 32,
        }
    }

    /// Bytes of a chunk's header. There are none with [`Framing::Simple`].
    pub(crate) fn chunk_len(self) -> usize {
        match self {
            Self::Simple | Self::Structured => 20,
            Self::Extended => 32,
        }
    }
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Flags.
    pub flags: CommandFlags,
    /// What it asks for.
    pub command: Command,
    /// The client's number for it, opaque for the server.
    pub cookie: u64,
    /// From where in the export, in bytes.
    pub offset: u64,
    /// How many bytes. Only extended headers have more than 32 bits.
    pub length: u64,
}

impl RequestHeader {
    /// Its form on the wire; `None` where the length does not fit.
    pub fn encode(&self, framing: Framing) -> Option<Head> {
        let magic = match framing {
            Framing::Simple | Framing::Structured => REQUEST_MAGIC,
            Framing::Extended => EXTENDED_REQUEST_MAGIC,
        };
        let head = Head::new()
            .with(&magic.to_be_bytes())
            .with(&self.flags.bits().to_be_bytes())
            .with(&u16::from(self.command).to_be_bytes())
            .with(&self.cookie.to_be_bytes())
            .with(&self.offset.to_be_bytes());
        Some(match framing {
            Framing::Simple | Framing::Structured => {
                head.with(&u32::try_from(self.length).ok()?.to_be_bytes())
            }
            Framing::Extended => head.with(&self.length.to_be_bytes()),
        })
    }

    /// Reads one; `None` where the bytes are too few, or begin in another way.
    pub fn decode(framing: Framing, bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        let flags = CommandFlags::from_bits_retain(reader.u16()?);
        let command = reader.u16()?.into();
        let (cookie, offset) = (reader.u64()?, reader.u64()?);
        let length = match (framing, magic) {
            (Framing::Simple | Framing::Structured, REQUEST_MAGIC) => u64::from(reader.u32()?),
            (Framing::Extended, EXTENDED_REQUEST_MAGIC) => reader.u64()?,
            _ => return None,
        };
        Some(Self { flags, command, cookie, offset, length })
    }
}

/// A reply that is no chunk. The bytes of a read follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// Why the request failed, if it did.
    pub error: Option<ErrorCode>,
    /// The request's.
    pub cookie: u64,
}

impl SimpleReply {
    /// Bytes of its form on the wire.
    pub const LEN: usize = 16;

    /// Its form on the wire.
    pub fn encode(&self) -> Head {
        Head::new()
            .with(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .with(&self.error.map_or(0, u32::from).to_be_bytes())
            .with(&self.cookie.to_be_bytes())
    }

    /// Reads one; `None` where the bytes are too few, or begin in another way.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != SIMPLE_REPLY_MAGIC {
            return None;
        }
        let error = Some(reader.u32()?).filter(|error| *error != 0).map(ErrorCode::from);
        Some(Self { error, cookie: reader.u64()? })
    }
}

/// The header of a chunk, of structured or extended replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Flags.
    pub flags: ReplyFlags,
    /// What it brings.
    pub kind: ChunkType,
    /// The request's.
    pub cookie: u64,
    /// The request's; only extended headers have it, and it is 0 in others.
    pub offset: u64,
    /// Bytes behind the header. Only extended headers have more than 32 bits.
    pub length: u64,
}

impl ChunkHeader {
    /// Its form on the wire; `None` where the length does not fit, or with [`Framing::Simple`].
    pub fn encode(&self, framing: Framing) -> Option<Head> {
        let magic = match framing {
            Framing::Simple => return None,
            Framing::Structured => STRUCTURED_REPLY_MAGIC,
            Framing::Extended => EXTENDED_REPLY_MAGIC,
        };
        let head = Head::new()
            .with(&magic.to_be_bytes())
            .with(&self.flags.bits().to_be_bytes())
            .with(&u16::from(self.kind).to_be_bytes())
            .with(&self.cookie.to_be_bytes());
        Some(match framing {
            Framing::Extended => {
                head.with(&self.offset.to_be_bytes()).with(&self.length.to_be_bytes())
            }
            _ => head.with(&u32::try_from(self.length).ok()?.to_be_bytes()),
        })
    }

    /// Reads one; `None` where the bytes are too few, or begin in another way.
    pub fn decode(framing: Framing, bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        let flags = ReplyFlags::from_bits_retain(reader.u16()?);
        let kind = reader.u16()?.into();
        let cookie = reader.u64()?;
        let (offset, length) = match (framing, magic) {
            (Framing::Structured, STRUCTURED_REPLY_MAGIC) => (0, u64::from(reader.u32()?)),
            (Framing::Extended, EXTENDED_REPLY_MAGIC) => (reader.u64()?, reader.u64()?),
            _ => return None,
        };
        Some(Self { flags, kind, cookie, offset, length })
    }
}
