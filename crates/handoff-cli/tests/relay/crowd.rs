//! Crowds of connections that mean no good, while one that does is served.

use std::io::Read as _;

use rustix::process::Signal;

use crate::session::Relay;
use crate::session::{echo, there_and_back};
use crate::strangers::{CROWD, Crowd, KINDS, Kind, Protocol, Visited, despite_idle};

/// What the relay keeps of a connection and its two routes; payload is spliced.
const KIB_OF_A_STRANGER: u64 = 16;

/// Of 16 pipes that the relay keeps for the next connections, and of what it opens after it has said that it listens.
pub(crate) const KEPT_DESCRIPTORS: usize = 32 + 8;

/// The code that a connection is the first to run.
const KIB_OF_THE_PEER: u64 = 2 << 10;

pub(crate) const PROTOCOL: Protocol =
    Protocol { begin: b"GET / HTTP/1.1\r\n", huge: flood, asks: flood };

/// There are no lengths: as much as the relay takes, of whoever reads nothing.
fn flood(_: usize) -> Vec<u8> {
    vec![7; 256 << 10]
}

fn strangers(kind: Kind, relay: &Relay) -> Crowd {
    let crowd = Crowd::new(kind, PROTOCOL, |_| relay.connect_from([127, 0, 0, 2]));
    relay.await_all();
    crowd
}

#[test]
fn a_peer_is_served_among_strangers() {
    for (kind, most) in KINDS.into_iter().flat_map(|kind| [(kind, 20), (kind, CROWD)]) {
        // Whoever waited for a stranger would wait for ever.
        let limits = ["--max-per-client", &most.to_string(), "--idle", "0"];
        let relay = Relay::start(echo(), &limits);
        let visited = Visited::new(relay.pid());
        let mut crowd = strangers(kind, &relay);
        crowd.go_on_beside(|| {
            (0..2).for_each(|number| there_and_back(relay.connect(), number, 1_000_000));
        });
        visited.assert_kept_memory(kind, KIB_OF_A_STRANGER, KIB_OF_THE_PEER);
        drop(crowd);
        visited.gives_back_descriptors(None, KEPT_DESCRIPTORS);
        relay.signal(Signal::TERM);
        let ended = relay.end();
        let report = &ended.json();
        let count = |key| report[key].as_u64().expect("a number");
        assert_eq!(count("connections") + count("turned_away"), CROWD as u64 + 2, "{report}");
        // Who ends its direction has its connection ended, and leaves its place to the next.
        if kind != Kind::HalfClosed {
            assert_eq!(count("most_open"), most as u64 + 1, "{report}");
        }
        // It listens, has no module to lend with, tells of the last that were turned away, and is stopped.
        visited.assert_said_little(&ended.stderr, 4);
    }
}

#[test]
fn strangers_are_ended_when_they_move_too_little() {
    for kind in KINDS {
        let relay = Relay::start(echo(), &["--idle", "1", "--least-rate", "4k"]);
        let visited = Visited::new(relay.pid());
        let mut crowd = strangers(kind, &relay);
        // It was accepted after them, and ends too.
        let _ = relay.connect().read(&mut [0]);
        visited.gives_back_descriptors(Some(&mut crowd), KEPT_DESCRIPTORS);
    }
}

#[test]
fn threads_say_no_more_than_one() {
    let relay = Relay::start(echo(), &["--threads", "4", "--from", "127.0.0.1"]);
    let visited = Visited::new(relay.pid());
    let crowd = strangers(Kind::Silent, &relay);
    there_and_back(relay.connect(), 0, 1_000);
    visited.gives_back_descriptors(None, KEPT_DESCRIPTORS);
    drop(crowd);
    relay.signal(Signal::TERM);
    visited.assert_said_little(&relay.end().stderr, 4);
}

#[test]
fn strangers_who_take_all_descriptors_give_them_back() {
    let relay = Relay::start(echo(), &["--idle", "1"]);
    // From then on it has all that it needs itself.
    despite_idle(|| there_and_back(relay.connect(), 0, 1_000));
    let visited = Visited::new(relay.pid());
    visited.limit_descriptors(64);
    strangers(Kind::Silent, &relay).all_end();
    despite_idle(|| there_and_back(relay.connect(), 0, 1_000));
    relay.signal(Signal::TERM);
    // Three of what it lacks, each once.
    visited.assert_said_little(&relay.end().stderr, 4 + 3);
}
