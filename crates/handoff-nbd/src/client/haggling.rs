//! What a client asks for, in which order, and what it falls back to.
//!
//! TLS comes first, then the session, extended headers, structured replies where there are no extended ones, the
//! metadata context, and last the export: by `GO`, or by `EXPORT_NAME` where the server does not know that.

use super::terms::{Agreed, Goal, Listed, NegotiationError, Step, Wish};
use crate::target::{BlockSizes, Target};
use crate::wire::{
    ALLOCATION, ClientFlags, Framing, HandshakeFlags, InfoRequest, InfoType, MetaRequest,
    OptionCode, OptionHeader, OptionReply, Printable, Reader, TransmissionFlags, check_name,
};

/// The most metadata contexts that a server may choose for one that was asked for.
const CONTEXTS: usize = 8;

/// An option under way, or the next one to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Tls,
    Session,
    Extended,
    Structured,
    Contexts,
    Goal,
    ExportName,
}

#[derive(Debug)]
pub(super) struct Haggling {
    wish: Wish,
    asked: Option<Stage>,
    no_zeroes: bool,
    framing: Framing,
    size: Option<(u64, TransmissionFlags)>,
    block: Option<BlockSizes>,
    contexts: Vec<(u32, String)>,
    name: Option<String>,
    description: Printable,
    instance: Option<u128>,
    listed: Vec<Listed>,
}

fn violation<T>(text: &'static str) -> Result<T, NegotiationError> {
    Err(NegotiationError::Violation(text))
}

fn option(option: OptionCode, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("names are short");
    let mut bytes = OptionHeader { option, length }.encode().to_vec();
    bytes.extend(data);
    bytes
}

impl Haggling {
    pub(super) fn new(wish: Wish) -> Self {
        Self {
            wish,
            asked: None,
            no_zeroes: false,
            framing: Framing::Simple,
            size: None,
            block: None,
            contexts: Vec::new(),
            name: None,
            description: Printable::default(),
            instance: None,
            listed: Vec::new(),
        }
    }

    /// The option whose reply is awaited.
    pub(super) fn asked(&self) -> Option<OptionCode> {
        Some(match self.asked? {
            Stage::Tls => OptionCode::StartTls,
            Stage::Session => OptionCode::Session,
            Stage::Extended => OptionCode::ExtendedHeaders,
            Stage::Structured => OptionCode::StructuredReply,
            Stage::Contexts => OptionCode::SetMetaContext,
            Stage::ExportName => OptionCode::ExportName,
            Stage::Goal => match self.wish.goal {
                Goal::Use => OptionCode::Go,
                Goal::Describe => OptionCode::Info,
                Goal::List => OptionCode::List,
            },
        })
    }

    /// Whether the answer to `EXPORT_NAME` comes next, and then whether without zeroes.
    pub(super) fn waits_for_export(&self) -> Option<bool> {
        (self.asked == Some(Stage::ExportName)).then_some(self.no_zeroes)
    }

    pub(super) fn greeted(&mut self, server: HandshakeFlags) -> Result<Step, NegotiationError> {
        let fixed = server.contains(HandshakeFlags::FIXED_NEWSTYLE);
        self.no_zeroes = server.contains(HandshakeFlags::NO_ZEROES);
        let mut flags = ClientFlags::empty();
        flags.set(ClientFlags::FIXED_NEWSTYLE, fixed);
        flags.set(ClientFlags::NO_ZEROES, self.no_zeroes);
        if !fixed && self.wish.tls {
            return Err(NegotiationError::NotFixed("TLS"));
        }
        if !fixed && self.wish.goal != Goal::Use {
            return Err(NegotiationError::NotFixed("questions about exports"));
        }
        let mut bytes = flags.bits().to_be_bytes().to_vec();
        bytes.extend(self.ask(if fixed { Stage::Tls } else { Stage::ExportName }));
        Ok(Step::Send(bytes))
    }

