//! What servers must not send: it ends the connection, and no reader gets bytes that have not come.

use handoff_nbd::client::{
    Event, Expect, Goal, NegotiationError, Replies, ReplyViolation, Step, Wish,
};
use handoff_nbd::request::{Operation, Request};
use handoff_nbd::wire::{
    ChunkHeader, ChunkType, Framing, HandshakeFlags, OptionCode, OptionReply, ReplyFlags, Session,
    SimpleReply, encode_greeting,
};

use super::table::{agreed, ask, reply};

const READ: Operation = Operation::Read { unfragmented: false };
const WHOLE: Operation = Operation::Read { unfragmented: true };
const STATUS: Operation = Operation::BlockStatus { one: false };
const ONE: Operation = Operation::BlockStatus { one: true };

/// One request under way, of 4,096 bytes at 8,192.
fn asked(framing: Framing, operation: Operation) -> (Replies, u64) {
    let mut replies = Replies::new(&agreed(framing), 4);
    let request = Request { operation, offset: 8192, length: 4096, fua: false };
    let (cookie, _) = replies.issue(request).expect("is allowed");
    (replies, cookie.number())
}

fn chunk(framing: Framing, cookie: u64, last: bool, kind: ChunkType, body: &[u8]) -> Vec<u8> {
    let flags = if last { ReplyFlags::DONE } else { ReplyFlags::empty() };
    let header = ChunkHeader { flags, kind, cookie, offset: 8192, length: body.len() as u64 };
    [&header.encode(framing).expect("fits")[..], body].concat()
}

fn data(at: u64, len: usize) -> Vec<u8> {
    [&(8192 + at).to_be_bytes()[..], &vec![1; len]].concat()
}

fn hole(at: u64, len: u32) -> Vec<u8> {
    [&(8192 + at).to_be_bytes()[..], &len.to_be_bytes()].concat()
}

fn extents(framing: Framing, context: u32, extents: &[(u64, u64)]) -> Vec<u8> {
    let mut body = context.to_be_bytes().to_vec();
    if framing == Framing::Extended {
        body.extend((extents.len() as u32).to_be_bytes());
    }
    for (length, state) in extents {
        if framing == Framing::Extended {
            body.extend([length.to_be_bytes(), state.to_be_bytes()].concat());
        } else {
            body.extend([(*length as u32).to_be_bytes(), (*state as u32).to_be_bytes()].concat());
        }
    }
    body
}

fn error(error: u32, text: &str, offset: Option<u64>) -> Vec<u8> {
    let len = text.len() as u16;
    let offset = offset.map(u64::to_be_bytes).into_iter().flatten().collect::<Vec<_>>();
    [&error.to_be_bytes()[..], &len.to_be_bytes(), text.as_bytes(), &offset].concat()
}

/// All events of bytes, and the error that ends them.
fn run(replies: &mut Replies, bytes: &[u8]) -> (Vec<Event>, Option<ReplyViolation>) {
    let (mut events, mut taken) = (Vec::new(), 0);
    loop {
        match replies.next(&bytes[taken..]) {
            Ok((more, Some(event))) => {
                taken += more;
                events.push(event);
            }
            Ok((more, None)) => {
                assert_eq!(taken + more, bytes.len(), "without an event all is taken");
                return (events, None);
            }
            Err(violation) => return (events, Some(violation)),
        }
    }
}

