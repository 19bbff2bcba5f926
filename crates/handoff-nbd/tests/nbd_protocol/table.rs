//! What the tests share: a table of exports, and both negotiations, fed in pieces.

use handoff_nbd::client::{self, NegotiationError, Wish};
use handoff_nbd::server::{self, Agreed, Export, Exports, Listed, Policy, Refused, Violation};
use handoff_nbd::target::{BlockSizes, Target};
use handoff_nbd::wire::{
    Framing, OptionCode, OptionHeader, OptionReply, OptionReplyHeader, Printable, TransmissionFlags,
};

pub(crate) const SIZE: u64 = 1 << 20;
pub(crate) const INSTANCE: u128 = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321;

/// `disk`, which is the default; `strict`, which wants clients to ask for its blocks; `secret`, which is refused.
pub(crate) struct Table;

pub(crate) fn export() -> Export {
    Export {
        name: "disk".into(),
        description: "a disk\nof two lines".into(),
        size: SIZE,
        flags: TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_FUA
            | TransmissionFlags::SEND_TRIM
            | TransmissionFlags::SEND_WRITE_ZEROES
            | TransmissionFlags::SEND_RESIZE,
        block: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 16 },
        needs_block_sizes: false,
        has_allocation: true,
    }
}

impl Exports for Table {
    fn list(&self) -> Vec<Listed> {
        let listed = |name: &str| Listed { name: name.into(), description: String::new() };
        vec![listed("disk"), listed("strict")]
    }

    fn find(&self, name: &str) -> Result<Export, Refused> {
        match name {
            "" | "disk" => Ok(export()),
            "strict" => Ok(Export { name: "strict".into(), needs_block_sizes: true, ..export() }),
            "secret" => Err(Refused::Policy("not for you\x1b[31m".into())),
            _ => Err(Refused::Unknown),
        }
    }
}

pub(crate) fn target(framing: Framing) -> Target {
    let export = export();
    let mut flags = (export.flags - TransmissionFlags::SEND_RESIZE) | TransmissionFlags::HAS_FLAGS;
    flags.set(TransmissionFlags::SEND_DF, framing != Framing::Simple);
    let (size, block) = (export.size, export.block);
    Target { size, flags, block, framing, has_contexts: framing != Framing::Simple }
}

pub(crate) fn agreed(framing: Framing) -> client::Agreed {
    let has_contexts = framing != Framing::Simple;
    client::Agreed {
        target: target(framing),
        told_block_sizes: true,
        allocation: has_contexts.then_some(1),
        contexts: if has_contexts { vec![1] } else { Vec::new() },
        name: None,
        description: Printable::default(),
        instance: None,
    }
}

pub(crate) fn option(option: OptionCode, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader { option, length: data.len() as u32 };
    [&header.encode()[..], data].concat()
}

pub(crate) fn reply(option: OptionCode, reply: OptionReply, data: &[u8]) -> Vec<u8> {
    let header = OptionReplyHeader { option, reply, length: data.len() as u32 };
    [&header.encode()[..], data].concat()
}

