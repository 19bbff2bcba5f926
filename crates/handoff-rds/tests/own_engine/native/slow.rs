//! A peer that takes its time in the midst of a long message.

use std::io::Write;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use handoff_rds::wire::{HEADER_LEN, Header};

use crate::hosts::{Setup, host_with, pair, pattern, receive_all};
use crate::peer::{Peer, SOCKET};

const LONG: usize = 900_000;

/// The kernel wakes the engine for 256 KiB of a long message, and more than that may take longer than its patience.
#[test]
fn who_is_slow_but_goes_on_is_not_hung_up_on() {
    let pair = pair();
    let setup = Setup { patience: Duration::from_secs(1), ..Setup::default() };
    let (ready, is_ready) = mpsc::channel();
    let engine = host_with(&pair.right, pair.right.v4().into(), setup, move |own| async move {
        let socket = own.engine.bind(SOCKET).expect("is free");
        ready.send(()).expect("is waited for");
        receive_all(&socket, [LONG].into_iter()).await;
        own.engine.statistics()
    });
    is_ready.recv().expect("is there");
    let mut peer = Peer::connect(&pair, 0);
    peer.send_map();
    let header = Header { len: LONG as u32, ..peer.next() };
    let frame = [&header.to_bytes()[..], &pattern(0, LONG)].concat();
    let (begin, rest) = frame.split_at(HEADER_LEN + 100_000);
    peer.stream.write_all(begin).expect("is taken");
    // In all, less than would wake it, for twice as long as it waits for a message that stands still.
    let (slow, rest) = rest.split_at(200_000);
    for piece in slow.chunks(5_000) {
        sleep(Duration::from_millis(50));
        peer.stream.write_all(piece).expect("is taken");
    }
    peer.stream.write_all(rest).expect("is taken");
    let statistics = engine.join().expect("has it all");
    assert_eq!(statistics.violations, 0);
}
