//! What is encoded decodes to the same, and other bytes to nothing.

use handoff_nbd::target::BlockSizes;
use handoff_nbd::wire::{
    ChunkHeader, CommandFlags, ErrorCode, Framing, GreetingError, HandshakeFlags, InfoRequest,
    InfoType, Malformed, MetaRequest, NameError, OptionHeader, OptionReplyHeader, Printable,
    ReplyFlags, RequestHeader, Session, SimpleReply, check_name, decode_greeting, encode_greeting,
};
use proptest::prelude::*;

const FRAMINGS: [Framing; 3] = [Framing::Simple, Framing::Structured, Framing::Extended];

proptest! {
    #[test]
    fn headers_come_back(
        (a, b, c) in any::<(u32, u32, u32)>(),
        (flags, kind) in any::<(u16, u16)>(),
        (cookie, offset, length) in any::<(u64, u64, u64)>(),
        turn in any::<(u128, u64)>(),
    ) {
        let option = OptionHeader { option: a.into(), length: b };
        prop_assert_eq!(OptionHeader::decode(&option.encode()), Some(option));
        let reply = OptionReplyHeader { option: a.into(), reply: b.into(), length: c };
        prop_assert_eq!(OptionReplyHeader::decode(&reply.encode()), Some(reply));
        let session = Session { token: turn.0, turn: turn.1 };
        prop_assert_eq!(Session::decode(&session.encode()), Some(session));
        let greeting = HandshakeFlags::from_bits_retain(flags);
        prop_assert_eq!(decode_greeting(&encode_greeting(greeting)), Ok(greeting));
        let simple = SimpleReply { error: (a != 0).then(|| a.into()), cookie };
        prop_assert_eq!(SimpleReply::decode(&simple.encode()), Some(simple));
        for framing in FRAMINGS {
            let fits = framing == Framing::Extended || u32::try_from(length).is_ok();
            let flags = CommandFlags::from_bits_retain(flags);
            let header = RequestHeader { flags, command: kind.into(), cookie, offset, length };
            let bytes = header.encode(framing);
            prop_assert_eq!(bytes.is_some(), fits);
            if let Some(bytes) = bytes {
                prop_assert_eq!(bytes.len(), framing.request_len());
                prop_assert_eq!(RequestHeader::decode(framing, &bytes), Some(header));
                for end in 0..bytes.len() {
                    prop_assert_eq!(RequestHeader::decode(framing, &bytes[..end]), None);
                }
            }
            let flags = ReplyFlags::from_bits_retain(flags.bits());
            let offset = if framing == Framing::Extended { offset } else { 0 };
            let chunk = ChunkHeader { flags, kind: kind.into(), cookie, offset, length };
            let bytes = chunk.encode(framing);
            prop_assert_eq!(bytes.is_some(), fits && framing != Framing::Simple);
            if let Some(bytes) = bytes {
                prop_assert_eq!(ChunkHeader::decode(framing, &bytes), Some(chunk));
                for end in 0..bytes.len() {
                    prop_assert_eq!(ChunkHeader::decode(framing, &bytes[..end]), None);
                }
            }
        }
    }

    #[test]
    fn options_come_back(
        name in "[^\0]{0,20}",
        infos in prop::collection::vec(any::<u16>(), 0..6),
        queries in prop::collection::vec("[^\0]{0,9}", 0..6),
    ) {
        let infos: Vec<_> = infos.into_iter().map(InfoType::from).collect();
        let info = InfoRequest { name: name.clone(), infos };
        let bytes = info.encode();
        for end in 0..bytes.len() {
            prop_assert_eq!(InfoRequest::decode(&bytes[..end], 6), Err(Malformed::Length));
        }
        prop_assert_eq!(InfoRequest::decode(&bytes, 6), Ok(info));
        let meta = MetaRequest { name, queries };
        let bytes = meta.encode();
        for end in 0..bytes.len() {
            prop_assert_eq!(MetaRequest::decode(&bytes[..end], 6), Err(Malformed::Length));
        }
        prop_assert_eq!(MetaRequest::decode(&bytes, 6), Ok(meta));
    }

    #[test]
    fn numbers_keep_what_they_do_not_know(number in any::<u32>()) {
        use handoff_nbd::wire::{ChunkType, Command, OptionCode, OptionReply};
        let short = number as u16;
        prop_assert_eq!(u32::from(OptionCode::from(number)), number);
        prop_assert_eq!(u32::from(OptionReply::from(number)), number);
        prop_assert_eq!(u32::from(ErrorCode::from(number)), number);
        prop_assert_eq!(u16::from(Command::from(short)), short);
        prop_assert_eq!(u16::from(ChunkType::from(short)), short);
        prop_assert_eq!(ChunkType::from(short).is_error(), short >= 0x8000);
        prop_assert_eq!(OptionReply::from(number).is_error(), number >= 0x8000_0000);
    }

    #[test]
    fn texts_are_safe_to_print(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let text = Printable::new(&bytes);
        prop_assert!(text.as_str().len() <= 256 + '…'.len_utf8());
        prop_assert!(!text.as_str().chars().any(char::is_control));
    }

    #[test]
    fn sound_block_sizes_come_back(minimum in 0_u32..20, preferred in 0_u32..32, maximum in any::<u32>()) {
        let sizes = BlockSizes { minimum: 1 << minimum, preferred: 1 << preferred, maximum };
        let decoded = BlockSizes::decode(&sizes.encode());
        prop_assert_eq!(decoded, sizes.is_sound().then_some(sizes));
    }
}

