//! The reply to a request: headers to send, and where payload goes between them.
//!
//! Contracts:
//! - content goes in order, so that parts neither overlap nor leave gaps, and a reply that says that all went well has all;
//! - the last part takes the answer away, so nothing follows it;
//! - what a client must not get (parts of a simple reply, several parts of an unfragmented read) is refused as
//!   [`Misuse`].

use crate::request::{Extent, Operation, Request};
use crate::target::Target;
use crate::wire::{
    ChunkHeader, ChunkType, ErrorCode, Framing, Head, MAX_STRING, ReplyFlags, RequestHeader,
    SimpleReply,
};

/// A server called an [`Answer`] in a way that the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The request is of another kind.
    #[error("the request does not ask for that")]
    OtherRequest,
    /// More bytes than the request asks for, or none.
    #[error("the part is empty, or ends beyond the request")]
    Range,
    /// A success before all bytes of a read were given.
    #[error("the read has not been answered whole")]
    Incomplete,
    /// The client takes one part only.
    #[error("the client takes the read in one part only")]
    OnePart,
    /// An extent without bytes, too many bytes, or too many extents.
    #[error("the extents do not fit the request")]
    Extents,
}

/// The most extents of one reply.
const EXTENTS: usize = 1 << 20;

/// A reply to be made.
#[derive(Clone, Debug)]
pub struct Answer {
    framing: Framing,
    cookie: u64,
    /// The request's offset, which extended headers repeat.
    offset: u64,
    length: u64,
    /// `None` if it was refused: it can only fail.
    operation: Option<Operation>,
    is_read: bool,
    /// Bytes of a read that were given.
    given: u64,
}

impl Answer {
    pub(super) fn new(target: &Target, header: &RequestHeader, request: Option<Request>) -> Self {
        Self {
            framing: target.framing,
            cookie: header.cookie,
            offset: header.offset,
            length: header.length,
            operation: request.map(|request| request.operation),
            is_read: header.command == crate::wire::Command::Read,
            given: 0,
        }
    }

    /// The client's number for the request.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Whether a read may be answered in parts, and holes as holes.
    pub fn takes_parts(&self) -> bool {
        self.framing != Framing::Simple
            && self.operation == Some(Operation::Read { unfragmented: false })
    }

    /// Bytes of a read that have not been given.
    pub fn remaining(&self) -> u64 {
        if self.is_read { self.length - self.given } else { 0 }
    }

    /// A success without payload: of anything but a read, or of a read whose parts were all given.
    ///
    /// # Errors
    ///
    /// The request was refused, or has payload that was not given.
    pub fn done(self) -> Result<Head, Misuse> {
        match self.operation {
            None | Some(Operation::BlockStatus { .. }) => return Err(Misuse::OtherRequest),
            Some(Operation::Read { .. }) if self.remaining() > 0 => return Err(Misuse::Incomplete),
            Some(_) => {}
        }
        Ok(match self.framing {
            // A read that was given in parts has its chunks ended by one.
            Framing::Structured if !self.is_read => self.simple(None),
            Framing::Simple => self.simple(None),
            _ => self.chunk(ChunkType::None, true, 0)?,
        })
    }

    /// Send this, then the rest of a read as payload, and the answer is complete. Only for bytes that cannot fail any
    /// more: where they do, the connection must be closed.
    ///
    /// # Errors
    ///
    /// It is no read, or nothing is left.
    pub fn last_data(self) -> Result<Head, Misuse> {
        let len = self.remaining();
        if self.framing == Framing::Simple {
            self.part(len)?;
            return Ok(self.simple(None));
        }
        self.data_chunk(len, true)
    }

    /// Send this, then the next `len` bytes of a read as payload; the answer goes on.
    ///
    /// # Errors
    ///
    /// It is no read, the bytes are too many or none, or the client takes the read only whole.
    pub fn data(&mut self, len: u64) -> Result<Head, Misuse> {
        if self.framing == Framing::Simple || (!self.takes_parts() && len < self.length) {
            return Err(Misuse::OnePart);
        }
        let head = self.data_chunk(len, false)?;
        self.given += len;
        Ok(head)
    }

    /// The next `len` bytes of a read are zeroes; the answer goes on.
    ///
    /// # Errors
    ///
    /// It is no read, the bytes are too many or none, or the client does not take holes.
    pub fn hole(&mut self, len: u64) -> Result<Head, Misuse> {
        let head = self.hole_chunk(len, false)?;
        self.given += len;
        Ok(head)
    }

    /// The rest of a read is zeroes, and the answer is complete.
    ///
    /// # Errors
    ///
    /// It is no read, nothing is left, or the client does not take holes.
    pub fn last_hole(self) -> Result<Head, Misuse> {
        self.hole_chunk(self.remaining(), true)
    }

