//! Whatever a client sends, in any pieces, is parsed within the limits, and with the same result for any
//! pieces.
#![no_main]

use bytes::BytesMut;
use handoff_http::Limits;
use handoff_http::wire::{Chunked, Framing, Head, Lines, Piece, Refusal};
use libfuzzer_sys::fuzz_target;

const BODY: u64 = 1000;

/// Requests of a connection: how many were read, the bytes of their bodies, and what ended it.
fn read(mut rest: &[u8], piece: usize) -> (usize, Vec<u8>, Option<Refusal>) {
    let limits = Limits { head: 300, target: 50, fields: 5, body: BODY, ..Limits::default() };
    let (mut received, mut requests, mut bodies) = (BytesMut::new(), 0, Vec::new());
    let mut more = |received: &mut BytesMut| {
        let (next, after) = rest.split_at(rest.len().min(piece));
        received.extend_from_slice(next);
        rest = after;
        !next.is_empty()
    };
    loop {
        let mut lines = Lines::default();
        let head = loop {
            match lines.find(&received, &limits) {
                Ok(Some((start, end))) => break received.split_to(end).freeze().slice(start..),
                Ok(None) if more(&mut received) => {}
                Ok(None) => return (requests, bodies, None),
                Err(refusal) => return (requests, bodies, Some(refusal)),
            }
        };
        let head = match Head::parse(&head, &limits) {
            Ok(head) => head,
            Err(refusal) => return (requests, bodies, Some(refusal)),
        };
        requests += 1;
        assert!(head.request.headers().len() <= 5);
        match head.framing {
            Framing::Length(mut left) => {
                assert!(left <= BODY);
                while left > 0 {
                    if received.is_empty() && !more(&mut received) {
                        return (requests, bodies, None);
                    }
                    let body = received.split_to(received.len().min(left as usize));
                    left -= body.len() as u64;
                    bodies.extend_from_slice(&body);
                }
            }
            Framing::Chunked => {
                let (mut chunks, before) = (Chunked::new(), bodies.len());
                while !chunks.is_over() {
                    match chunks.next(&mut received, &limits) {
                        Ok(Some(Piece::Data(data))) => bodies.extend_from_slice(&data),
                        Ok(Some(_)) => assert!(chunks.is_over()),
                        Ok(None) if more(&mut received) => {}
                        Ok(None) => return (requests, bodies, None),
                        Err(refusal) => return (requests, bodies, Some(refusal)),
                    }
                    assert!((bodies.len() - before) as u64 <= BODY);
                }
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, 1), whole);
    assert_eq!(read(bytes, 7), whole);
});