#[test]
fn a_text_keeps_what_is_harmless() {
    assert_eq!(Printable::new("schön: a\\b".as_bytes()).as_str(), "schön: a\\\\b");
    assert_eq!(Printable::new(b"\x1b[31m\n").as_str(), "\\u{1b}[31m\\n");
    assert_eq!(Printable::new("a\u{202e}b".as_bytes()).as_str(), "a\\u{202e}b");
    let long = Printable::new(&[b'a'; 5000]);
    assert_eq!(long.as_str(), format!("{}…", "a".repeat(256)));
}

#[test]
fn a_name_is_short_utf_8_without_nul() {
    assert_eq!(check_name("grün".as_bytes()), Ok("grün"));
    assert_eq!(check_name(&[b'a'; 4096]).map(str::len), Ok(4096));
    assert_eq!(check_name(&[b'a'; 4097]), Err(NameError::TooLong));
    assert_eq!(check_name(b"a\xff"), Err(NameError::NotUtf8));
    assert_eq!(check_name(b"a\0b"), Err(NameError::Nul));
}

#[test]
fn a_count_of_queries_is_not_believed() {
    let bytes = [&0_u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
    assert_eq!(MetaRequest::decode(&bytes, 64), Err(Malformed::Length));
    let many = MetaRequest { name: String::new(), queries: vec![String::new(); 65] };
    assert_eq!(MetaRequest::decode(&many.encode(), 64), Err(Malformed::TooMany));
    let many = InfoRequest { name: String::new(), infos: vec![InfoType::Name; 65] };
    assert_eq!(InfoRequest::decode(&many.encode(), 64), Err(Malformed::TooMany));
}

#[test]
fn other_greetings_are_told_apart() {
    let mut greeting = encode_greeting(HandshakeFlags::FIXED_NEWSTYLE);
    greeting[8..16].copy_from_slice(&0x0000_4202_8186_1253_u64.to_be_bytes());
    assert_eq!(decode_greeting(&greeting), Err(GreetingError::OldStyle));
    assert_eq!(decode_greeting(b"SSH-2.0-OpenSSH_9."), Err(GreetingError::NotNbd));
}

#[test]
fn errors_are_those_of_the_protocol() {
    let known = [1, 5, 12, 22, 28, 75, 95, 108];
    for errno in 1..134 {
        let error = ErrorCode::from_errno(errno);
        assert!(known.contains(&error.errno()), "{errno}");
        if known.contains(&errno) {
            assert_eq!((error.errno(), u32::from(error)), (errno, errno as u32));
        }
    }
    let alike = [(122, 28), (27, 28), (30, 1), (13, 1), (4, 5)];
    for (errno, told) in alike {
        assert_eq!(ErrorCode::from_errno(errno).errno(), told);
    }
}
