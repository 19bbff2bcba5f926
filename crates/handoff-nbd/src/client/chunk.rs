//! Chunks of replies: how long they may be, and what stands in those without payload.

use super::table::Failure;
use crate::request::{Extent, Operation, Request};
use crate::wire::{
    ChunkHeader, ChunkType, ErrorCode, Framing, MAX_STRING, Printable, Reader, ReplyFlags,
    StateFlags,
};

/// The most extents of one chunk, as the protocol asks servers to send.
const EXTENTS: u64 = 1 << 20;
/// The most bytes of an error: its text, its offset, and room for fields of later kinds.
const ERROR: u64 = 6 + MAX_STRING as u64 + 64;

/// What is wrong with a server's reply. The connection is over: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyViolation {
    /// The bytes do not begin as a reply of the agreed kind.
    #[error("the server sends no reply of the agreed kind ({0:#010x})")]
    Magic(u32),
    /// It answers what was not asked, or was answered already.
    #[error("the server answers a request that is not under way (cookie {0:#x})")]
    UnknownCookie(u64),
    /// A kind of chunk that is not known, or that does not belong to its request.
    #[error("the server answers with a kind of chunk that does not fit the request ({0:#x})")]
    Kind(u16),
    /// A chunk with a length that its kind cannot have.
    #[error("the server sends a chunk of a length that its kind cannot have ({0} bytes)")]
    Length(u64),
    /// An extended header with another offset than the request's.
    #[error("the server repeats another offset than the request's ({0})")]
    Offset(u64),
    /// A part of a read that lies outside of it.
    #[error("the server sends bytes outside of the read that it answers")]
    Outside,
    /// A part of a read that has come already.
    #[error("the server sends the same bytes of a read twice")]
    Overlap,
    /// Parts of a read in too many places at once.
    #[error("the server sends a read in too many scattered parts")]
    Scattered,
    /// The second part of a read that was to be in one.
    #[error("the server fragments a read that was to come in one part")]
    Fragmented,
    /// A read that ended before all of it had come.
    #[error("the server ends a read before all bytes have come")]
    Gap,
    /// Extents that the request does not allow.
    #[error("the server sends extents that do not fit the request")]
    Extents,
    /// A context that was not chosen, that comes twice, or that is missing.
    #[error("the server sends the wrong metadata contexts")]
    Contexts,
    /// An error that is none.
    #[error("the server sends an error chunk that is malformed")]
    Error,
    /// A chunk that can only be the last and does not say so.
    #[error("the server sends an empty chunk that is not the last")]
    NotLast,
}

/// Bytes behind a chunk's header that are read before an event: all, or those before payload.
///
/// # Errors
///
/// The chunk does not fit the request.
pub(super) fn fixed_len(
    header: &ChunkHeader,
    framing: Framing,
    request: &Request,
) -> Result<usize, ReplyViolation> {
    let reads = matches!(request.operation, Operation::Read { .. });
    let queries = matches!(request.operation, Operation::BlockStatus { .. });
    let length = header.length;
    let wrong = Err(ReplyViolation::Length(length));
    let extents = |before: u64, each: u64| {
        length > before
            && (length - before).is_multiple_of(each)
            && length <= before + each * EXTENTS
    };
    match header.kind {
        ChunkType::None if length != 0 => wrong,
        ChunkType::None if !header.flags.contains(ReplyFlags::DONE) => Err(ReplyViolation::NotLast),
        ChunkType::None => Ok(0),
        ChunkType::OffsetData if reads && length < 9 => wrong,
        ChunkType::OffsetData if reads => Ok(8),
        ChunkType::OffsetHole if reads && length != 12 => wrong,
        ChunkType::OffsetHole if reads => Ok(12),
        ChunkType::BlockStatus if queries && framing == Framing::Structured => {
            if extents(4, 8) {
                Ok(length as usize)
            } else {
                wrong
            }
        }
        ChunkType::BlockStatusExt if queries && framing == Framing::Extended => {
            if extents(8, 16) {
                Ok(length as usize)
            } else {
                wrong
            }
        }
        kind if kind.is_error() => {
            if (6..=ERROR).contains(&length) {
                Ok(length as usize)
            } else {
                wrong
            }
        }
        kind => Err(ReplyViolation::Kind(kind.into())),
    }
}

/// What an error chunk says.
///
/// # Errors
///
/// Lengths that do not fit, an error of 0, or an offset outside of the request.
pub(super) fn failure(
    kind: ChunkType,
    body: &[u8],
    request: &Request,
) -> Result<Failure, ReplyViolation> {
    let mut reader = Reader(body);
    let parsed = (|| {
        let error = reader.u32().filter(|error| *error != 0)?;
        let len = reader.u16().filter(|len| usize::from(*len) <= MAX_STRING)?;
        let text = reader.bytes(usize::from(len))?;
        let offset = match kind {
            ChunkType::ErrorOffset => Some(reader.u64()?),
            _ => None,
        };
        // Later kinds may have more fields.
        let whole = reader.0.is_empty() || matches!(kind, ChunkType::Other(_));
        whole.then(|| Failure { error: error.into(), offset, text: Printable::new(text) })
    })();
    let failure = parsed.ok_or(ReplyViolation::Error)?;
    let inside =
        |offset: u64| offset.checked_sub(request.offset).is_some_and(|at| at < request.length);
    match failure.offset {
        Some(offset) if !inside(offset) => Err(ReplyViolation::Outside),
        _ => Ok(failure),
    }
}

/// The failure of a simple reply.
pub(super) fn simple_failure(error: ErrorCode) -> Failure {
    Failure { error, offset: None, text: Printable::default() }
}

/// The context and the extents of a chunk. What lies beyond the export's end is left away.
///
/// # Errors
///
/// Extents that are empty, more than the request allows, or whose number is another.
pub(super) fn extents(
    kind: ChunkType,
    body: &[u8],
    request: &Request,
    size: u64,
) -> Result<(u32, Vec<Extent>), ReplyViolation> {
    let mut reader = Reader(body);
    let context = reader.u32().ok_or(ReplyViolation::Extents)?;
    let extended = kind == ChunkType::BlockStatusExt;
    if extended && reader.u32().map(|count| u64::from(count) * 16) != Some(reader.0.len() as u64) {
        return Err(ReplyViolation::Extents);
    }
    let one = request.operation == Operation::BlockStatus { one: true };
    let room = size.saturating_sub(request.offset);
    let (mut extents, mut before) = (Vec::new(), 0_u64);
    loop {
        let next = if extended {
            reader.u64().zip(reader.u64())
        } else {
            reader.u32().map(u64::from).zip(reader.u32().map(u64::from))
        };
        let Some((length, state)) = next else { break };
        let end = before.checked_add(length).ok_or(ReplyViolation::Extents)?;
        let alone = !one || (extents.is_empty() && length <= request.length);
        if length == 0 || before >= request.length || !alone {
            return Err(ReplyViolation::Extents);
        }
        let state = StateFlags::from_bits_retain(state);
        extents.push(Extent { length: end.min(room) - before, state });
        before = end;
    }
    Ok((context, extents))
}
