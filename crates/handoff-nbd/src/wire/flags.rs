//! Fields of flags. Bits without a name are kept.

use bitflags::bitflags;

bitflags! {
    /// What a server says of itself in its first message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// It answers every option, also those that it does not know.
        const FIXED_NEWSTYLE = 1;
        /// It can leave away the 124 zeroes behind the answer to [`OptionCode::ExportName`](super::OptionCode::ExportName).
        const NO_ZEROES = 1 << 1;
    }

    /// A client's answer to [`HandshakeFlags`]: it may repeat what the server offered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// It knows answers to options.
        const FIXED_NEWSTYLE = 1;
        /// The 124 zeroes are left away.
        const NO_ZEROES = 1 << 1;
    }

    /// What an export can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// These flags have a meaning; always set.
        const HAS_FLAGS = 1;
        /// Nothing can be written.
        const READ_ONLY = 1 << 1;
        /// It knows flush.
        const SEND_FLUSH = 1 << 2;
        /// It knows [`CommandFlags::FUA`].
        const SEND_FUA = 1 << 3;
        /// It is a disk that turns.
        const ROTATIONAL = 1 << 4;
        /// It knows trim.
        const SEND_TRIM = 1 << 5;
        /// It knows how to write zeroes without payload.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// It knows [`CommandFlags::DF`].
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers what was written on all.
        const CAN_MULTI_CONN = 1 << 8;
        /// It can change its size (an extension that is not known here).
        const SEND_RESIZE = 1 << 9;
        /// It knows cache.
        const SEND_CACHE = 1 << 10;
        /// It knows [`CommandFlags::FAST_ZERO`].
        const SEND_FAST_ZERO = 1 << 11;
        /// A request for block status may name contexts.
        const BLOCK_STATUS_PAYLOAD = 1 << 12;
    }

    /// Flags of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// Answered when the bytes are on stable storage.
        const FUA = 1;
        /// Zeroes are to be written, not made a hole.
        const NO_HOLE = 1 << 1;
        /// A read is answered in one content chunk.
        const DF = 1 << 2;
        /// One extent of block status is enough.
        const REQ_ONE = 1 << 3;
        /// Zeroes are to be refused where they are no faster than a write.
        const FAST_ZERO = 1 << 4;
        /// The length is that of a payload behind the header; extended headers only.
        const PAYLOAD_LEN = 1 << 5;
    }

    /// Flags of a chunk of a reply.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ReplyFlags: u16 {
        /// The last chunk of its reply.
        const DONE = 1;
    }

    /// The status of an extent in [`ALLOCATION`](super::ALLOCATION).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StateFlags: u64 {
        /// Not allocated.
        const HOLE = 1;
        /// Reads as zeroes.
        const ZERO = 1 << 1;
    }
}
