//! What a peer sends is frames, payload or an error, however it is cut into pieces; each announced piece is
//! taken once.
#![no_main]

use handoff_cp::coverage::Coverage;
use handoff_cp::wire::{Decoder, Event, Frame, HELLO_LEN, Hello};
use libfuzzer_sys::fuzz_target;

/// Everything that a decoder makes of `stream`, fed `cut` bytes at a time; payload as joined ranges.
fn decode(stream: &[u8], cut: usize) -> (Vec<Frame>, Vec<(u64, u64)>, bool) {
    let mut decoder = Decoder::new();
    let (mut frames, mut payload) = (Vec::new(), Vec::<(u64, u64)>::new());
    for mut piece in stream.chunks(cut.max(1)) {
        while !piece.is_empty() {
            let Ok((taken, event)) = decoder.next(piece) else { return (frames, payload, false) };
            assert!(taken > 0 && taken <= piece.len());
            match event {
                Some(Event::Frame(frame)) => {
                    if let Frame::Data { offset, .. } = frame {
                        payload.push((offset, 0));
                    }
                    frames.push(frame);
                }
                Some(Event::Payload { offset, .. }) => {
                    let (start, len) = payload.last_mut().expect("a frame announced it");
                    assert_eq!(*start + *len, offset);
                    *len += taken as u64;
                }
                None => assert_eq!(taken, piece.len()),
            }
            piece = &piece[taken..];
        }
    }
    (frames, payload, true)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, stream)) = bytes.split_first() else { return };
    if let Some(hello) = stream.first_chunk::<HELLO_LEN>()
        && let Ok(decoded) = Hello::decode(hello)
    {
        assert_eq!(decoded.encode(), *hello);
    }
    let whole = decode(stream, stream.len());
    assert_eq!(decode(stream, usize::from(*cut)), whole);
    let mut coverage = Coverage::new(None, true);
    let added: u64 = whole
        .1
        .iter()
        .filter(|(offset, len)| coverage.add(*offset, *len, 0).is_ok())
        .map(|(_, len)| len)
        .sum();
    assert_eq!(coverage.bytes(), added);
});
