//! Negotiation, as a client sees it: reads the server's messages, and asks [`Haggling`] what comes next.
//!
//! Contracts:
//! - a server holds at most [`Limits::reply`] bytes of memory for a reply, and [`Limits::gathered`] for all replies to an
//!   option. How long it may take is the caller's to bound;
//! - [`Negotiation::next`] takes no byte beyond the message that ends its step;
//! - a text of the server is safe to print.

use super::haggling::Haggling;
use super::terms::{NegotiationError, Step, Wish};
use crate::wire::{
    EXPORT_REPLY_LEN, GREETING_LEN, Gather, OPTION_LEN, OPTION_REPLY_LEN, OptionCode, OptionHeader,
    OptionReplyHeader, ZEROES, decode_greeting,
};

/// What a server may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one reply's data.
    pub reply: usize,
    /// Bytes of all replies to one option.
    pub gathered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reply: 1 << 14, gathered: 1 << 20 }
    }
}

/// What a client sends to end a negotiation that it will not use.
pub fn abort() -> [u8; OPTION_LEN] {
    OptionHeader { option: OptionCode::Abort, length: 0 }.encode()
}

#[derive(Clone, Copy, Debug)]
enum State {
    Greeting,
    Header,
    Data(OptionReplyHeader),
    /// The answer to an export chosen in the old way, of so many bytes.
    Export(usize),
    Tls,
    Over,
}

/// A negotiation.
#[derive(Debug)]
pub struct Negotiation {
    haggling: Haggling,
    limits: Limits,
    state: State,
    message: Gather,
    gathered: usize,
}

impl Negotiation {
    /// Begins one. The server speaks first.
    pub fn new(wish: Wish, limits: Limits) -> Self {
        Self {
            haggling: Haggling::new(wish),
            limits,
            state: State::Greeting,
            message: Gather::default(),
            gathered: 0,
        }
    }

    /// Takes bytes of the server. Returns how many, and what is to be done.
    ///
    /// # Errors
    ///
    /// The server refuses, or breaks the protocol. The connection is over.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Step), NegotiationError> {
        let mut taken = 0;
        loop {
            let want = match self.state {
                State::Greeting => GREETING_LEN,
                State::Header => OPTION_REPLY_LEN,
                State::Data(header) => header.length as usize,
                State::Export(len) => len,
                State::Tls | State::Over => return Ok((taken, Step::Waiting)),
            };
            let (more, whole) = self.message.fill(&input[taken..], want);
            taken += more;
            if !whole {
                return Ok((taken, Step::More));
            }
            let message = self.message.take();
            let step = match self.state {
                State::Greeting => {
                    let message = message.try_into().expect("is whole");
                    let flags = decode_greeting(&message)?;
                    self.state = State::Header;
                    Some(self.haggling.greeted(flags)?)
                }
                State::Header => {
                    let header = self.header(&message)?;
                    self.state = State::Data(header);
                    None
                }
                State::Data(header) => {
                    self.state = State::Header;
                    self.haggling.reply(header.reply, &message)?
                }
                _ => Some(self.haggling.chosen(&message)?),
            };
            if let Some(step) = step {
                match &step {
                    Step::Send(_) => {
                        self.gathered = 0;
                        if let Some(no_zeroes) = self.haggling.waits_for_export() {
                            let zeroes = if no_zeroes { 0 } else { ZEROES };
                            self.state = State::Export(EXPORT_REPLY_LEN + zeroes);
                        }
                    }
                    Step::StartTls => self.state = State::Tls,
                    _ => self.state = State::Over,
                }
                return Ok((taken, step));
            }
        }
    }

    fn header(&mut self, message: &[u8]) -> Result<OptionReplyHeader, NegotiationError> {
        let header = message.try_into().ok().and_then(OptionReplyHeader::decode);
        let violation = NegotiationError::Violation("its reply to an option does not begin as one");
        let header = header.ok_or(violation)?;
        if Some(header.option) != self.haggling.asked() {
            return Err(NegotiationError::Violation("it answers an option that was not asked"));
        }
        let length = header.length as usize;
        self.gathered = self.gathered.saturating_add(OPTION_REPLY_LEN).saturating_add(length);
        if length > self.limits.reply {
            return Err(NegotiationError::TooLong(self.limits.reply));
        }
        if self.gathered > self.limits.gathered {
            return Err(NegotiationError::TooLong(self.limits.gathered));
        }
        Ok(header)
    }

    /// TLS runs, after [`Step::StartTls`]: the next step.
    pub fn tls_started(&mut self) -> Step {
        if !matches!(self.state, State::Tls) {
            return Step::Waiting;
        }
        self.state = State::Header;
        self.gathered = 0;
        self.haggling.tls_started()
    }
}
