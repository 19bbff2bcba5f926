//! Congestion, ours and theirs.

use std::time::Duration;

use handoff_rds::Error;
use handoff_rds::protocol::{ConnectionId, Event, Expect, Output};
use handoff_rds::wire::{CongestionMap, FLAG_CONGESTION_MAP, Header, MAP_LEN};

use crate::peer::{
    Own, SMALLER, after, capabilities, connected, introduced, map, message, outputs, say, short,
    to, written,
};

#[test]
fn a_port_that_does_not_read_is_told_and_again_when_it_has_read_half() {
    let (mut host, id) = introduced(short());
    written(&mut host, id);
    for sequence in 2..5 {
        say(&mut host, id, &message(sequence, 0, 700));
    }
    assert_eq!(written(&mut host, id)[0].map, Some(vec![4000]));
    host.receive(4000).expect("waits");
    assert!(written(&mut host, id).is_empty(), "1,400 bytes are more than half");
    host.receive(4000).expect("waits");
    assert_eq!(written(&mut host, id)[0].map, Some(vec![]));
}

#[test]
fn a_congested_port_of_a_peer_is_not_sent_to_and_others_are() {
    let (mut host, id) = introduced(short());
    let mut theirs = CongestionMap::new();
    theirs.set(5000, true);
    map(&mut host, id, &theirs);
    let refused = host.send(to(SMALLER, 10, 0)).expect_err("is congested");
    assert!(matches!(refused.error, Error::Congested(to) if to.port() == 5000));
    assert_eq!(refused.payload.len(), 10);
    let mut other = to(SMALLER, 10, 0);
    other.port = 5001;
    host.send(other).expect("is not congested");
    map(&mut host, id, &CongestionMap::new());
    let told: Vec<_> = std::iter::from_fn(|| host.event()).collect();
    assert!(told.contains(&Event::Uncongested(SMALLER.into())), "{told:?}");
    host.send(to(SMALLER, 10, 0)).expect("is not congested");
}

#[test]
fn who_sends_on_all_the_same_is_not_read_until_there_is_room() {
    let (mut host, id) = introduced(short());
    // A peer has no more than three quarters.
    for sequence in 2..5 {
        say(&mut host, id, &message(sequence, 0, 1000));
    }
    assert_eq!(host.statistics().held_bytes, 3000);
    host.header(id, &message(6, 0, 1).to_bytes());
    assert_eq!(host.expect(id), Expect::Nothing);
    outputs(&mut host);
    host.receive(4000).expect("waits");
    assert!(outputs(&mut host).contains(&Output::Resume(id)));
    assert_eq!(host.expect(id), Expect::Payload(1));
    assert_eq!((host.statistics().held_bytes, host.statistics().pauses), (2000, 1));
}

/// A map with our like's extensions, which tell that it is one.
fn extended_map(host: &mut Own, id: ConnectionId, theirs: &CongestionMap) {
    let header = Header {
        flags: FLAG_CONGESTION_MAP,
        len: MAP_LEN as u32,
        extensions: capabilities(7, 8),
        ..Header::default()
    };
    host.header(id, &header.to_bytes());
    host.map(id, theirs.as_bytes());
}

fn congested(port: u16) -> CongestionMap {
    let mut map = CongestionMap::new();
    map.set(port, true);
    map
}

fn renewed(host: &mut Own) -> Vec<ConnectionId> {
    let finish = |output| match output {
        Output::Finish(id) => Some(id),
        _ => None,
    };
    outputs(host).into_iter().filter_map(finish).collect()
}

#[test]
fn a_map_of_a_kernel_that_stands_in_the_way_is_asked_for_again_by_renewing_an_idle_lane() {
    let (mut host, first) = introduced(short());
    let second = host.accepted(SMALLER.into(), 40_001).expect("is taken");
    written(&mut host, second);
    map(&mut host, second, &congested(5000));
    host.acknowledged(second, u64::MAX);
    host.advance(Duration::from_secs(5));
    assert_eq!(renewed(&mut host), [], "nobody waits");
    host.send(to(SMALLER, 10, 0)).expect_err("is congested");
    after(&mut host, Duration::from_secs(5));
    assert_eq!(renewed(&mut host), [second], "the first has frames that are not acknowledged");
    // Nothing more is written to it, and what still comes is taken in.
    say(&mut host, second, &message(1, 0, 10));
    host.accepted_all(SMALLER.into());
    host.caught_up(first);
    host.payload_received(second, vec![0; 10]);
    assert!(host.receive(4000).is_some());
    assert!(host.next_write(second).is_none());
    // The lane comes up again, and by it the map as it is.
    host.closed(second);
    let third = host.accepted(SMALLER.into(), 40_001).expect("is taken");
    map(&mut host, third, &CongestionMap::new());
    host.send(to(SMALLER, 10, 0)).expect("is not congested");
    assert!(
        written(&mut host, first)
            .iter()
            .chain(&written(&mut host, third))
            .any(|frame| frame.message.is_some())
    );
    assert_eq!(host.statistics().renewals, 1);
}

#[test]
fn a_kernel_that_is_congested_in_truth_is_asked_less_and_less_often() {
    let (mut host, mut id) = introduced(short());
    let mut asked = Vec::new();
    for second in 0..100 {
        host.advance(Duration::from_secs(second));
        if renewed(&mut host) == [id] {
            asked.push(second);
            host.closed(id);
            id = host.accepted(SMALLER.into(), 40_000).expect("is taken");
        }
        if asked.last() == Some(&second) || second == 0 {
            map(&mut host, id, &congested(5000));
        }
        host.send(to(SMALLER, 10, 0)).expect_err("is congested");
    }
    assert_eq!(asked, [1, 3, 7, 15, 31, 63, 95]);
}

#[test]
fn a_map_of_our_like_is_believed() {
    let (mut host, id) = connected(short());
    extended_map(&mut host, id, &congested(5000));
    host.send(to(SMALLER, 10, 0)).expect_err("is congested");
    host.advance(Duration::from_secs(100));
    assert_eq!(renewed(&mut host), []);
}
