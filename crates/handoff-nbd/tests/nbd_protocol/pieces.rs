//! Bytes in any pieces give the same as the whole, and no bytes a panic.

use handoff_nbd::client::{self, Replies, Wish};
use handoff_nbd::request::{Operation, Request};
use handoff_nbd::server::{self, Policy, Requests};
use handoff_nbd::wire::{
    ChunkType, Command, CommandFlags, Framing, HandshakeFlags, InfoRequest, MetaRequest,
    OptionCode, OptionReply, RequestHeader, encode_greeting,
};
use proptest::prelude::*;

use super::table::{agreed, ask, option, reply, serve, target};

/// Bytes, some of which are changed: which, and to what.
fn damaged(parts: impl Strategy<Value = Vec<Vec<u8>>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    (parts, changes).prop_map(|(parts, changes)| {
        let mut bytes = parts.concat();
        for (at, byte) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        bytes
    })
}

fn client_part() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![1_u32..12, Just(0x6861_6e64), any::<u32>()];
    let name = prop_oneof![Just("disk"), Just("strict"), Just("no"), Just("secret")];
    let data = name.prop_flat_map(|name| {
        let queries = vec!["base:allocation".to_owned()];
        prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(any::<u8>(), 0..40),
            Just(InfoRequest { name: name.into(), infos: vec![3.into()] }.encode()),
            Just(MetaRequest { name: name.into(), queries }.encode()),
            prop::collection::vec(any::<u8>(), 24),
        ]
    });
    (code, data).prop_map(|(code, data)| option(OptionCode::from(code), &data))
}

fn server_part() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![Just(3), Just(7), Just(8), Just(10), Just(11), Just(0x6861_6e64)];
    let kind = prop_oneof![1_u32..5, 0x8000_0001_u32..0x8000_000b, Just(0x6861_6e64)];
    (code, kind, prop::collection::vec(any::<u8>(), 0..24)).prop_map(|(code, kind, data)| {
        reply(OptionCode::from(code), OptionReply::from(kind), &data)
    })
}

fn request_part(framing: Framing) -> impl Strategy<Value = Vec<u8>> {
    let numbers = (0_u16..10, 0_u16..64, 0_u64..4, 0_u64..4);
    (numbers, prop::collection::vec(any::<u8>(), 0..1024)).prop_map(move |(numbers, payload)| {
        let (command, flags, offset, length) = numbers;
        let flags = CommandFlags::from_bits_retain(flags);
        let (offset, length) = (offset << 9, length << 9);
        let command = Command::from(command);
        let header = RequestHeader { flags, command, cookie: 9, offset, length };
        [&header.encode(framing).expect("fits")[..], &payload].concat()
    })
}

/// What a server makes of requests, with payload in ranges.
fn read_requests(framing: Framing, bytes: &[u8], cut: usize) -> Vec<String> {
    let mut requests = Requests::new(target(framing));
    let mut found = Vec::new();
    let mut until = 0;
    for mut piece in bytes.chunks(cut.max(1)) {
        loop {
            match requests.next(piece) {
                Ok((taken, Some(server::Event::Payload(at)))) => {
                    if until != at {
                        found.push(format!("from {at}"));
                    }
                    until = at + taken as u64;
                    piece = &piece[taken..];
                }
                Ok((taken, Some(event))) => {
                    until = 0;
                    found.push(format!("{event:?}"));
                    piece = &piece[taken..];
                }
                Ok((taken, None)) => {
                    assert_eq!(taken, piece.len());
                    break;
                }
                Err(violation) => {
                    found.push(violation.to_string());
                    return found;
                }
            }
        }
    }
    found
}

/// What a client makes of replies to four reads, a trim and a question about extents.
fn read_replies(framing: Framing, bytes: &[u8], cut: usize) -> Vec<String> {
    let mut replies = Replies::new(&agreed(framing), 8);
    for operation in [
        Operation::Read { unfragmented: false },
        Operation::Trim,
        Operation::Read { unfragmented: framing != Framing::Simple },
        Operation::BlockStatus { one: false },
    ] {
        // Without contexts the last one is refused.
        let _ = replies.issue(Request { operation, offset: 512, length: 1024, fua: false });
    }
    let (mut found, mut until) = (Vec::new(), None);
    for mut piece in bytes.chunks(cut.max(1)) {
        loop {
            match replies.next(piece) {
                Ok((taken, Some(client::Event::Payload { cookie, at }))) => {
                    if until != Some((cookie, at)) {
                        found.push(format!("{cookie:?} from {at}"));
                    }
                    until = Some((cookie, at + taken as u64));
                    piece = &piece[taken..];
                }
                Ok((taken, Some(event))) => {
                    until = None;
                    found.push(format!("{event:?}"));
                    piece = &piece[taken..];
                }
                Ok((taken, None)) => {
                    assert_eq!(taken, piece.len());
                    break;
                }
                Err(violation) => {
                    found.push(violation.to_string());
                    return found;
                }
            }
        }
    }
    found
}