#[test]
fn a_reply_covers_its_request_exactly() {
    use ChunkType::{
        BlockStatus, BlockStatusExt, Error, ErrorOffset, None as End, OffsetData, OffsetHole,
    };
    use ReplyViolation as V;
    let unknown = ChunkType::Other(9);
    for framing in [Framing::Structured, Framing::Extended] {
        let (status, other) = match framing {
            Framing::Extended => (BlockStatusExt, BlockStatus),
            _ => (BlockStatus, BlockStatusExt),
        };
        let extents = |context, list: &[(u64, u64)]| extents(framing, context, list);
        type Chunks = Vec<(bool, ChunkType, Vec<u8>)>;
        let table: Vec<(Operation, Chunks, V)> = vec![
            (
                READ,
                vec![(false, OffsetData, data(0, 100)), (true, OffsetData, data(99, 3997))],
                V::Overlap,
            ),
            (
                READ,
                vec![(false, OffsetData, data(0, 4096)), (true, OffsetHole, hole(0, 4096))],
                V::Overlap,
            ),
            (READ, vec![(true, OffsetData, data(0, 4095))], V::Gap),
            (READ, vec![(false, OffsetHole, hole(1, 4095)), (true, End, vec![])], V::Gap),
            (READ, vec![(true, End, vec![])], V::Gap),
            (READ, vec![(false, OffsetData, data(4000, 97))], V::Outside),
            (READ, vec![(false, OffsetHole, hole(4096, 1))], V::Outside),
            (READ, vec![(false, OffsetHole, hole(0, 0))], V::Outside),
            (READ, vec![(false, OffsetData, [&[0; 8][..], b"x"].concat())], V::Outside),
            (READ, vec![(false, OffsetHole, [&[0xff; 8][..], &[0xff; 4]].concat())], V::Outside),
            (READ, vec![(false, OffsetData, data(0, 0))], V::Length(0)),
            (READ, vec![(false, OffsetHole, data(0, 5))], V::Length(0)),
            (READ, vec![(true, End, vec![0])], V::Length(0)),
            (READ, vec![(false, End, vec![])], V::NotLast),
            (READ, vec![(true, status, extents(1, &[(4096, 0)]))], V::Kind(status.into())),
            (READ, vec![(false, unknown, vec![])], V::Kind(9)),
            (READ, vec![(false, Error, vec![0; 5])], V::Length(0)),
            (READ, vec![(false, Error, vec![1; 5000])], V::Length(0)),
            (READ, vec![(false, Error, error(0, "", None))], V::Error),
            (READ, vec![(false, Error, error(5, "", Some(8192)))], V::Error),
            (READ, vec![(false, ErrorOffset, error(5, "x", None))], V::Error),
            (READ, vec![(false, ErrorOffset, error(5, "x", Some(8191)))], V::Outside),
            (READ, vec![(false, Error, [&[0, 0, 0, 5, 0xff, 0xff][..], b"x"].concat())], V::Error),
            (
                WHOLE,
                vec![(false, OffsetData, data(0, 4000)), (true, OffsetData, data(4000, 96))],
                V::Fragmented,
            ),
            (Operation::Write, vec![(true, OffsetData, data(0, 4096))], V::Kind(1)),
            (Operation::Trim, vec![(true, OffsetHole, hole(0, 4096))], V::Kind(2)),
            (STATUS, vec![(true, End, vec![])], V::Contexts),
            (STATUS, vec![(true, status, extents(2, &[(4096, 0)]))], V::Contexts),
            (
                STATUS,
                vec![
                    (false, status, extents(1, &[(4096, 0)])),
                    (true, status, extents(1, &[(4096, 0)])),
                ],
                V::Contexts,
            ),
            (STATUS, vec![(true, status, extents(1, &[(0, 0)]))], V::Extents),
            (STATUS, vec![(true, status, extents(1, &[(4096, 0), (1, 0)]))], V::Extents),
            (STATUS, vec![(true, status, extents(1, &[]))], V::Length(0)),
            (STATUS, vec![(true, status, vec![0; 19])], V::Length(0)),
            (STATUS, vec![(true, other, extents(1, &[(4096, 0)]))], V::Kind(other.into())),
            (ONE, vec![(true, status, extents(1, &[(2048, 0), (2048, 0)]))], V::Extents),
            (ONE, vec![(true, status, extents(1, &[(4097, 0)]))], V::Extents),
        ];
        for (operation, chunks, expected) in table {
            let (mut replies, cookie) = asked(framing, operation);
            let bytes =
                chunks.iter().map(|(last, kind, body)| chunk(framing, cookie, *last, *kind, body));
            let bytes = bytes.collect::<Vec<_>>().concat();
            let (events, violation) = run(&mut replies, &bytes);
            let violation =
                violation.unwrap_or_else(|| panic!("{framing:?} {chunks:?}: {events:?}"));
            // The length differs from case to case, and is no matter here.
            let is_same = match (violation, expected) {
                (V::Length(_), V::Length(_)) => true,
                (violation, expected) => violation == expected,
            };
            assert!(is_same, "{framing:?} {operation:?}: {violation:?} of {chunks:?}");
            let succeeds = |event: &Event| matches!(event, Event::Done { result: Ok(()), .. });
            assert!(!events.iter().any(succeeds), "{events:?}");
        }
    }
}

