//! What a host does not take on.

use std::time::Duration;

use handoff_rds::Error;
use handoff_rds::protocol::{ConnectionId, Expect, Limits, Reason};
use handoff_rds::wire::Header;

use crate::peer::{LARGER, SMALLER, after, host, introduced, message, reason, short, to, written};

#[test]
fn messages_that_are_too_long_or_too_many_come_back() {
    let (mut host, id) = introduced(short());
    let refused = host.send(to(SMALLER, 1001, 0)).expect_err("is too long");
    assert!(matches!(refused.error, Error::MessageTooLong { len: 1001, limit: 1000, .. }));
    assert_eq!(refused.payload.len(), 1001);
    for cookie in 0..3 {
        host.send(to(SMALLER, 1000, cookie)).expect("is within the limit");
    }
    let refused = host.send(to(SMALLER, 1, 0)).expect_err("is too much");
    assert!(matches!(refused.error, Error::Full { .. }) && refused.error.is_temporary());
    host.send(to([10, 0, 0, 3], 1000, 0)).expect("is for another");
    let all = written(&mut host, id).last().expect("were written").end;
    host.acknowledged(id, u64::MAX);
    assert!(all > 3000 && host.statistics().acknowledged == 3);
    let refused = host.send(to(SMALLER, 1, 0)).expect_err("the payloads are still lent");
    assert!(matches!(refused.error, Error::Full { .. }));
}

#[test]
fn one_peer_too_many_takes_the_place_of_one_long_idle_or_none() {
    let forget = Duration::from_secs(30);
    let mut host = host(LARGER, Limits { forget, ..short() });
    let other = |last| [10, 0, 0, last];
    host.accepted(other(1).into(), 40_000).expect("is the first");
    let idle = host.accepted([10, 0, 0, 0].into(), 40_000).expect("is the second");
    let refused = host.send(to(other(9), 1, 0)).expect_err("is the third");
    assert!(matches!(refused.error, Error::TooManyPeers { limit: 2, .. }), "{}", refused.error);
    assert_eq!(host.accepted([10, 0, 0, 1].into(), 40_001).map(drop), Ok(()), "is known");
    host.closed(idle);
    let reason = host.accepted([9, 0, 0, 1].into(), 40_000);
    assert_eq!(reason, Err(Reason::TooManyPeers(2)), "it may come back");
    after(&mut host, forget);
    host.accepted([9, 0, 0, 1].into(), 40_000).expect("takes the idle one's place");
}

#[test]
fn ports_and_addresses_that_cannot_be_are_refused() {
    let mut host = host(LARGER, short());
    assert!(matches!(host.bind(4000), Err(Error::PortInUse(4000))));
    assert!(matches!(host.bind(0), Err(Error::Invalid(_))));
    assert!(host.send(to(LARGER, 1, 0)).is_err(), "is our own");
    let mut unbound = to(SMALLER, 1, 0);
    unbound.from = 4001;
    assert!(matches!(host.send(unbound).expect_err("no socket").error, Error::NotBound(4001)));
    assert_eq!(host.accepted(LARGER.into(), 40_000), Err(Reason::OwnAddress));
    let mut few = crate::peer::host(LARGER, Limits { lanes: 2, ..short() });
    assert_eq!(few.accepted(SMALLER.into(), 40_002), Err(Reason::NoSuchLane(2)));
}

/// Says of a peer that it begins a message, and hands in so much of it.
fn begin(host: &mut crate::peer::Own, id: ConnectionId, len: u32, arrived: usize) {
    host.header(id, &message(1, 0, len).to_bytes());
    assert_eq!(host.expect(id), Expect::Payload(len as usize));
    host.payload_arrived(id, arrived);
}

#[test]
fn messages_that_were_only_announced_keep_no_room_from_others() {
    let mut host = host(LARGER, Limits { peers: 100, ..short() });
    let accept = |host: &mut crate::peer::Own, last| {
        host.accepted([9, 0, 0, last].into(), 40_000).expect("is taken")
    };
    for last in 1..80 {
        let id = accept(&mut host, last);
        begin(&mut host, id, 1000, usize::from(last < 3));
    }
    assert_eq!(host.statistics().held_bytes, 2, "what arrived is charged");
    let good = accept(&mut host, 99);
    for sequence in 1..20 {
        crate::peer::say(&mut host, good, &message(sequence, 0, 1000));
        assert_eq!(host.receive(4000).expect("has come").len, 1000);
    }
}

#[test]
fn what_arrives_is_bounded_and_the_oldest_goes_on() {
    let mut host = host(LARGER, Limits { peers: 100, ..short() });
    let ids: Vec<_> = (1..20)
        .map(|last| {
            let id = host.accepted([9, 0, 0, last].into(), 40_000).expect("is taken");
            begin(&mut host, id, 1000, 0);
            id
        })
        .collect();
    for id in &ids {
        if host.expect(*id) == Expect::Payload(1000) {
            host.payload_arrived(*id, 900);
        }
    }
    assert!(host.statistics().held_bytes <= 5000, "{}", host.statistics().held_bytes);
    assert_eq!(host.expect(ids[1]), Expect::Nothing, "there is no room");
    // The oldest is let on, and then the next.
    for id in &ids {
        assert_eq!(host.expect(*id), Expect::Payload(1000));
        host.payload_received(*id, vec![0; 1000]);
        host.receive(4000).expect("has come");
    }
    assert_eq!(host.statistics().held_bytes, 0);
}

