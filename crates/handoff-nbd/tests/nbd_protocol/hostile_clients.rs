//! What clients must not send, and what becomes of it.

use handoff_nbd::server::{Event, Expect, Policy, RequestViolation, Requests, Tls, Violation};
use handoff_nbd::wire::{
    Command, CommandFlags, Framing, MetaRequest, OptionCode, OptionReply, RequestHeader,
};

use super::table::{ServerEnd, option, replies, serve, target};

const FIXED: [u8; 4] = 3_u32.to_be_bytes();

/// The last reply to options behind a good beginning.
fn last(options: &[Vec<u8>]) -> OptionReply {
    let bytes = [&FIXED[..], &options.concat()].concat();
    let (sent, end, taken) = serve(Policy::default(), &bytes, 100);
    assert!(matches!(end, ServerEnd::Hungry), "{end:?}");
    assert_eq!(taken, bytes.len());
    replies(&sent).pop().expect("a reply").1
}

#[test]
fn bad_options_are_refused_and_the_next_one_is_read() {
    let abort = option(OptionCode::Abort, b"ignored");
    let structured = option(OptionCode::StructuredReply, &[]);
    let extended = option(OptionCode::ExtendedHeaders, &[]);
    let context = MetaRequest { name: "disk".into(), queries: vec!["base:".into(); 65] };
    let one = MetaRequest { name: "disk".into(), queries: vec![] }.encode();
    let table: [(&[Vec<u8>], OptionReply); 17] = [
        (&[option(OptionCode::Other(4), b"x")], OptionReply::ErrUnsup),
        (&[option(OptionCode::Other(u32::MAX), &[0; 70_000])], OptionReply::ErrTooBig),
        (&[option(OptionCode::List, b"x")], OptionReply::ErrInvalid),
        (&[option(OptionCode::StartTls, b"")], OptionReply::ErrUnsup),
        (&[option(OptionCode::StartTls, b"x")], OptionReply::ErrInvalid),
        (&[option(OptionCode::StructuredReply, b"x")], OptionReply::ErrInvalid),
        (&[option(OptionCode::ExtendedHeaders, b"x")], OptionReply::ErrInvalid),
        (&[extended, structured.clone()], OptionReply::ErrExtHeaderReqd),
        (&[option(OptionCode::Go, b"")], OptionReply::ErrInvalid),
        (&[option(OptionCode::Go, b"\0\0\0\x02\xff\xff\0\0")], OptionReply::ErrInvalid),
        (&[option(OptionCode::Info, b"\xff\xff\xff\xff\0\0")], OptionReply::ErrInvalid),
        (&[option(OptionCode::Info, b"\0\0\0\x02no\0\0")], OptionReply::ErrUnknown),
        (&[option(OptionCode::SetMetaContext, &one)], OptionReply::ErrInvalid),
        (&[structured.clone(), option(OptionCode::SetMetaContext, b"")], OptionReply::ErrInvalid),
        (
            &[structured, option(OptionCode::SetMetaContext, &context.encode())],
            OptionReply::ErrTooBig,
        ),
        (&[option(OptionCode::Session, b"short")], OptionReply::ErrInvalid),
        (
            &[option(OptionCode::Session, &[1; 24]), option(OptionCode::Session, &[1; 24])],
            OptionReply::ErrInvalid,
        ),
    ];
    for (options, expected) in table {
        assert_eq!(last(options), expected, "{options:x?}");
        let bytes = [&FIXED[..], &options.concat(), &abort].concat();
        let (_, end, _) = serve(Policy::default(), &bytes, 33);
        assert!(matches!(end, ServerEnd::Aborted), "{end:?}");
    }
}

#[test]
fn what_has_no_answer_ends_the_connection() {
    let extended = option(OptionCode::ExtendedHeaders, &[]);
    let name = |name: &[u8]| option(OptionCode::ExportName, name);
    let no_export = |bytes: Vec<u8>, policy| {
        let (_, end, _) = serve(policy, &[&FIXED[..], &bytes].concat(), 50);
        assert!(matches!(end, ServerEnd::Broken(Violation::NoExport(_))), "{end:?}");
    };
    no_export(name(b"no"), Policy::default());
    no_export(name(b"a\xff"), Policy::default());
    no_export(name(b"strict"), Policy::default());
    no_export([extended, name(b"disk")].concat(), Policy::default());
    no_export(name(b"disk"), Policy { tls: Tls::Required, ..Policy::default() });
    let broken = |bytes: &[u8]| match serve(Policy::default(), bytes, 50).1 {
        ServerEnd::Broken(violation) => violation,
        end => panic!("{end:?}"),
    };
    assert_eq!(broken(&7_u32.to_be_bytes()), Violation::Flags(7));
    assert_eq!(broken(&[&FIXED[..], b"GET / HTTP/1.1\r\n"].concat()), Violation::Magic);
    let list = option(OptionCode::List, &[]);
    assert_eq!(broken(&[&[0; 4][..], &list].concat()), Violation::NotFixed(OptionCode::List));
    assert_eq!(broken(&[&FIXED[..], &name(&[b'a'; 4097])].concat()), Violation::TooLong(4097));
    let mut huge = option(OptionCode::List, &[]);
    huge[12..].fill(0xff);
    assert_eq!(broken(&[&FIXED[..], &huge].concat()), Violation::TooLong(u32::MAX));
    assert_eq!(broken(&[&FIXED[..], &list.repeat(1025)].concat()), Violation::TooMany(1024));
}