    /// Asks for the first thing from this stage on that is wanted.
    fn ask(&mut self, from: Stage) -> Vec<u8> {
        let mut stage = from;
        loop {
            let next = match stage {
                Stage::Tls if !self.wish.tls => Stage::Session,
                Stage::Session if self.wish.session.is_none() => Stage::Extended,
                Stage::Extended if !self.wish.extended || self.wish.goal == Goal::List => {
                    Stage::Structured
                }
                Stage::Structured
                    if !self.wish.structured
                        || self.framing != Framing::Simple
                        || self.wish.goal == Goal::List =>
                {
                    Stage::Contexts
                }
                Stage::Contexts if !self.wish.allocation || self.framing == Framing::Simple => {
                    Stage::Goal
                }
                _ => break,
            };
            stage = next;
        }
        self.asked = Some(stage);
        let code = self.asked().expect("was asked");
        let name = &self.wish.export;
        match stage {
            Stage::Tls | Stage::Extended | Stage::Structured => option(code, &[]),
            Stage::Session => {
                option(code, &self.wish.session.map(|session| session.encode()).unwrap_or_default())
            }
            Stage::Contexts => {
                let queries = vec![ALLOCATION.to_owned()];
                option(code, &MetaRequest { name: name.clone(), queries }.encode())
            }
            Stage::Goal if self.wish.goal == Goal::List => option(code, &[]),
            Stage::Goal => {
                let infos = vec![InfoType::Name, InfoType::Description, InfoType::BlockSize];
                option(code, &InfoRequest { name: name.clone(), infos }.encode())
            }
            Stage::ExportName => option(code, name.as_bytes()),
        }
    }

    pub(super) fn tls_started(&mut self) -> Step {
        Step::Send(self.ask(Stage::Session))
    }

    /// A reply to what was asked; a step if it was the last.
    pub(super) fn reply(
        &mut self,
        reply: OptionReply,
        data: &[u8],
    ) -> Result<Option<Step>, NegotiationError> {
        let stage = self.asked.expect("replies come to what was asked");
        if reply.is_error() {
            return self.refused(stage, reply, data).map(Some);
        }
        match (stage, reply) {
            (_, OptionReply::Ack) if data.is_empty() => return self.accepted(stage).map(Some),
            (Stage::Session, OptionReply::Session) => {
                let mut reader = Reader(data);
                let instance = reader.u128().filter(|_| reader.0.is_empty());
                if instance.is_none() || self.instance.is_some() {
                    return violation("its instance has another length, or comes twice");
                }
                self.instance = instance;
            }
            (Stage::Contexts, OptionReply::MetaContext) => self.context(data)?,
            (Stage::Goal, OptionReply::Info) if self.wish.goal != Goal::List => self.info(data)?,
            (Stage::Goal, OptionReply::Server) if self.wish.goal == Goal::List => {
                self.listed(data)?;
            }
            _ => return violation("a reply does not fit its option"),
        }
        Ok(None)
    }

    fn refused(
        &mut self,
        stage: Stage,
        reply: OptionReply,
        data: &[u8],
    ) -> Result<Step, NegotiationError> {
        let ends = matches!(reply, OptionReply::ErrTlsReqd | OptionReply::ErrShutdown);
        let unknown = reply == OptionReply::ErrUnsup;
        let next = match stage {
            Stage::Session if unknown => {
                self.instance = None;
                Some(Stage::Extended)
            }
            Stage::Extended if !ends => Some(Stage::Structured),
            Stage::Structured if !ends => Some(Stage::Contexts),
            Stage::Contexts if !ends => {
                self.contexts.clear();
                Some(Stage::Goal)
            }
            Stage::Goal if unknown && self.wish.goal == Goal::Use => {
                (self.framing != Framing::Extended).then_some(Stage::ExportName)
            }
            _ => None,
        };
        match next {
            Some(next) => Ok(Step::Send(self.ask(next))),
            None => {
                let option = self.asked().expect("was asked");
                Err(NegotiationError::Refused { option, reply, text: Printable::new(data) })
            }
        }
    }

