//! Whatever an NBD server sends, in any pieces, a client negotiates, or reads as replies that cover their requests, with the
//! same result for any pieces.
#![no_main]

use handoff_nbd::client::{Event, Limits, Negotiation, Replies, Step, Wish};
use handoff_nbd::request::{Operation, Request};
use handoff_nbd::wire::Session;
use libfuzzer_sys::fuzz_target;

/// All that comes of a stream, fed `cut` bytes at a time: what is sent, and what is read.
fn read(stream: &[u8], cut: usize) -> (Vec<u8>, Vec<String>) {
    let limits = Limits { reply: 100, gathered: 400 };
    let wish = Wish { session: Some(Session { token: 1, turn: 2 }), ..Wish::export("a") };
    let mut negotiation = Negotiation::new(wish, limits);
    let (mut sent, mut read) = (Vec::new(), Vec::new());
    let (mut rest, mut given) = (stream, 0);
    let agreed = loop {
        let (taken, step) = match negotiation.next(&rest[..given]) {
            Ok(next) => next,
            Err(error) => return (sent, vec![error.to_string()]),
        };
        (rest, given) = (&rest[taken..], given - taken);
        match step {
            Step::More if given == rest.len() => return (sent, read),
            Step::More => {
                assert_eq!(given, 0, "all was taken");
                given = rest.len().min(cut);
            }
            Step::Send(bytes) => sent.extend(bytes),
            Step::Ready(agreed) => break agreed,
            step => unreachable!("{step:?} was not asked for"),
        }
    };
    let mut replies = Replies::new(&agreed, 8);
    // How often each byte of a read has come.
    let mut reads = Vec::new();
    for operation in [
        Operation::Read { unfragmented: false },
        Operation::Write,
        Operation::Read { unfragmented: true },
        Operation::BlockStatus { one: false },
        Operation::BlockStatus { one: true },
        Operation::Flush,
    ] {
        let length = if operation == Operation::Flush { 0 } else { 64 };
        if let Ok((cookie, head)) =
            replies.issue(Request { operation, offset: 0, length, fua: false })
        {
            sent.extend(&*head);
            reads.push((cookie, matches!(operation, Operation::Read { .. }), [0_u8; 64]));
        }
    }
    for mut piece in rest.chunks(cut) {
        loop {
            let (taken, event) = match replies.next(piece) {
                Ok(next) => next,
                Err(violation) => {
                    read.push(violation.to_string());
                    return (sent, read);
                }
            };
            piece = &piece[taken..];
            let mut came = |cookie, at: u64, len: u64| {
                let (.., bytes) = reads.iter_mut().find(|it| it.0 == cookie).expect("was asked");
                bytes[at as usize..][..len as usize].iter_mut().for_each(|byte| *byte += 1);
            };
            match &event {
                None => {
                    assert!(piece.is_empty());
                    break;
                }
                Some(Event::Payload { cookie, at }) => {
                    came(*cookie, *at, taken as u64);
                    continue;
                }
                Some(Event::Zeroes { cookie, at, len }) => came(*cookie, *at, *len),
                Some(Event::Done { cookie, result: Ok(()) }) => {
                    let (_, is_read, bytes) =
                        reads.iter().find(|it| it.0 == *cookie).expect("asked");
                    assert!(bytes.iter().all(|times| *times == u8::from(*is_read)));
                }
                Some(_) => {}
            }
            read.push(format!("{event:?}"));
        }
    }
    (sent, read)
}

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, 1), whole);
    assert_eq!(read(bytes, 7), whole);
});