    /// The extents from the request's offset on, of a context by its number in negotiation; the answer is complete.
    ///
    /// # Errors
    ///
    /// It asks for no block status; an extent is empty; all but the last reach the request's end; there are several where
    /// one was asked for, or that one is longer than the request.
    pub fn status(self, context: u32, extents: &[Extent]) -> Result<Vec<u8>, Misuse> {
        let Some(Operation::BlockStatus { one }) = self.operation else {
            return Err(Misuse::OtherRequest);
        };
        let mut before = 0_u64;
        for extent in extents {
            let end = before.checked_add(extent.length).ok_or(Misuse::Extents)?;
            if extent.length == 0 || before >= self.length || (one && end > self.length) {
                return Err(Misuse::Extents);
            }
            before = end;
        }
        if extents.is_empty() || (one && extents.len() > 1) || extents.len() > EXTENTS {
            return Err(Misuse::Extents);
        }
        let mut body = context.to_be_bytes().to_vec();
        let kind = if self.framing == Framing::Extended {
            body.extend(u32::try_from(extents.len()).map_err(|_| Misuse::Extents)?.to_be_bytes());
            for extent in extents {
                body.extend(extent.length.to_be_bytes());
                body.extend(extent.state.bits().to_be_bytes());
            }
            ChunkType::BlockStatusExt
        } else {
            // Both sides know less than the extent's length where 32 bits are too few.
            for extent in extents {
                let length = u32::try_from(extent.length).unwrap_or(!0xffff);
                let state = u32::try_from(extent.state.bits()).map_err(|_| Misuse::Extents)?;
                body.extend(length.to_be_bytes());
                body.extend(state.to_be_bytes());
                if u64::from(length) < extent.length {
                    break;
                }
            }
            ChunkType::BlockStatus
        };
        let mut bytes = self.chunk(kind, true, body.len() as u64)?.to_vec();
        bytes.extend(body);
        Ok(bytes)
    }

    /// The request failed, and the answer is complete. A text for people goes along where the client takes one; it is cut
    /// at 4,096 bytes.
    pub fn fail(self, error: ErrorCode, text: &str) -> Vec<u8> {
        self.failure(error, text, None)
    }

    /// The request failed at an offset of the export, and the answer is complete.
    ///
    /// # Errors
    ///
    /// The offset lies outside of the request.
    pub fn fail_at(self, error: ErrorCode, text: &str, offset: u64) -> Result<Vec<u8>, Misuse> {
        if offset.checked_sub(self.offset).is_none_or(|at| at >= self.length) {
            return Err(Misuse::Range);
        }
        Ok(self.failure(error, text, Some(offset)))
    }

    fn failure(&self, error: ErrorCode, text: &str, offset: Option<u64>) -> Vec<u8> {
        // 0 would be a success.
        let error = if u32::from(error) == 0 { ErrorCode::Io } else { error };
        let text = &text.as_bytes()[..text.floor_char_boundary(MAX_STRING)];
        let kind = offset.map_or(ChunkType::Error, |_| ChunkType::ErrorOffset);
        let length = 6 + text.len() + offset.map_or(0, |_| 8);
        let Ok(head) = self.chunk(kind, true, length as u64) else {
            return self.simple(Some(error)).to_vec();
        };
        let mut bytes = head.to_vec();
        bytes.extend(u32::from(error).to_be_bytes());
        bytes.extend(u16::try_from(text.len()).unwrap_or(0).to_be_bytes());
        bytes.extend(text);
        bytes.extend(offset.map(u64::to_be_bytes).into_iter().flatten());
        bytes
    }

    /// Whether the next part of a read may have this length.
    fn part(&self, len: u64) -> Result<(), Misuse> {
        match self.operation {
            Some(Operation::Read { .. }) if len > 0 && len <= self.remaining() => Ok(()),
            Some(Operation::Read { .. }) => Err(Misuse::Range),
            _ => Err(Misuse::OtherRequest),
        }
    }

    fn data_chunk(&self, len: u64, last: bool) -> Result<Head, Misuse> {
        self.part(len)?;
        let head = self.chunk(ChunkType::OffsetData, last, len + 8)?;
        Ok(head.with(&(self.offset + self.given).to_be_bytes()))
    }

    fn hole_chunk(&self, len: u64, last: bool) -> Result<Head, Misuse> {
        self.part(len)?;
        if !self.takes_parts() {
            return Err(Misuse::OnePart);
        }
        let size = u32::try_from(len).map_err(|_| Misuse::Range)?;
        let head = self.chunk(ChunkType::OffsetHole, last, 12)?;
        Ok(head.with(&(self.offset + self.given).to_be_bytes()).with(&size.to_be_bytes()))
    }

    fn chunk(&self, kind: ChunkType, last: bool, length: u64) -> Result<Head, Misuse> {
        let flags = if last { ReplyFlags::DONE } else { ReplyFlags::empty() };
        let (cookie, offset) = (self.cookie, self.offset);
        let header = ChunkHeader { flags, kind, cookie, offset, length };
        header.encode(self.framing).ok_or(Misuse::Range)
    }

    fn simple(&self, error: Option<ErrorCode>) -> Head {
        SimpleReply { error, cookie: self.cookie }.encode()
    }
}
