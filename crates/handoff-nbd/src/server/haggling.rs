//! What a negotiation has agreed on so far, and the answer to each option.

use super::exports::{Export, Exports};
use super::options::Replies;
use super::terms::{Agreed, Policy, Step, Tls, Violation};
use crate::target::Target;
use crate::wire::{
    ALLOCATION, ClientFlags, EXPORT_REPLY_LEN, Framing, InfoRequest, InfoType, MetaRequest,
    OptionCode, OptionReply, Session, TransmissionFlags, ZEROES, check_name,
};

/// The number of the one context. It means nothing outside of its connection.
const ALLOCATION_ID: u32 = 1;

#[derive(Debug)]
pub(super) struct Haggling {
    policy: Policy,
    queries: usize,
    client: ClientFlags,
    tls: bool,
    framing: Framing,
    /// The export whose allocation was chosen, by its name in the table.
    contexts: Option<String>,
    session: Option<Session>,
}

impl Haggling {
    pub(super) fn new(policy: Policy, queries: usize) -> Self {
        let framing = Framing::Simple;
        let client = ClientFlags::empty();
        Self { policy, queries, client, tls: false, framing, contexts: None, session: None }
    }

    pub(super) fn greeted(&mut self, client: ClientFlags) {
        self.client = client;
    }

    pub(super) fn tls_started(&mut self) {
        self.tls = true;
        self.framing = Framing::Simple;
        self.contexts = None;
        self.session = None;
    }

    pub(super) fn admit(&mut self, session: Session, instance: u128) -> Vec<u8> {
        self.session = Some(session);
        Replies::new(OptionCode::Session)
            .with(OptionReply::Session, &[&instance.to_be_bytes()])
            .ack()
    }

    /// An option begins: whether it may, by the flags.
    pub(super) fn begin(&self, option: OptionCode) -> Result<(), Violation> {
        if option != OptionCode::ExportName && !self.client.contains(ClientFlags::FIXED_NEWSTYLE) {
            return Err(Violation::NotFixed(option));
        }
        Ok(())
    }

    pub(super) fn refuse(&self, option: OptionCode, error: OptionReply, text: &str) -> Vec<u8> {
        Replies::new(option).error(error, text)
    }

    pub(super) fn option(
        &mut self,
        option: OptionCode,
        data: &[u8],
        exports: &impl Exports,
    ) -> Result<Step, Violation> {
        if option == OptionCode::ExportName {
            return self.export_name(data, exports);
        }
        let replies = Replies::new(option);
        if option == OptionCode::Abort {
            return Ok(Step::Abort(replies.ack()));
        }
        let needs_tls = self.policy.tls == Tls::Required && !self.tls;
        if needs_tls && option != OptionCode::StartTls {
            return Ok(replies.refuse(OptionReply::ErrTlsReqd, "start TLS first"));
        }
        let bare = matches!(
            option,
            OptionCode::List
                | OptionCode::StartTls
                | OptionCode::StructuredReply
                | OptionCode::ExtendedHeaders
        );
        if bare && !data.is_empty() {
            return Ok(replies.refuse(OptionReply::ErrInvalid, "this option has no data"));
        }
        Ok(match option {
            OptionCode::List => self.list(replies, exports),
            OptionCode::StartTls => self.start_tls(replies),
            OptionCode::Info | OptionCode::Go => self.info(option, data, replies, exports),
            OptionCode::StructuredReply => self.structured(replies),
            OptionCode::ExtendedHeaders if self.policy.extended => {
                self.framing = Framing::Extended;
                Step::Send(replies.ack())
            }
            OptionCode::ListMetaContext | OptionCode::SetMetaContext => {
                self.meta(option, data, replies, exports)
            }
            OptionCode::Session if self.policy.sessions => self.session(data, replies),
            _ => replies.refuse(OptionReply::ErrUnsup, "this server does not know the option"),
        })
    }

    fn export_name(&mut self, data: &[u8], exports: &impl Exports) -> Result<Step, Violation> {
        let no = |reason: &str| Err(Violation::NoExport(reason.to_owned()));
        if self.policy.tls == Tls::Required && !self.tls {
            return no("TLS is required");
        }
        if self.framing == Framing::Extended {
            return no("extended headers need NBD_OPT_GO");
        }
        let name = match check_name(data) {
            Ok(name) => name,
            Err(error) => return no(&error.to_string()),
        };
        let export = match exports.find(name) {
            Ok(export) if export.needs_block_sizes => return no("the export has block sizes"),
            Ok(export) => export,
            Err(refused) => return no(refused.reply().1),
        };
        let agreed = self.agreed(export);
        let mut reply = agreed.target.size.to_be_bytes().to_vec();
        reply.extend(agreed.target.flags.bits().to_be_bytes());
        if !self.client.contains(ClientFlags::NO_ZEROES) {
            reply.resize(EXPORT_REPLY_LEN + ZEROES, 0);
        }
        Ok(Step::Ready(reply, Box::new(agreed)))
    }

    fn list(&self, mut replies: Replies, exports: &impl Exports) -> Step {
        if !self.policy.lists {
            return replies.refuse(OptionReply::ErrPolicy, "this server does not list its exports");
        }
        for listed in exports.list() {
            let name = listed.name.as_bytes();
            let len = u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes();
            replies =
                replies.with(OptionReply::Server, &[&len, name, listed.description.as_bytes()]);
        }
        Step::Send(replies.ack())
    }

