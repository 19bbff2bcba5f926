//! What two engines say to each other.

use std::net::IpAddr;

use handoff::{Engine as Sending, Outcome};
use handoff_testbed::PairEnd;

use crate::hosts::{Buffers, host, pair, receive_all, send_all};

const COUNT: usize = 300;

fn sizes() -> impl Iterator<Item = usize> {
    [0, 1, 47, 4000, 20_000, 100_000, 1 << 20].into_iter().cycle().take(COUNT)
}

/// Both send to each other at once.
fn both_ways(address: fn(&PairEnd) -> IpAddr, sending: Sending) -> [Outcome; 2] {
    let pair = pair();
    let talk = |from: &PairEnd, to: &PairEnd| {
        let to = (address(to), 4000).into();
        host(from, address(from), sending, move |own| async move {
            assert_eq!(own.engine.not_listening(), None);
            let socket = own.engine.bind(4000).expect("is free");
            let mut buffers = Buffers::new(8, 1 << 20);
            let sent = send_all(&socket, to, &mut buffers, sizes());
            let (tally, ()) = futures_util::future::join(sent, receive_all(&socket, sizes())).await;
            let counted = own.engine.statistics();
            assert_eq!((counted.received, counted.acknowledged), (COUNT as u64, COUNT as u64));
            assert_eq!((counted.violations, counted.restarts), (0, 0));
            assert_eq!((counted.queued_bytes, counted.held_bytes), (0, 0));
            tally.outcome()
        })
    };
    let [left, right] = [talk(&pair.left, &pair.right), talk(&pair.right, &pair.left)];
    [left, right].map(|thread| thread.join().expect("talks"))
}

#[test]
fn by_the_engine_of_the_librarys_choice() {
    both_ways(|end| end.v4().into(), Sending::Auto);
}

#[test]
fn over_ipv6_with_copies() {
    assert_eq!(both_ways(|end| end.v6().into(), Sending::Copy), [Outcome::Copied; 2]);
}
