use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::limits::Limits;

fn limits() -> Limits {
    Limits { head: 300, target: 50, fields: 5, body: 1000, ..Limits::default() }
}

/// Looks for a head in bytes that come in pieces of these sizes.
fn find(bytes: &[u8], sizes: &[usize]) -> Result<Option<(usize, usize)>, Refusal> {
    let mut lines = Lines::default();
    let mut end = 0;
    for size in sizes.iter().cycle() {
        end = bytes.len().min(end + size);
        let found = lines.find(&bytes[..end], &limits())?;
        if found.is_some() || end == bytes.len() {
            return Ok(found);
        }
    }
    unreachable!("there are sizes")
}

/// Parses a body that comes in pieces of these sizes; returns also the bytes behind it.
fn take(bytes: &[u8], sizes: &[usize]) -> Result<(Vec<u8>, bool, Vec<u8>), Refusal> {
    let (mut chunks, mut received, mut body) = (Chunked::new(), BytesMut::new(), Vec::new());
    let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
    loop {
        match chunks.next(&mut received, &limits())? {
            Some(Piece::Data(data)) => {
                assert!(!data.is_empty());
                body.extend_from_slice(&data);
            }
            Some(Piece::Trailers(_) | Piece::End) => {
                assert!(chunks.is_over());
                return Ok((body, true, [&received[..], rest].concat()));
            }
            None if rest.is_empty() => return Ok((body, false, Vec::new())),
            None => {
                let size = *sizes.next().expect("cycles");
                let (piece, after) = rest.split_at(rest.len().min(size));
                received.extend_from_slice(piece);
                rest = after;
            }
        }
    }
}

/// Bytes, many of which look like a request.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: [&[u8]; 14] = [
        b"GET / HTTP/1.1\r\n",
        b"Host: h\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b": ",
        b"5\r\nhello\r\n",
        b"0\r\n",
        b"a;b=c\r\n",
        b"\0",
        b"\xff",
        b"fffffffffffffff",
    ];
    let word = prop::sample::select(&WORDS[..]);
    prop::collection::vec(word, 0..30).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn a_head_is_found_alike_however_it_comes(
        bytes in likely(),
        sizes in prop::collection::vec(1usize..40, 1..5),
    ) {
        let found = find(&bytes, &sizes);
        prop_assert_eq!(find(&bytes, &[bytes.len().max(1)]), found);
        if let Ok(Some((start, end))) = found {
            prop_assert!(start < end && end <= 300);
            let head = Bytes::copy_from_slice(&bytes[start..end]);
            if let Ok(head) = Head::parse(&head, &limits()) {
                prop_assert!(head.request.headers().len() <= 5);
            }
        }
    }

    #[test]
    fn whatever_comes_as_chunks_ends_within_the_limits(
        bytes in likely(),
        sizes in prop::collection::vec(1usize..40, 1..5),
    ) {
        let taken = take(&bytes, &sizes);
        if let Ok((body, _, _)) = &taken {
            prop_assert!(body.len() <= 1000);
        }
        prop_assert_eq!(take(&bytes, &[bytes.len().max(1)]), taken);
    }

    #[test]
    fn chunks_are_put_together_again(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..20),
        sizes in prop::collection::vec(1usize..40, 1..5),
        trailers: bool,
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            bytes.extend(format!("{:x} \t;a=\"b\"\r\n", chunk.len()).into_bytes());
            bytes.extend([&chunk[..], b"\r\n"].concat());
        }
        bytes.extend(if trailers { &b"0\r\na: b\r\n\r\nnext"[..] } else { b"0\r\n\r\nnext" });
        prop_assert_eq!(take(&bytes, &sizes), Ok((chunks.concat(), true, b"next".to_vec())));
    }
}
