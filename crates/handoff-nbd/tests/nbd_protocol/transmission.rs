//! Requests and answers of both sides together: a disk in memory, read and written through all headers.

use handoff_nbd::client::{self, Cookie, Replies};
use handoff_nbd::request::{Extent, Operation, Request};
use handoff_nbd::server::{Answer, Event, Misuse, Requests};
use handoff_nbd::wire::{ErrorCode, Framing, Head, StateFlags};
use proptest::prelude::*;

use super::table::{SIZE, agreed, target};

const PAYLOAD: u8 = 0xaa;

/// A request with the head of its reply, made by a real pair of machines.
fn arrive(framing: Framing, request: Request) -> (Replies, Cookie, Answer) {
    let mut replies = Replies::new(&agreed(framing), 1);
    let (cookie, head) = replies.issue(request).expect("is allowed");
    let mut requests = Requests::new(target(framing));
    let (taken, event) = requests.next(&head).expect("is read");
    assert_eq!(taken, head.len());
    let Some(Event::Request(came, answer)) = event else { panic!("{event:?}") };
    assert_eq!(came, request);
    (replies, cookie, answer)
}

fn read(length: u64, unfragmented: bool) -> Request {
    Request { operation: Operation::Read { unfragmented }, offset: 4096, length, fua: false }
}

/// All events of a reply.
fn hear(replies: &mut Replies, mut bytes: &[u8]) -> Vec<client::Event> {
    let mut events = Vec::new();
    loop {
        let (taken, event) = replies.next(bytes).expect("our server is polite");
        bytes = &bytes[taken..];
        match event {
            Some(event) => events.push(event),
            None => return events,
        }
    }
}

fn payload(head: &Head, len: u64) -> Vec<u8> {
    [&head[..], &vec![PAYLOAD; len as usize]].concat()
}

proptest! {
    #[test]
    fn parts_of_a_read_arrive_where_they_belong(
        parts in prop::collection::vec((1_u64..9, any::<bool>()), 1..8),
        extended in any::<bool>(), ends in any::<bool>(),
    ) {
        let framing = if extended { Framing::Extended } else { Framing::Structured };
        let length = parts.iter().map(|(len, _)| len * 512).sum();
        let (mut replies, cookie, mut answer) = arrive(framing, read(length, false));
        let (last, first) = parts.split_last().expect("one at least");
        let mut bytes = Vec::new();
        for (len, is_hole) in first {
            let len = len * 512;
            if *is_hole {
                bytes.extend(&*answer.hole(len).expect("fits"));
            } else {
                bytes.extend(payload(&answer.data(len).expect("fits"), len));
            }
        }
        let len = last.0 * 512;
        prop_assert_eq!(answer.remaining(), len);
        prop_assert_eq!(answer.clone().done(), Err(Misuse::Incomplete));
        prop_assert_eq!(answer.data(len + 1), Err(Misuse::Range));
        match (last.1, ends) {
            (true, true) => bytes.extend(&*answer.last_hole().expect("fits")),
            (true, false) => {
                bytes.extend(&*answer.hole(len).expect("fits"));
                bytes.extend(&*answer.done().expect("is whole"));
            }
            (false, true) => bytes.extend(payload(&answer.last_data().expect("fits"), len)),
            (false, false) => {
                bytes.extend(payload(&answer.data(len).expect("fits"), len));
                bytes.extend(&*answer.done().expect("is whole"));
            }
        }
        let mut memory = vec![1_u8; length as usize];
        let events = hear(&mut replies, &bytes);
        let mut left = 0;
        for event in &events {
            match event {
                client::Event::Data { len, .. } => left = *len,
                client::Event::Payload { at, .. } => {
                    memory[*at as usize..][..left as usize].fill(PAYLOAD);
                }
                client::Event::Zeroes { at, len, .. } => {
                    memory[*at as usize..][..*len as usize].fill(0);
                }
                _ => {}
            }
        }
        prop_assert_eq!(events.last(), Some(&client::Event::Done { cookie, result: Ok(()) }));
        let expected: Vec<u8> = parts
            .iter()
            .flat_map(|(len, is_hole)| vec![if *is_hole { 0 } else { PAYLOAD }; *len as usize * 512])
            .collect();
        prop_assert_eq!(memory, expected);
    }
}

#[test]
fn a_read_in_one_part_is_one_part() {
    for (framing, unfragmented) in
        [(Framing::Simple, false), (Framing::Structured, true), (Framing::Extended, true)]
    {
        let (mut replies, cookie, mut answer) = arrive(framing, read(1024, unfragmented));
        assert!(!answer.takes_parts());
        assert_eq!(answer.hole(1024), Err(Misuse::OnePart));
        assert_eq!(answer.clone().last_hole(), Err(Misuse::OnePart));
        assert_eq!(answer.data(512), Err(Misuse::OnePart));
        assert_eq!(answer.clone().done(), Err(Misuse::Incomplete));
        let bytes = payload(&answer.last_data().expect("is whole"), 1024);
        let events = hear(&mut replies, &bytes);
        assert_eq!(events.last(), Some(&client::Event::Done { cookie, result: Ok(()) }));
    }
}