fn header(flags: CommandFlags, command: Command, length: u64) -> RequestHeader {
    RequestHeader { flags, command, cookie: 5, offset: 0, length }
}

#[test]
fn a_refused_payload_is_skipped() {
    for (framing, request) in [
        (Framing::Simple, header(CommandFlags::empty(), Command::Write, 100)),
        (Framing::Structured, header(CommandFlags::DF, Command::Write, 1024)),
        (Framing::Extended, header(CommandFlags::PAYLOAD_LEN, Command::Read, 512)),
        (Framing::Extended, header(CommandFlags::PAYLOAD_LEN, Command::BlockStatus, 12)),
        (Framing::Extended, header(CommandFlags::PAYLOAD_LEN, Command::Other(99), 12)),
    ] {
        let mut requests = Requests::new(target(framing));
        let bytes = request.encode(framing).expect("fits");
        let (taken, event) = requests.next(&bytes).expect("is read");
        assert_eq!(taken, bytes.len());
        assert!(matches!(event, Some(Event::Refused(..))), "{event:?}");
        assert_eq!(requests.expect(), Expect::Skip(request.length));
        requests.received(10);
        let rest = vec![0; request.length as usize - 10];
        let flush = header(CommandFlags::empty(), Command::Flush, 0).encode(framing).expect("fits");
        let (_, event) = requests.next(&[&rest[..], &flush].concat()).expect("is read");
        assert!(matches!(event, Some(Event::Request(..))), "{event:?}");
    }
}

/// As QEMU 10.0 sends them.
#[test]
fn an_extended_write_has_payload_without_the_flag() {
    let mut requests = Requests::new(target(Framing::Extended));
    let write = header(CommandFlags::empty(), Command::Write, 512);
    let (_, event) =
        requests.next(&write.encode(Framing::Extended).expect("fits")).expect("is read");
    assert!(matches!(event, Some(Event::Request(..))), "{event:?}");
    assert_eq!(requests.expect(), Expect::Payload(512));
}

#[test]
fn requests_that_are_none_end_the_connection() {
    let broken =
        |framing, bytes: &[u8]| Requests::new(target(framing)).next(bytes).expect_err("is broken");
    let flush = header(CommandFlags::empty(), Command::Flush, 0);
    let extended = flush.encode(Framing::Extended).expect("fits");
    assert_eq!(broken(Framing::Structured, &extended), RequestViolation::Magic(0x21e4_1c71));
    let compact = flush.encode(Framing::Simple).expect("fits");
    let padded = [&compact[..], &[0; 4]].concat();
    assert_eq!(broken(Framing::Extended, &padded), RequestViolation::Magic(0x2560_9513));
    let length = (1 << 25) + 1;
    let write = header(CommandFlags::empty(), Command::Write, length);
    let bytes = write.encode(Framing::Simple).expect("fits");
    assert_eq!(broken(Framing::Simple, &bytes), RequestViolation::TooLong(length));
    let write = header(CommandFlags::PAYLOAD_LEN, Command::Write, u64::MAX);
    let bytes = write.encode(Framing::Extended).expect("fits");
    assert_eq!(broken(Framing::Extended, &bytes), RequestViolation::TooLong(u64::MAX));
    let mut requests = Requests::new(target(Framing::Simple));
    let end = header(CommandFlags::empty(), Command::Disconnect, 0).encode(Framing::Simple);
    let (_, event) = requests.next(&end.expect("fits")).expect("is read");
    assert!(matches!(event, Some(Event::Disconnect)));
    assert_eq!(requests.expect(), Expect::Nothing);
    assert!(matches!(requests.next(b"x"), Err(RequestViolation::AfterEnd)));
}