    fn accepted(&mut self, stage: Stage) -> Result<Step, NegotiationError> {
        let next = match stage {
            Stage::Tls => {
                self.asked = None;
                return Ok(Step::StartTls);
            }
            Stage::Session if self.instance.is_none() => {
                return violation("it accepts the session without its instance");
            }
            Stage::Session => Stage::Extended,
            Stage::Extended => {
                self.framing = Framing::Extended;
                Stage::Contexts
            }
            Stage::Structured => {
                self.framing = Framing::Structured;
                Stage::Contexts
            }
            Stage::Contexts => Stage::Goal,
            Stage::Goal | Stage::ExportName => {
                self.asked = None;
                return match self.wish.goal {
                    Goal::Use => Ok(Step::Ready(Box::new(self.agreed()?))),
                    Goal::Describe => Ok(Step::Described(Box::new(self.agreed()?))),
                    Goal::List => Ok(Step::Listed(std::mem::take(&mut self.listed))),
                };
            }
        };
        Ok(Step::Send(self.ask(next)))
    }

    /// The answer to `EXPORT_NAME`.
    pub(super) fn chosen(&mut self, message: &[u8]) -> Result<Step, NegotiationError> {
        let mut reader = Reader(message);
        self.export(&mut reader)?;
        self.accepted(Stage::ExportName)
    }

    fn export(&mut self, reader: &mut Reader<'_>) -> Result<(), NegotiationError> {
        let (Some(size), Some(flags)) = (reader.u64(), reader.u16()) else {
            return violation("what it says of the export has another length");
        };
        if size > i64::MAX as u64 {
            return violation("the export has more than 2^63 bytes");
        }
        let flags = TransmissionFlags::from_bits_retain(flags);
        let has_flags = flags.contains(TransmissionFlags::HAS_FLAGS);
        self.size = Some((size, if has_flags { flags } else { TransmissionFlags::empty() }));
        Ok(())
    }

    fn context(&mut self, data: &[u8]) -> Result<(), NegotiationError> {
        let mut reader = Reader(data);
        let id = reader.u32();
        let (Some(id), Ok(name)) = (id, check_name(reader.0)) else {
            return violation("a metadata context has no name");
        };
        if self.contexts.len() >= CONTEXTS || self.contexts.iter().any(|(other, _)| *other == id) {
            return violation("a metadata context comes twice, or there are too many");
        }
        self.contexts.push((id, name.to_owned()));
        Ok(())
    }

    fn info(&mut self, data: &[u8]) -> Result<(), NegotiationError> {
        let mut reader = Reader(data);
        let Some(kind) = reader.u16() else { return violation("an information has no type") };
        match InfoType::from(kind) {
            InfoType::Export => {
                self.export(&mut reader)?;
                if !reader.0.is_empty() {
                    return violation("what it says of the export has another length");
                }
            }
            InfoType::Name => match check_name(reader.0) {
                Ok(name) => self.name = Some(name.to_owned()),
                Err(_) => return violation("the export's name is none"),
            },
            InfoType::Description => self.description = Printable::new(reader.0),
            InfoType::BlockSize => {
                self.block = BlockSizes::decode(reader.0);
                if self.block.is_none() {
                    return violation("its block sizes are none that the protocol allows");
                }
            }
            InfoType::Other(_) => {}
        }
        Ok(())
    }

    fn listed(&mut self, data: &[u8]) -> Result<(), NegotiationError> {
        let mut reader = Reader(data);
        let name = reader.counted().and_then(|name| check_name(name).ok());
        let Some(name) = name else { return violation("a name in its list is none") };
        let description = Printable::new(reader.0);
        self.listed.push(Listed { name: name.to_owned(), description });
        Ok(())
    }

    fn agreed(&mut self) -> Result<Agreed, NegotiationError> {
        let Some((size, flags)) = self.size else {
            return violation("it accepts the export without its size");
        };
        let allocation = self.contexts.iter().find(|(_, name)| name == ALLOCATION);
        Ok(Agreed {
            target: Target {
                size,
                flags,
                block: self.block.unwrap_or_default(),
                framing: self.framing,
                has_contexts: !self.contexts.is_empty(),
            },
            told_block_sizes: self.block.is_some(),
            allocation: allocation.map(|(id, _)| *id),
            contexts: self.contexts.iter().map(|(id, _)| *id).collect(),
            name: self.name.take(),
            description: std::mem::take(&mut self.description),
            instance: self.instance,
        })
    }
}