#[test]
fn a_peer_has_a_share_and_not_all() {
    let mut host = host(LARGER, Limits { peers: 100, ..short() });
    let greedy = host.accepted([9, 0, 0, 1].into(), 40_000).expect("is taken");
    let mut sequence = 0;
    while host.expect(greedy) == Expect::Header {
        sequence += 1;
        crate::peer::say(&mut host, greedy, &message(sequence, 0, 500));
    }
    let good = host.accepted([9, 0, 0, 2].into(), 40_000).expect("is taken");
    crate::peer::say(&mut host, good, &message(1, 0, 1000));
    assert_eq!(host.expect(good), Expect::Header, "there is room for a peer that holds nothing");
    while host.receive(4000).is_some() {}
    assert_eq!(host.expect(greedy), Expect::Payload(500));
}

#[test]
fn a_message_that_does_not_go_on_ends_its_connection() {
    let peer_timeout = short().peer_timeout;
    let (mut host, id) = introduced(short());
    begin(&mut host, id, 1000, 10);
    host.advance(peer_timeout / 2);
    assert_eq!(reason(&mut host), None);
    assert!(host.deadline().is_some_and(|at| at <= peer_timeout));
    host.advance(peer_timeout);
    assert_eq!(reason(&mut host), Some(Reason::Stalled { arrived: 10, len: 1000 }));
    assert_eq!((host.statistics().held_bytes, host.statistics().violations), (0, 1));

    // One that does go on takes its time.
    let (mut host, id) = introduced(Limits { message: 1 << 20, held: 4 << 20, ..short() });
    begin(&mut host, id, 1 << 20, 0);
    for part in 1..10 {
        host.advance((peer_timeout - Duration::from_millis(1)) * part);
        host.payload_arrived(id, part as usize * 8192);
        assert_eq!(reason(&mut host), None);
    }

    // So does one that is not read meanwhile, but not with the same bytes again.
    let (mut host, id) = introduced(Limits { message: 1 << 20, held: 4 << 20, ..short() });
    begin(&mut host, id, 1 << 20, 1);
    host.advance_with(peer_timeout, |_| 4094);
    assert!(matches!(reason(&mut host), Some(Reason::Stalled { arrived: 1, .. })));
    let (mut host, id) = introduced(Limits { message: 1 << 20, held: 4 << 20, ..short() });
    begin(&mut host, id, 1 << 20, 1);
    host.advance_with(peer_timeout, |asked| if asked == id { 4095 } else { 0 });
    assert_eq!((reason(&mut host), host.statistics().held_bytes), (None, 1));
    host.payload_arrived(id, 4096);
    host.advance_with(peer_timeout * 2 - Duration::from_millis(1), |_| 0);
    assert_eq!(reason(&mut host), None);
    host.advance_with(peer_timeout * 2, |_| 4095);
    assert!(matches!(reason(&mut host), Some(Reason::Stalled { arrived: 4096, .. })));
}

/// Peers that wait do not make each message of others dearer.
#[test]
fn those_that_wait_are_not_judged_again_for_each_message() {
    const WAITING: u8 = 50;
    let mut host = host(LARGER, Limits { peers: 200, ..short() });
    host.bind(4001).expect("is free");
    let accept = |host: &mut crate::peer::Own, net, last| {
        host.accepted([9, 0, net, last].into(), 40_000).expect("is taken")
    };
    let elsewhere = |sequence, len| Header { destination: 4001, ..message(sequence, 0, len) };
    // Most of the room is taken.
    for last in 1..8 {
        let id = accept(&mut host, 0, last);
        crate::peer::say(&mut host, id, &elsewhere(1, 500));
    }
    let waiting: Vec<_> = (0..WAITING)
        .map(|last| {
            // For room.
            let id = accept(&mut host, 1, last);
            crate::peer::say(&mut host, id, &elsewhere(1, 1000));
            // For answers to pings to be written.
            let other = accept(&mut host, 2, last);
            while host.expect(other) == Expect::Header {
                host.header(other, &Header { source: 9, ..Header::default() }.to_bytes());
            }
            id
        })
        .collect();
    let good = accept(&mut host, 3, 1);
    let before = host.statistics().judged;
    for sequence in 1..=100 {
        crate::peer::say(&mut host, good, &message(sequence, 0, 10));
        assert_eq!(host.receive(4000).expect("has come").len, 10);
    }
    assert_eq!(host.statistics().judged - before, 100);
    assert!(waiting.iter().all(|id| host.expect(*id) == Expect::Nothing));
    // They go on when there is room.
    host.receive(4001).expect("has come");
    assert!(waiting.iter().all(|id| host.expect(*id) == Expect::Payload(1000)));
}

#[test]
fn who_waits_for_room_at_a_port_that_goes_is_skipped() {
    let mut host = host(LARGER, Limits { peers: 200, ..short() });
    host.bind(4001).expect("is free");
    let ids = [1, 2, 3, 4, 5].map(|last| {
        let id = host.accepted([9, 0, 0, last].into(), 40_000).expect("is taken");
        crate::peer::say(&mut host, id, &Header { destination: 4001, ..message(1, 0, 900) });
        id
    });
    assert_eq!(host.expect(ids[4]), Expect::Nothing, "there is no room");
    assert_eq!(host.unbind(4001).expect("nothing is under way").len(), 4);
    assert_eq!(host.expect(ids[4]), Expect::Skip(900));
}