    fn start_tls(&self, replies: Replies) -> Step {
        match self.policy.tls {
            _ if self.tls => replies.refuse(OptionReply::ErrInvalid, "TLS runs already"),
            Tls::Unsupported => {
                replies.refuse(OptionReply::ErrUnsup, "this server does not know TLS")
            }
            Tls::Unwanted => replies.refuse(OptionReply::ErrPolicy, "there is no TLS here"),
            Tls::Offered | Tls::Required => Step::StartTls(replies.ack()),
        }
    }

    fn structured(&mut self, replies: Replies) -> Step {
        if !self.policy.structured {
            return replies
                .refuse(OptionReply::ErrUnsup, "this server does not know structured replies");
        }
        if self.framing == Framing::Extended {
            return replies
                .refuse(OptionReply::ErrExtHeaderReqd, "extended headers are agreed on already");
        }
        self.framing = Framing::Structured;
        Step::Send(replies.ack())
    }

    fn info(
        &mut self,
        option: OptionCode,
        data: &[u8],
        mut replies: Replies,
        exports: &impl Exports,
    ) -> Step {
        let asked = match InfoRequest::decode(data, self.queries) {
            Ok(asked) => asked,
            Err(error) => return replies.malformed(error),
        };
        let agreed = match exports.find(&asked.name) {
            Ok(export) => self.agreed(export),
            Err(refused) => {
                let (error, text) = refused.reply();
                return replies.refuse(error, text);
            }
        };
        let (target, export) = (&agreed.target, &agreed.export);
        let asks = |info| asked.infos.contains(&info);
        let (size, flags) = (target.size.to_be_bytes(), target.flags.bits().to_be_bytes());
        replies = replies.info(InfoType::Export, &[&size, &flags]);
        if asks(InfoType::Name) {
            replies = replies.info(InfoType::Name, &[export.name.as_bytes()]);
        }
        if asks(InfoType::Description) && !export.description.is_empty() {
            replies = replies.info(InfoType::Description, &[export.description.as_bytes()]);
        }
        let asks_block_sizes = asks(InfoType::BlockSize);
        if asks_block_sizes || export.block.minimum > 1 {
            replies = replies.info(InfoType::BlockSize, &[&export.block.encode()]);
        }
        if export.needs_block_sizes && !asks_block_sizes {
            return replies.refuse(OptionReply::ErrBlockSizeReqd, "ask for the block sizes");
        }
        match option {
            OptionCode::Go => Step::Ready(replies.ack(), Box::new(agreed)),
            _ => Step::Send(replies.ack()),
        }
    }

    fn meta(
        &mut self,
        option: OptionCode,
        data: &[u8],
        mut replies: Replies,
        exports: &impl Exports,
    ) -> Step {
        let sets = option == OptionCode::SetMetaContext;
        if sets {
            self.contexts = None;
            if self.framing == Framing::Simple {
                let text = "structured replies or extended headers must come first";
                return replies.refuse(OptionReply::ErrInvalid, text);
            }
        }
        let asked = match MetaRequest::decode(data, self.queries) {
            Ok(asked) => asked,
            Err(error) => return replies.malformed(error),
        };
        let export = match exports.find(&asked.name) {
            Ok(export) => export,
            Err(refused) => {
                let (error, text) = refused.reply();
                return replies.refuse(error, text);
            }
        };
        let named = |query: &String| query == ALLOCATION || (!sets && query == "base:");
        let all = !sets && asked.queries.is_empty();
        if export.has_allocation && (all || asked.queries.iter().any(named)) {
            let id = if sets { ALLOCATION_ID } else { 0 };
            let context: [&[u8]; 2] = [&id.to_be_bytes(), ALLOCATION.as_bytes()];
            replies = replies.with(OptionReply::MetaContext, &context);
            if sets {
                self.contexts = Some(export.name);
            }
        }
        Step::Send(replies.ack())
    }

    fn session(&self, data: &[u8], replies: Replies) -> Step {
        match Session::decode(data) {
            _ if self.session.is_some() => {
                replies.refuse(OptionReply::ErrInvalid, "the session has been named already")
            }
            Some(session) => Step::Session(session),
            None => replies.refuse(OptionReply::ErrInvalid, "a session has a token and a turn"),
        }
    }

    /// What the client would get with an export.
    fn agreed(&self, export: Export) -> Agreed {
        let known = TransmissionFlags::READ_ONLY
            | TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_FUA
            | TransmissionFlags::ROTATIONAL
            | TransmissionFlags::SEND_TRIM
            | TransmissionFlags::SEND_WRITE_ZEROES
            | TransmissionFlags::CAN_MULTI_CONN
            | TransmissionFlags::SEND_CACHE
            | TransmissionFlags::SEND_FAST_ZERO;
        let mut flags = (export.flags & known) | TransmissionFlags::HAS_FLAGS;
        flags.set(TransmissionFlags::SEND_DF, self.framing != Framing::Simple);
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags.remove(TransmissionFlags::SEND_FAST_ZERO);
        }
        let target = Target {
            size: export.size,
            flags,
            block: export.block,
            framing: self.framing,
            has_contexts: self.contexts.as_ref() == Some(&export.name),
        };
        Agreed { export, target, session: self.session, tls: self.tls }
    }
}
