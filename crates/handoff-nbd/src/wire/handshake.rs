//! The messages of negotiation, without the data of options.

use super::{HandshakeFlags, OptionCode, OptionReply, Reader};

const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OLD_STYLE: u64 = 0x0000_4202_8186_1253;
const REPLY: u64 = 0x0003_e889_0455_65a9;

/// Bytes of a server's first message.
pub const GREETING_LEN: usize = 18;
/// Bytes of an option without its data.
pub const OPTION_LEN: usize = 16;
/// Bytes of a reply to an option without its data.
pub const OPTION_REPLY_LEN: usize = 20;
/// Bytes of the answer to [`OptionCode::ExportName`], without zeroes: size and flags.
pub const EXPORT_REPLY_LEN: usize = 10;
/// Zeroes behind that answer where they are not left away.
pub const ZEROES: usize = 124;

/// Why a server's first message is none that we can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    /// The server speaks something else.
    #[error("what answers there is no NBD server")]
    NotNbd,
    /// The style of before 2011, without options.
    #[error("the server speaks only the oldstyle handshake of NBD, which has no names of exports")]
    OldStyle,
}

/// The first message of a server.
pub fn encode_greeting(flags: HandshakeFlags) -> [u8; GREETING_LEN] {
    let mut bytes = [0; GREETING_LEN];
    bytes[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
    bytes[16..].copy_from_slice(&flags.bits().to_be_bytes());
    bytes
}

/// Reads the first message of a server.
///
/// # Errors
///
/// It is another protocol, or another style of this one.
pub fn decode_greeting(bytes: &[u8; GREETING_LEN]) -> Result<HandshakeFlags, GreetingError> {
    let mut reader = Reader(bytes);
    if reader.u64() != Some(NBDMAGIC) {
        return Err(GreetingError::NotNbd);
    }
    match reader.u64() {
        Some(IHAVEOPT) => {}
        Some(OLD_STYLE) => return Err(GreetingError::OldStyle),
        _ => return Err(GreetingError::NotNbd),
    }
    Ok(HandshakeFlags::from_bits_retain(reader.u16().ok_or(GreetingError::NotNbd)?))
}

/// What stands before an option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which option.
    pub option: OptionCode,
    /// Bytes of its data.
    pub length: u32,
}

impl OptionHeader {
    /// Its form on the wire.
    pub fn encode(&self) -> [u8; OPTION_LEN] {
        let mut bytes = [0; OPTION_LEN];
        bytes[..8].copy_from_slice(&IHAVEOPT.to_be_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.option).to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Reads one; `None` if the bytes do not begin as one.
    pub fn decode(bytes: &[u8; OPTION_LEN]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u64()? != IHAVEOPT {
            return None;
        }
        Some(Self { option: reader.u32()?.into(), length: reader.u32()? })
    }
}

/// What stands before the data of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: OptionCode,
    /// What kind of reply.
    pub reply: OptionReply,
    /// Bytes of its data.
    pub length: u32,
}

impl OptionReplyHeader {
    /// Its form on the wire.
    pub fn encode(&self) -> [u8; OPTION_REPLY_LEN] {
        let mut bytes = [0; OPTION_REPLY_LEN];
        bytes[..8].copy_from_slice(&REPLY.to_be_bytes());
        bytes[8..12].copy_from_slice(&u32::from(self.option).to_be_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.reply).to_be_bytes());
        bytes[16..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Reads one; `None` if the bytes do not begin as one.
    pub fn decode(bytes: &[u8; OPTION_REPLY_LEN]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u64()? != REPLY {
            return None;
        }
        let (option, reply) = (reader.u32()?.into(), reader.u32()?.into());
        Some(Self { option, reply, length: reader.u32()? })
    }
}