#[test]
fn replies_of_another_kind_or_to_nothing_end_the_connection() {
    let simple = |cookie| SimpleReply { error: None, cookie }.encode().to_vec();
    let end = |framing, cookie| chunk(framing, cookie, true, ChunkType::None, &[]);
    let violation = |framing, operation, bytes: &dyn Fn(u64) -> Vec<u8>| {
        let (mut replies, cookie) = asked(framing, operation);
        let bytes = [bytes(cookie), vec![0; 32]].concat();
        run(&mut replies, &bytes).1.expect("is broken")
    };
    let magic = |violation| matches!(violation, ReplyViolation::Magic(_));
    let write = Operation::Write;
    assert!(magic(violation(Framing::Simple, write, &|it| end(Framing::Structured, it))));
    assert!(magic(violation(Framing::Structured, write, &|it| end(Framing::Extended, it))));
    assert!(magic(violation(Framing::Extended, write, &|it| end(Framing::Structured, it))));
    assert!(magic(violation(Framing::Extended, write, &simple)));
    assert_eq!(violation(Framing::Structured, READ, &simple), ReplyViolation::Kind(0));
    for framing in [Framing::Structured, Framing::Extended] {
        let other = violation(framing, write, &|it| end(framing, it + 1));
        assert!(matches!(other, ReplyViolation::UnknownCookie(_)));
        let old = violation(framing, write, &|it| end(framing, it + (1 << 32)));
        assert!(matches!(old, ReplyViolation::UnknownCookie(_)));
        let far = violation(framing, write, &|it| end(framing, it | 0xffff_ffff));
        assert!(matches!(far, ReplyViolation::UnknownCookie(_)));
        let twice = violation(framing, write, &|it| [end(framing, it), end(framing, it)].concat());
        assert!(matches!(twice, ReplyViolation::UnknownCookie(_)));
    }
    let mut header = chunk(Framing::Extended, 0, true, ChunkType::None, &[]);
    header[23] ^= 1;
    let (mut replies, _) = asked(Framing::Extended, write);
    assert_eq!(run(&mut replies, &header).1, Some(ReplyViolation::Offset(8193)));
}

#[test]
fn an_old_reply_matches_no_new_request() {
    let (mut replies, first) = asked(Framing::Structured, Operation::Trim);
    let end = |cookie| chunk(Framing::Structured, cookie, true, ChunkType::None, &[]);
    assert_eq!(run(&mut replies, &end(first)).0.len(), 1);
    let again = Request { operation: READ, offset: 8192, length: 4096, fua: false };
    let (second, _) = replies.issue(again).expect("is allowed");
    assert_ne!(second.number(), first);
    assert_eq!(run(&mut replies, &end(first)).1, Some(ReplyViolation::UnknownCookie(first)));
    assert_eq!(replies.outstanding().collect::<Vec<_>>(), [second]);
}

