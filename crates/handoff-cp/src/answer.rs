//! The receiver's answer at the end of a transfer, as the sender reads it.

use handoff_command::Failure;

use crate::checksum::hexadecimal;
use crate::wire::{Decoder, Event, Frame};

/// How it ended for the receiver.
pub(crate) enum Answer {
    /// Everything is in place: bytes and checksum.
    Confirmed(u64, Option<u64>),
    /// It said why not.
    Failed(String),
    /// It left without a word; the visible signs of that.
    Gone(String),
}

impl Answer {
    /// What it confirmed.
    ///
    /// # Errors
    ///
    /// Why it did not.
    pub(crate) fn confirmed(self) -> Result<Confirmed, Failure> {
        match self {
            Self::Confirmed(bytes, checksum) => Ok((bytes, checksum)),
            Self::Failed(reason) => Err(Failure::failed(format!("the receiver failed: {reason}"))),
            Self::Gone(seen) => Err(Failure::failed(format!(
                "the receiver left before it confirmed the transfer: {seen}"
            ))),
        }
    }
}

/// What the receiver confirmed: bytes and checksum.
pub(crate) type Confirmed = (u64, Option<u64>);

/// Compares what the receiver confirmed with what was sent; returns whether checksums were compared.
///
/// # Errors
///
/// What differs.
pub(crate) fn check(bytes: u64, checksum: Option<u64>, answer: Confirmed) -> Result<bool, Failure> {
    let (their_bytes, theirs) = answer;
    if their_bytes != bytes {
        return Err(Failure::failed(format!(
            "the receiver confirmed {their_bytes} bytes of {bytes} that were sent"
        )));
    }
    match (checksum, theirs) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(Failure::failed(format!(
            "the checksums differ: {} was sent and {} arrived",
            hexadecimal(ours),
            hexadecimal(theirs)
        ))),
        (Some(_), None) => Err(Failure::failed("the receiver confirmed no checksum")),
        (ours, _) => Ok(ours.is_some()),
    }
}

/// The answer, once its last byte has come.
pub(crate) fn read(decoder: &mut Decoder, span: &[u8]) -> Option<Answer> {
    let mut bytes = span;
    while !bytes.is_empty() {
        let (taken, event) = match decoder.next(bytes) {
            Ok(next) => next,
            Err(error) => return Some(Answer::Gone(error.to_string())),
        };
        bytes = &bytes[taken..];
        match event {
            None | Some(Event::Frame(Frame::AtWork)) => {}
            Some(Event::Frame(Frame::Answer { bytes, outcome: Ok(sum) })) => {
                return Some(Answer::Confirmed(bytes, sum));
            }
            Some(Event::Frame(Frame::Answer { outcome: Err(reason), .. })) => {
                return Some(Answer::Failed(reason));
            }
            Some(_) => return Some(Answer::Gone("it sends something itself".to_owned())),
        }
    }
    None
}
