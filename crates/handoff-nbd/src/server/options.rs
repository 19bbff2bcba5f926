//! Replies to an option, as bytes.

use super::terms::Step;
use crate::wire::{InfoType, MAX_STRING, Malformed, OptionCode, OptionReply, OptionReplyHeader};

/// Replies to one option. The last of them makes the bytes.
pub(super) struct Replies {
    option: OptionCode,
    bytes: Vec<u8>,
}

impl Replies {
    pub(super) fn new(option: OptionCode) -> Self {
        Self { option, bytes: Vec::new() }
    }

    /// Adds a reply, whose data is the parts together.
    pub(super) fn with(mut self, reply: OptionReply, parts: &[&[u8]]) -> Self {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let length = u32::try_from(length).expect("exports have short names and texts");
        let header = OptionReplyHeader { option: self.option, reply, length };
        self.bytes.extend(header.encode());
        parts.iter().for_each(|part| self.bytes.extend(*part));
        self
    }

    pub(super) fn info(self, info: InfoType, parts: &[&[u8]]) -> Self {
        let kind = u16::from(info).to_be_bytes();
        let parts: Vec<&[u8]> = [&kind[..]].into_iter().chain(parts.iter().copied()).collect();
        self.with(OptionReply::Info, &parts)
    }

    pub(super) fn ack(self) -> Vec<u8> {
        self.with(OptionReply::Ack, &[]).bytes
    }

    /// The text is cut where it is longer than strings may be.
    pub(super) fn error(self, error: OptionReply, text: &str) -> Vec<u8> {
        let end = text.floor_char_boundary(MAX_STRING);
        self.with(error, &[&text.as_bytes()[..end]]).bytes
    }

    pub(super) fn refuse(self, error: OptionReply, text: &str) -> Step {
        Step::Send(self.error(error, text))
    }

    pub(super) fn malformed(self, error: Malformed) -> Step {
        let reply = match error {
            Malformed::TooMany => OptionReply::ErrTooBig,
            Malformed::Length | Malformed::Name(_) => OptionReply::ErrInvalid,
        };
        self.refuse(reply, &error.to_string())
    }
}