fn chunk_part(framing: Framing) -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![0_u16..3, 5_u16..7, 0x8001_u16..0x8004];
    let numbers = (kind, any::<bool>(), 0_u64..4, 0_u64..3, 0_u32..3);
    (numbers, prop::collection::vec(any::<u8>(), 0..40)).prop_map(move |(numbers, noise)| {
        let (kind, last, cookie, at, len) = numbers;
        let (at, len) = (512 + (at << 9), len << 9);
        let body = match ChunkType::from(kind) {
            ChunkType::None => Vec::new(),
            ChunkType::OffsetData => [&at.to_be_bytes()[..], &vec![7; len as usize]].concat(),
            ChunkType::OffsetHole => [&at.to_be_bytes()[..], &len.to_be_bytes()].concat(),
            ChunkType::BlockStatus => [1_u32.to_be_bytes(), len.to_be_bytes(), [0; 4]].concat(),
            ChunkType::BlockStatusExt => {
                [&[0, 0, 0, 1, 0, 0, 0, 1][..], &at.to_be_bytes(), &[0; 8]].concat()
            }
            ChunkType::Error => vec![0, 0, 0, 5, 0, 1, b'x'],
            ChunkType::ErrorOffset => [&[0, 0, 0, 5, 0, 0][..], &at.to_be_bytes()].concat(),
            ChunkType::Other(_) => noise,
        };
        if framing == Framing::Simple {
            let error = if last { None } else { Some(u32::from(kind).into()) };
            let head = handoff_nbd::wire::SimpleReply { error, cookie }.encode();
            return [&head[..], &vec![1; if last { 1024 } else { 0 }]].concat();
        }
        let flags = handoff_nbd::wire::ReplyFlags::from_bits_retain(u16::from(last));
        let length = body.len() as u64;
        let kind = ChunkType::from(kind);
        let header = handoff_nbd::wire::ChunkHeader { flags, kind, cookie, offset: 512, length };
        [&header.encode(framing).expect("fits")[..], &body].concat()
    })
}

proptest! {
    #[test]
    fn options_in_pieces_are_options(
        bytes in damaged(prop::collection::vec(client_part(), 0..6)), cut in 1_usize..50,
    ) {
        let bytes = [&3_u32.to_be_bytes()[..], &bytes].concat();
        let whole = serve(Policy::default(), &bytes, bytes.len());
        for cut in [1, cut] {
            let cut = serve(Policy::default(), &bytes, cut);
            prop_assert_eq!(&cut.0, &whole.0);
            prop_assert_eq!(format!("{:?}", cut.1), format!("{:?}", whole.1));
        }
    }

    #[test]
    fn replies_to_options_in_pieces_are_replies(
        bytes in damaged(prop::collection::vec(server_part(), 0..8)), cut in 1_usize..50, old in any::<bool>(),
    ) {
        let greeting = if old { HandshakeFlags::empty() } else { HandshakeFlags::all() };
        let bytes = [&encode_greeting(greeting)[..], &bytes].concat();
        let session = Some(handoff_nbd::wire::Session { token: 1, turn: 1 });
        let wish = Wish { session, ..Wish::export("disk") };
        let whole = ask(wish.clone(), &bytes, bytes.len());
        for cut in [1, cut] {
            let cut = ask(wish.clone(), &bytes, cut);
            prop_assert_eq!(&cut.0, &whole.0);
            prop_assert_eq!(format!("{:?}", cut.1), format!("{:?}", whole.1));
        }
    }

    #[test]
    fn requests_in_pieces_are_requests(
        compact in damaged(prop::collection::vec(request_part(Framing::Structured), 0..6)),
        extended in damaged(prop::collection::vec(request_part(Framing::Extended), 0..6)),
        cut in 1_usize..50,
    ) {
        for (framing, bytes) in [(Framing::Structured, compact), (Framing::Extended, extended)] {
            let whole = read_requests(framing, &bytes, bytes.len());
            prop_assert_eq!(&read_requests(framing, &bytes, 1), &whole);
            prop_assert_eq!(&read_requests(framing, &bytes, cut), &whole);
        }
    }

    #[test]
    fn replies_in_pieces_are_replies(
        simple in damaged(prop::collection::vec(chunk_part(Framing::Simple), 0..6)),
        structured in damaged(prop::collection::vec(chunk_part(Framing::Structured), 0..8)),
        extended in damaged(prop::collection::vec(chunk_part(Framing::Extended), 0..8)),
        cut in 1_usize..50,
    ) {
        let streams =
            [(Framing::Simple, simple), (Framing::Structured, structured), (Framing::Extended, extended)];
        for (framing, bytes) in streams {
            let whole = read_replies(framing, &bytes, bytes.len());
            prop_assert_eq!(&read_replies(framing, &bytes, 1), &whole);
            prop_assert_eq!(&read_replies(framing, &bytes, cut), &whole);
        }
    }
}