#[test]
fn scattered_chunks_and_errors_are_told_as_they_came() {
    for framing in [Framing::Structured, Framing::Extended] {
        let (mut replies, cookie) = asked(framing, READ);
        let chunks = [
            chunk(framing, cookie, false, ChunkType::OffsetData, &data(1000, 3096)),
            chunk(framing, cookie, false, ChunkType::OffsetHole, &hole(0, 1000)),
            chunk(framing, cookie, true, ChunkType::None, &[]),
        ];
        let (events, violation) = run(&mut replies, &chunks.concat());
        assert_eq!(violation, None);
        let [
            Event::Data { at: 1000, len: 3096, .. },
            Event::Payload { at: 1000, .. },
            Event::Zeroes { at: 0, len: 1000, .. },
            Event::Done { result: Ok(()), .. },
        ] = events[..]
        else {
            panic!("{events:?}")
        };
        let (mut replies, cookie) = asked(framing, READ);
        let chunks = [
            chunk(framing, cookie, false, ChunkType::ErrorOffset, &error(28, "full\n", Some(9000))),
            chunk(framing, cookie, false, ChunkType::Error, &error(5, "other", None)),
            chunk(framing, cookie, true, ChunkType::Other(0x8077), &error(1, "", Some(0))),
        ];
        let (events, violation) = run(&mut replies, &chunks.concat());
        assert_eq!(violation, None);
        let [Event::Done { result: Err(failure), .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((failure.error.errno(), failure.offset), (28, Some(9000)));
        assert_eq!(failure.to_string(), "the server fails the request with error 28 (full\\n)");
    }
    let (mut replies, cookie) = asked(Framing::Simple, READ);
    let bytes = SimpleReply { error: Some(9999.into()), cookie }.encode();
    let (events, _) = run(&mut replies, &bytes);
    let [Event::Done { result: Err(failure), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(failure.error.errno(), 22, "an unknown error counts as EINVAL");
}

#[test]
fn extents_end_with_the_export() {
    let framing = Framing::Extended;
    let (mut replies, cookie) = asked(framing, STATUS);
    let body = extents(framing, 1, &[(512, 3), (1 << 40, 0)]);
    let bytes = chunk(framing, cookie, true, ChunkType::BlockStatusExt, &body);
    let (events, violation) = run(&mut replies, &bytes);
    assert_eq!(violation, None);
    let Event::Status { extents, .. } = &events[0] else { panic!("{events:?}") };
    let lengths: Vec<_> = extents.iter().map(|extent| extent.length).collect();
    assert_eq!(lengths, [512, super::table::SIZE - 8192 - 512]);
}

#[test]
fn a_truncated_reply_is_neither_an_error_nor_complete() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        let (mut whole, cookie) = asked(framing, READ);
        let bytes = if framing == Framing::Simple {
            [&SimpleReply { error: None, cookie }.encode()[..], &[1; 4096]].concat()
        } else {
            let data = chunk(framing, cookie, false, ChunkType::OffsetData, &data(0, 100));
            [data, chunk(framing, cookie, true, ChunkType::OffsetHole, &hole(100, 3996))].concat()
        };
        for end in 0..bytes.len() {
            let (mut replies, _) = asked(framing, READ);
            let (events, violation) = run(&mut replies, &bytes[..end]);
            assert_eq!(violation, None);
            assert!(!events.iter().any(|event| matches!(event, Event::Done { .. })), "{end}");
            assert!(!matches!(replies.expect(), Expect::Machine(0)), "it waits for more at {end}");
            assert_eq!(replies.outstanding().count(), 1);
        }
        let (events, _) = run(&mut whole, &bytes);
        assert!(matches!(events.last(), Some(Event::Done { result: Ok(()), .. })), "{events:?}");
    }
}

#[test]
fn replies_to_options_that_are_wrong_end_the_negotiation() {
    let greeting = encode_greeting(HandshakeFlags::all()).to_vec();
    let bare = Wish { extended: false, structured: false, ..Wish::export("disk") };
    let info = |kind: u16, data: &[u8]| {
        reply(OptionCode::Go, OptionReply::Info, &[&kind.to_be_bytes()[..], data].concat())
    };
    let ack = |option| reply(option, OptionReply::Ack, &[]);
    let list = Wish { goal: Goal::List, ..bare.clone() };
    let session = Wish { session: Some(Session { token: 1, turn: 1 }), ..bare.clone() };
    let structured = Wish { structured: true, ..bare.clone() };
    let context = |id: u32, name: &str| {
        let data = [&id.to_be_bytes()[..], name.as_bytes()].concat();
        reply(OptionCode::SetMetaContext, OptionReply::MetaContext, &data)
    };
    let begun = ack(OptionCode::StructuredReply);
    let server = |data: &[u8]| reply(OptionCode::List, OptionReply::Server, data);
    let table = [
        (&bare, vec![1; 20]),
        (&bare, ack(OptionCode::Info)),
        (&bare, ack(OptionCode::Go)),
        (&bare, reply(OptionCode::Go, OptionReply::Ack, b"x")),
        (&bare, reply(OptionCode::Go, OptionReply::Server, &[0; 4])),
        (&bare, reply(OptionCode::Go, OptionReply::Info, b"x")),
        (&bare, info(0, &[0; 9])),
        (&bare, info(0, &[0; 11])),
        (&bare, info(0, &[0xff; 10])),
        (&bare, info(1, b"a\xff")),
        (&bare, info(3, &[0; 12])),
        (&bare, info(3, &[0; 11])),
        (&list, server(&[0, 0, 0, 2, b'a'])),
        (&list, server(&[0, 0, 0, 1, 0])),
        (&session, ack(OptionCode::Session)),
        (&session, reply(OptionCode::Session, OptionReply::Session, &[0; 15])),
        (&session, reply(OptionCode::Session, OptionReply::Session, &[0; 16]).repeat(2)),
        (&structured, [begun.clone(), context(1, "a:b"), context(1, "a:c")].concat()),
        (&structured, [begun.clone(), context(1, "a\0:b")].concat()),
    ];
    for (wish, bytes) in table {
        let all = [&greeting[..], &bytes].concat();
        let (_, result, _) = ask(wish.clone(), &all, 5);
        assert!(matches!(result, Err(NegotiationError::Violation(_))), "{bytes:x?}: {result:?}");
        for end in 0..all.len() {
            // A part is an error of its own, or waits for the rest.
            let (_, result, taken) = ask(wish.clone(), &all[..end], 5);
            let waits = matches!(result, Ok(Step::More));
            assert!(waits && taken == end || result.is_err(), "{end} of {bytes:x?}: {result:?}");
        }
    }
    let huge = [&greeting[..], &reply(OptionCode::Go, OptionReply::Info, &[0; 20_000])].concat();
    let (_, result, _) = ask(bare.clone(), &huge, 4096);
    assert_eq!(result.expect_err("is too long"), NegotiationError::TooLong(1 << 14));
    let many = [&greeting[..], &server(&[0; 4]).repeat(1 << 16)].concat();
    let (_, result, _) = ask(list, &many, 4096);
    assert_eq!(result.expect_err("is too long"), NegotiationError::TooLong(1 << 20));
}
