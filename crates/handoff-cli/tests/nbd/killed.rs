//! kill -9 of the server under load: what was flushed is there.

use std::io::Write as _;

use rustix::process::Signal;

use crate::raw::{FLUSH, FUA, Raw, WRITE};
use crate::server::{Server, directory, empty, ways};

const BLOCK: usize = 4096 + 512;
const BLOCKS: u64 = 200;

fn block(number: u64, round: u64) -> Vec<u8> {
    let mut block = vec![(number * 7 + round * 13) as u8; BLOCK];
    block[..8].copy_from_slice(&number.to_be_bytes());
    block[8..16].copy_from_slice(&round.to_be_bytes());
    block
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    let rounds = if handoff_testbed::running::is_long() { 100 } else { 5 };
    let place = directory();
    for &io in ways(&place) {
        let file = place.path().join(io);
        empty(&file, 4 << 20);
        // The last round of each block that was flushed, and the last that was sent.
        let (mut flushed, mut sent) = ([0; BLOCKS as usize], [0; BLOCKS as usize]);
        for round in 1..=rounds {
            let path = file.to_str().expect("UTF-8");
            let server = Server::start(&["--io", io, path]);
            let mut raw = Raw::new(server.connect(), "");
            for (number, (least, most)) in flushed.iter().zip(&sent).enumerate() {
                let number = number as u64;
                let is = raw.read(number * BLOCK as u64, BLOCK as u32);
                let is_of = |round: &u64| match round {
                    0 => is == [0; BLOCK],
                    round => is == block(number, *round),
                };
                // One that was sent and not flushed may be there in part.
                let may_be_in_part = most != least;
                assert!(may_be_in_part || is_of(least), "{io}: block {number} of round {least}");
            }
            for number in 0..BLOCKS {
                assert_eq!(raw.write(0, number * BLOCK as u64, &block(number, round)), 0);
                sent[number as usize] = round;
                if number == BLOCKS / 2 {
                    assert_eq!(raw.ask(0, FLUSH, 0, 0), 0);
                    flushed.copy_from_slice(&sent);
                }
                if number % 50 == 49 {
                    assert_eq!(raw.write(FUA, number * BLOCK as u64, &block(number, round)), 0);
                    flushed[number as usize] = round;
                }
            }
            // Some are under way at the end, all over the blocks behind the flushed ones.
            for number in BLOCKS / 2 + 1..BLOCKS {
                if flushed[number as usize] == round {
                    continue;
                }
                raw.begin(0, WRITE, number * BLOCK as u64, BLOCK as u32);
                raw.stream.write_all(&block(number, round)).expect("sends");
            }
            server.signal(Signal::KILL);
            assert_eq!(server.end().code, None);
        }
    }
}