/// The header and the data of each reply in bytes.
pub(crate) fn replies(mut bytes: &[u8]) -> Vec<(OptionCode, OptionReply, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let header = OptionReplyHeader::decode(header).expect("a reply");
        let (data, rest) = rest.split_at(header.length as usize);
        found.push((header.option, header.reply, data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    found
}

/// How a server's negotiation ended.
#[derive(Debug)]
pub(crate) enum ServerEnd {
    Ready(Box<Agreed>),
    Aborted,
    Hungry,
    Broken(Violation),
}

/// Feeds a client's bytes to a server's negotiation, `cut` at a time. Returns what it sends, how it ended, and how many
/// bytes it took.
pub(crate) fn serve(policy: Policy, bytes: &[u8], cut: usize) -> (Vec<u8>, ServerEnd, usize) {
    let (mut negotiation, _) = server::Negotiation::new(policy, server::Limits::default());
    let (mut sent, mut taken) = (Vec::new(), 0);
    let mut given = 0;
    loop {
        let (more, step) = match negotiation.next(&bytes[taken..given], &Table) {
            Ok(next) => next,
            Err(violation) => return (sent, ServerEnd::Broken(violation), taken),
        };
        taken += more;
        match step {
            server::Step::More if given == bytes.len() => return (sent, ServerEnd::Hungry, taken),
            server::Step::More => given = bytes.len().min(given + cut),
            server::Step::Send(bytes) => sent.extend(bytes),
            server::Step::StartTls(bytes) => {
                sent.extend(bytes);
                negotiation.tls_started();
            }
            server::Step::Session(session) if session.turn == 0 => {
                sent.extend(negotiation.reject("this turn is over"));
            }
            server::Step::Session(_) => sent.extend(negotiation.admit(INSTANCE)),
            server::Step::Ready(bytes, agreed) => {
                sent.extend(bytes);
                return (sent, ServerEnd::Ready(agreed), taken);
            }
            server::Step::Abort(bytes) => {
                sent.extend(bytes);
                return (sent, ServerEnd::Aborted, taken);
            }
            server::Step::Waiting => panic!("nothing was to be answered"),
        }
    }
}

/// The same for a client and a server's bytes.
pub(crate) fn ask(
    wish: Wish,
    bytes: &[u8],
    cut: usize,
) -> (Vec<u8>, Result<client::Step, NegotiationError>, usize) {
    let mut negotiation = client::Negotiation::new(wish, client::Limits::default());
    let (mut sent, mut taken, mut given) = (Vec::new(), 0, 0);
    loop {
        let (more, mut step) = match negotiation.next(&bytes[taken..given]) {
            Ok(next) => next,
            Err(error) => return (sent, Err(error), taken),
        };
        taken += more;
        if matches!(step, client::Step::StartTls) {
            step = negotiation.tls_started();
        }
        match step {
            client::Step::More if given < bytes.len() => given = bytes.len().min(given + cut),
            client::Step::Send(bytes) => sent.extend(bytes),
            step => return (sent, Ok(step), taken),
        }
    }
}

/// Both negotiations, byte by byte.
pub(crate) fn negotiate(
    policy: Policy,
    wish: Wish,
) -> (Result<client::Step, NegotiationError>, Option<Box<Agreed>>) {
    let (mut server, greeting) = server::Negotiation::new(policy, server::Limits::default());
    let mut client = client::Negotiation::new(wish, client::Limits::default());
    let (mut to_client, mut to_server) = (greeting.to_vec(), Vec::new());
    let mut agreed = None;
    loop {
        let mut step = match client.next(&to_client) {
            Ok((taken, step)) => {
                to_client.drain(..taken);
                step
            }
            Err(error) => return (Err(error), agreed),
        };
        if matches!(step, client::Step::StartTls) {
            server.tls_started();
            step = client.tls_started();
        }
        match step {
            client::Step::More => {}
            client::Step::Send(bytes) => to_server.extend(bytes),
            step => return (Ok(step), agreed),
        }
        while !to_server.is_empty() {
            let (taken, step) = server.next(&to_server, &Table).expect("our client is polite");
            to_server.drain(..taken);
            match step {
                server::Step::More | server::Step::Waiting => {}
                server::Step::Send(bytes)
                | server::Step::StartTls(bytes)
                | server::Step::Abort(bytes) => to_client.extend(bytes),
                server::Step::Session(session) if session.turn == 0 => {
                    to_client.extend(server.reject("this turn is over"));
                }
                server::Step::Session(_) => to_client.extend(server.admit(INSTANCE)),
                server::Step::Ready(bytes, ready) => {
                    to_client.extend(bytes);
                    agreed = Some(ready);
                }
            }
        }
        assert!(!to_client.is_empty(), "the client waits for nothing");
    }
}