#[test]
fn all_commands_are_answered_by_all_headers() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        for (operation, length) in [
            (Operation::Write, 512),
            (Operation::Flush, 0),
            (Operation::Trim, SIZE - 4096),
            (Operation::WriteZeroes { no_hole: true, fast: false }, 512),
        ] {
            let offset = if length == 0 { 0 } else { 4096 };
            let request = Request { operation, offset, length, fua: true };
            let (mut replies, cookie, mut answer) = arrive(framing, request);
            assert!(answer.data(1).is_err() && answer.hole(1).is_err());
            assert!(answer.clone().last_data().is_err() && answer.clone().status(1, &[]).is_err());
            let events = hear(&mut replies, &answer.clone().done().expect("has no payload"));
            assert_eq!(events, [client::Event::Done { cookie, result: Ok(()) }]);
            assert_eq!(replies.outstanding().count(), 0);
            let (mut replies, _, answer) = arrive(framing, request);
            let long = "ä".repeat(3000);
            let events = hear(&mut replies, &answer.fail(ErrorCode::NoSpc, &long));
            let [client::Event::Done { result: Err(failure), .. }] = &events[..] else {
                panic!("{events:?}")
            };
            assert_eq!(failure.error, ErrorCode::NoSpc);
            assert_eq!(failure.text.as_str().is_empty(), framing == Framing::Simple);
        }
        let (mut replies, _, answer) = arrive(framing, read(1024, false));
        assert_eq!(answer.clone().fail_at(ErrorCode::Io, "", 4095), Err(Misuse::Range));
        assert_eq!(answer.clone().fail_at(ErrorCode::Io, "", 5120), Err(Misuse::Range));
        let bytes = answer.fail_at(ErrorCode::Other(0), "here", 5119).expect("is inside");
        let events = hear(&mut replies, &bytes);
        let [client::Event::Done { result: Err(failure), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(failure.error, ErrorCode::Io, "0 would be a success");
        assert_eq!(failure.offset, (framing != Framing::Simple).then_some(5119));
    }
}

#[test]
fn extents_arrive_as_they_were_sent() {
    let extent = |length, state| Extent { length, state };
    let (hole, data) = (StateFlags::HOLE | StateFlags::ZERO, StateFlags::empty());
    for framing in [Framing::Structured, Framing::Extended] {
        let ask = |one| {
            let operation = Operation::BlockStatus { one };
            arrive(framing, Request { operation, offset: 4096, length: 8192, fua: false })
        };
        let (mut replies, _, answer) = ask(false);
        let sent = [extent(4096, hole), extent(512, data), extent(100_000, hole)];
        let refused = |extents: &[Extent]| answer.clone().status(1, extents).is_err();
        assert!(refused(&[]) && refused(&[extent(0, data)]));
        assert!(refused(&[extent(8192, data), extent(1, data)]));
        assert!(answer.clone().done().is_err());
        let events = hear(&mut replies, &answer.clone().status(1, &sent).expect("fits"));
        let client::Event::Status { extents, context: 1, .. } = &events[0] else {
            panic!("{events:?}")
        };
        assert_eq!(extents[..], sent);
        assert!(matches!(events[1], client::Event::Done { result: Ok(()), .. }));
        let (_, _, answer) = ask(true);
        assert!(answer.clone().status(1, &sent[..2]).is_err());
        assert!(answer.clone().status(1, &sent[2..]).is_err());
        assert!(answer.status(1, &sent[..1]).is_ok());
    }
    // 32 bits hold less, and the client asks again from there.
    let mut large = agreed(Framing::Structured);
    large.target.size = 1 << 40;
    let mut replies = Replies::new(&large, 1);
    let operation = Operation::BlockStatus { one: false };
    let request = Request { operation, offset: 0, length: 1 << 31, fua: false };
    let (_, head) = replies.issue(request).expect("is allowed");
    let (_, event) = Requests::new(large.target).next(&head).expect("is read");
    let Some(Event::Request(_, answer)) = event else { panic!("{event:?}") };
    let bytes = answer.status(1, &[extent(1 << 40, hole)]).expect("fits");
    let events = hear(&mut replies, &bytes);
    let client::Event::Status { extents, .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!(extents[..], [extent(0xffff_0000, hole)]);
}

#[test]
fn only_so_many_requests_are_under_way() {
    let mut replies = Replies::new(&agreed(Framing::Simple), 2);
    let first = replies.issue(read(512, false)).expect("has room").0;
    let second = replies.issue(read(512, false)).expect("has room").0;
    assert_eq!(replies.issue(read(512, false)), Err(client::IssueError::Full));
    assert_eq!(replies.outstanding().collect::<Vec<_>>(), [first, second]);
    let refused = replies.issue(read(513, false));
    assert!(matches!(refused, Err(client::IssueError::Refused(_))), "{refused:?}");
    let trim = Request { operation: Operation::Trim, offset: 0, length: 1 << 33, fua: false };
    let mut large = agreed(Framing::Simple);
    large.target.size = 1 << 40;
    assert_eq!(Replies::new(&large, 1).issue(trim), Err(client::IssueError::TooLong));
    large.target.framing = Framing::Extended;
    assert!(Replies::new(&large, 1).issue(trim).is_ok());
}
