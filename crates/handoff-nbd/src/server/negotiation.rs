//! Negotiation, as a server sees it: from the greeting to an agreement, in messages.
//!
//! Contracts:
//! - a client holds at most [`Limits::option`] bytes of memory here, and gets at most [`Limits::options`] answers. How
//!   long it may take is the caller's to bound;
//! - [`Negotiation::next`] takes no byte beyond the message that ends its step. What follows [`Step::StartTls`] belongs
//!   to TLS, and what follows [`Step::Ready`] to [`Requests`](super::Requests);
//! - nothing of what was agreed without TLS stays when TLS starts.

use super::exports::Exports;
use super::haggling::Haggling;
use super::terms::{Policy, Step, Violation};
use crate::wire::{
    ClientFlags, Gather, HandshakeFlags, OPTION_LEN, OptionCode, OptionHeader, OptionReply,
    Session, encode_greeting,
};

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of an option's data. A longer one is skipped and refused.
    pub option: usize,
    /// Bytes of data that is skipped. A longer one ends the connection.
    pub skipped: u32,
    /// Options of a connection.
    pub options: u32,
    /// Infos and queries of one option.
    pub queries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { option: 1 << 16, skipped: 1 << 20, options: 1024, queries: 64 }
    }
}

#[derive(Debug)]
enum State {
    Flags,
    Header,
    Data(OptionHeader),
    Skip { option: OptionCode, left: u32 },
    Tls,
    Session(Session),
    Over,
}

/// A negotiation.
#[derive(Debug)]
pub struct Negotiation {
    haggling: Haggling,
    limits: Limits,
    state: State,
    message: Gather,
    options: u32,
}

impl Negotiation {
    /// What the server offers in its first message.
    const OFFERED: HandshakeFlags = HandshakeFlags::FIXED_NEWSTYLE.union(HandshakeFlags::NO_ZEROES);

    /// Begins one, with the bytes that the server sends first.
    pub fn new(policy: Policy, limits: Limits) -> (Self, [u8; crate::wire::GREETING_LEN]) {
        let negotiation = Self {
            haggling: Haggling::new(policy, limits.queries),
            limits,
            state: State::Flags,
            message: Gather::default(),
            options: 0,
        };
        (negotiation, encode_greeting(Self::OFFERED))
    }

    /// Takes bytes of the client. Returns how many, and what is to be done; call it again with the rest until it says
    /// [`Step::More`]. An empty rest is fine.
    ///
    /// # Errors
    ///
    /// The client breaks the protocol in a way that has no answer.
    pub fn next(
        &mut self,
        input: &[u8],
        exports: &impl Exports,
    ) -> Result<(usize, Step), Violation> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            let want = match &mut self.state {
                State::Flags => 4,
                State::Header => OPTION_LEN,
                State::Data(header) => header.length as usize,
                State::Skip { option, left } => {
                    let skipped = u32::try_from(rest.len()).unwrap_or(u32::MAX).min(*left);
                    *left -= skipped;
                    taken += skipped as usize;
                    if *left > 0 {
                        return Ok((taken, Step::More));
                    }
                    let option = *option;
                    self.state = State::Header;
                    let text = "the option is too long";
                    let refused = self.haggling.refuse(option, OptionReply::ErrTooBig, text);
                    return Ok((taken, Step::Send(refused)));
                }
                State::Tls | State::Session(_) | State::Over => return Ok((taken, Step::Waiting)),
            };
            let (more, whole) = self.message.fill(rest, want);
            taken += more;
            if !whole {
                return Ok((taken, Step::More));
            }
            let message = self.message.take();
            match self.state {
                State::Data(header) => {
                    self.state = State::Header;
                    let step = self.haggling.option(header.option, &message, exports)?;
                    match &step {
                        Step::StartTls(_) => self.state = State::Tls,
                        Step::Session(session) => self.state = State::Session(*session),
                        Step::Ready(..) | Step::Abort(_) => self.state = State::Over,
                        Step::More | Step::Send(_) | Step::Waiting => {}
                    }
                    return Ok((taken, step));
                }
                State::Flags => self.flags(&message)?,
                _ => self.header(&message)?,
            }
        }
    }

    fn flags(&mut self, message: &[u8]) -> Result<(), Violation> {
        let bits = message.try_into().map_or(u32::MAX, u32::from_be_bytes);
        let offered = u32::from(Self::OFFERED.bits());
        if bits & !offered != 0 {
            return Err(Violation::Flags(bits));
        }
        self.haggling.greeted(ClientFlags::from_bits_retain(bits));
        self.state = State::Header;
        Ok(())
    }

    fn header(&mut self, message: &[u8]) -> Result<(), Violation> {
        let header = message.try_into().ok().and_then(OptionHeader::decode);
        let header = header.ok_or(Violation::Magic)?;
        self.options += 1;
        if self.options > self.limits.options {
            return Err(Violation::TooMany(self.limits.options));
        }
        self.haggling.begin(header.option)?;
        let most = match header.option {
            OptionCode::ExportName => crate::wire::MAX_STRING,
            _ => self.limits.option,
        };
        self.state = if header.length as usize <= most {
            State::Data(header)
        } else if header.option == OptionCode::ExportName || header.length > self.limits.skipped {
            return Err(Violation::TooLong(header.length));
        } else {
            State::Skip { option: header.option, left: header.length }
        };
        Ok(())
    }

    /// TLS runs, after [`Step::StartTls`]. What was agreed before is forgotten; the client goes on with options.
    pub fn tls_started(&mut self) {
        if matches!(self.state, State::Tls) {
            self.haggling.tls_started();
            self.state = State::Header;
        }
    }

    /// Accepts the session of [`Step::Session`]; returns what is to be sent. `instance` tells the client whether what it
    /// wrote before is still there: it is the same number for as long as nothing that was answered can be lost, and random.
    pub fn admit(&mut self, instance: u128) -> Vec<u8> {
        let State::Session(session) = self.state else { return Vec::new() };
        self.state = State::Header;
        self.haggling.admit(session, instance)
    }

    /// Refuses the session of [`Step::Session`], with a reason; returns what is to be sent.
    pub fn reject(&mut self, reason: &str) -> Vec<u8> {
        if !matches!(self.state, State::Session(_)) {
            return Vec::new();
        }
        self.state = State::Header;
        self.haggling.refuse(OptionCode::Session, OptionReply::ErrPolicy, reason)
    }
}
