//! Sequence numbers, pings, and what is sent again.

use handoff_rds::End;
use handoff_rds::protocol::{Event, Expect, Limits, Output};
use handoff_rds::wire::{CongestionMap, Extension, FLAG_RETRANSMITTED, Header};

use crate::peer::{
    SMALLER, capabilities, connected, ended, introduced, map, message, outputs, pong, release, say,
    to, written,
};

#[test]
fn only_what_is_sent_again_and_has_been_seen_is_dropped() {
    let (mut host, id) = introduced(Limits::default());
    let mut received = |sequence, flags| {
        say(&mut host, id, &message(sequence, flags, 5));
        host.receive(4000).is_some()
    };
    assert!(received(10, 0), "gaps are no loss");
    assert!(!received(10, FLAG_RETRANSMITTED));
    assert!(received(11, FLAG_RETRANSMITTED));
    assert!(received(4, 0), "a new number may be smaller, and counts from then on");
    assert!(received(5, FLAG_RETRANSMITTED));
    assert_eq!((host.statistics().duplicates, host.statistics().missed), (1, 8));
}

#[test]
fn a_message_cut_off_in_its_midst_is_not_seen() {
    let (mut host, id) = introduced(Limits { lanes: 1, ..Limits::default() });
    host.header(id, &message(2, 0, 5).to_bytes());
    assert_eq!(host.statistics().held_bytes, 0);
    host.payload_arrived(id, 3);
    assert_eq!(host.statistics().held_bytes, 3);
    host.closed(id);
    assert_eq!(host.statistics().held_bytes, 0);
    let id = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    say(&mut host, id, &message(2, FLAG_RETRANSMITTED, 5));
    assert_eq!(host.receive(4000).expect("was not seen before").payload.len(), 5);
}

#[test]
fn a_ping_is_answered_by_a_message_of_its_own_number() {
    let (mut host, id) = introduced(Limits::default());
    outputs(&mut host);
    let ping = |sequence, source| Header { sequence, source, ..Header::default() };
    say(&mut host, id, &ping(5, 4321));
    say(&mut host, id, &ping(6, 1));
    say(&mut host, id, &ping(7, 0));
    assert_eq!(outputs(&mut host), [Output::Ready(id)], "once");
    let pongs = written(&mut host, id);
    let ports: Vec<_> = pongs
        .iter()
        .map(|it| (it.header.sequence, it.header.source, it.header.destination))
        .collect();
    assert_eq!(ports, [(2, 0, 4321), (3, 0, 1)]);
    assert_eq!(pongs[0].header.extensions.iter().count(), 0);
    let told: Vec<_> = pongs[1].header.extensions.iter().map(Result::unwrap).collect();
    assert!(told.contains(&Extension::Paths(8)), "{told:?}");

    host.ping(SMALLER.into(), 4000).expect("is accepted");
    let ping = written(&mut host, id).remove(0).header;
    assert_eq!((ping.sequence, ping.source, ping.destination), (4, 4000, 0));
    say(&mut host, id, &Header { sequence: 8, destination: 4000, ..Header::default() });
    let told: Vec<_> = std::iter::from_fn(|| host.event()).collect();
    assert!(told.contains(&Event::Pong { peer: SMALLER.into(), port: 4000 }), "{told:?}");
}

#[test]
fn to_a_kernel_pings_go_behind_what_is_sent_again() {
    let (mut host, id) = introduced(Limits { lanes: 1, ..Limits::default() });
    for cookie in [1, 2] {
        host.send(to(SMALLER, 10, cookie)).expect("is accepted");
    }
    let sent = written(&mut host, id);
    host.closed(id);
    let id = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    host.send(to(SMALLER, 10, 3)).expect("is accepted");
    let again = written(&mut host, id);
    let numbers: Vec<_> = again.iter().map(|it| (it.header.sequence, it.header.flags)).collect();
    let expected = [(0, 1), (2, FLAG_RETRANSMITTED), (3, FLAG_RETRANSMITTED), (4, 0), (5, 0)];
    assert_eq!(numbers, expected, "map, both, probe, the new one");
    assert_eq!((again[3].header.source, again[4].header.len), (1, 10));
    host.acknowledged(id, again[4].end);
    assert_eq!(ended(&mut host), [], "each is lent once or twice");
    release(&mut host, &sent);
    assert_eq!(ended(&mut host), []);
    release(&mut host, &again);
    assert_eq!(ended(&mut host), [1, 2, 3].map(|cookie| (cookie, End::Acknowledged)));
}

#[test]
fn what_is_cancelled_comes_back_and_is_not_sent_again() {
    let (mut host, id) = introduced(Limits { lanes: 1, ..Limits::default() });
    host.send(to(SMALLER, 10, 1)).expect("is accepted");
    let sent = written(&mut host, id);
    host.send(to(SMALLER, 10, 2)).expect("is accepted");
    host.cancel(4000, Some([10, 9, 9, 9].into()));
    assert_eq!(ended(&mut host), []);
    assert!(host.unbind(4000).is_err(), "payloads are under way");
    host.cancel(4000, None);
    assert_eq!(ended(&mut host), [(2, End::Cancelled)]);
    release(&mut host, &sent);
    assert_eq!(ended(&mut host), [(1, End::Cancelled)]);
    host.closed(id);
    let id = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    assert!(written(&mut host, id).iter().all(|frame| frame.message.is_none()));
    assert_eq!(host.statistics().queued_bytes, 0);
    assert!(host.unbind(4000).is_ok());
}

#[test]
fn messages_of_another_lane_wait_until_lane_0_has_caught_up() {
    let (mut host, first) = introduced(Limits::default());
    let other = host.accepted(SMALLER.into(), 40_001).expect("is taken");
    map(&mut host, other, &CongestionMap::new());
    outputs(&mut host);
    host.header(other, &message(1, 0, 5).to_bytes());
    let accept = vec![Output::Accept(SMALLER.into())];
    assert_eq!((host.expect(other), outputs(&mut host)), (Expect::Nothing, accept));
    host.accepted_all(SMALLER.into());
    let catch_up = vec![Output::CatchUp(first)];
    assert_eq!((host.expect(other), outputs(&mut host)), (Expect::Nothing, catch_up));
    say(&mut host, first, &message(2, 0, 3));
    assert_eq!(host.expect(other), Expect::Nothing, "more may lie there");
    host.caught_up(other);
    assert_eq!(host.expect(other), Expect::Nothing, "that one is not lane 0");
    host.caught_up(first);
    assert_eq!(host.expect(other), Expect::Payload(5));
    host.payload_received(other, vec![0; 5]);
    // From now on the lanes are independent.
    let third = host.accepted(SMALLER.into(), 40_002).expect("is taken");
    map(&mut host, third, &CongestionMap::new());
    say(&mut host, third, &message(1, 0, 7));
    let lengths: Vec<_> = std::iter::from_fn(|| host.receive(4000)).map(|one| one.len).collect();
    assert_eq!(lengths, [3, 5, 7]);
}

#[test]
fn they_also_wait_for_what_takes_the_place_of_its_connection() {
    let (mut host, first) = introduced(Limits::default());
    let other = host.accepted(SMALLER.into(), 40_001).expect("is taken");
    map(&mut host, other, &CongestionMap::new());
    host.header(other, &message(1, 0, 5).to_bytes());
    // It had waited to be accepted.
    let second = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    host.accepted_all(SMALLER.into());
    assert!(outputs(&mut host).contains(&Output::CatchUp(first)));
    host.caught_up(first);
    assert_eq!(host.expect(other), Expect::Nothing, "the next has not been read");
    host.closed(first);
    assert!(outputs(&mut host).contains(&Output::CatchUp(second)));
    map(&mut host, second, &CongestionMap::new());
    assert_eq!(host.expect(other), Expect::Nothing, "more may lie there");
    host.closed(second);
    assert_eq!(host.expect(other), Expect::Payload(5), "there is no lane 0 to wait for");
}

#[test]
fn what_waits_of_a_former_life_goes_on_when_the_next_has_begun_and_settles_nothing_for_it() {
    let (mut host, first) = introduced(Limits::default());
    let other = host.accepted(SMALLER.into(), 40_001).expect("is taken");
    map(&mut host, other, &CongestionMap::new());
    host.header(other, &message(9, 0, 5).to_bytes());
    let second = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    host.accepted_all(SMALLER.into());
    host.closed(first);
    assert!(outputs(&mut host).contains(&Output::CatchUp(second)));
    map(&mut host, second, &CongestionMap::new());
    let extensions = capabilities(8, 8);
    say(&mut host, second, &Header { sequence: 1, source: 1, extensions, ..Header::default() });
    assert_eq!(host.statistics().restarts, 1);
    host.caught_up(second);
    assert_eq!(host.expect(other), Expect::Payload(5));
    host.payload_received(other, vec![0; 5]);
    // The new incarnation's lane has to wait for its own lane 0.
    let third = host.accepted(SMALLER.into(), 40_001).expect("is taken");
    host.closed(other);
    map(&mut host, third, &CongestionMap::new());
    host.header(third, &message(1, 0, 7).to_bytes());
    assert_eq!(host.expect(third), Expect::Nothing);
    say(&mut host, second, &message(2, 0, 3));
    host.accepted_all(SMALLER.into());
    host.caught_up(second);
    host.payload_received(third, vec![0; 7]);
    let lengths: Vec<_> = std::iter::from_fn(|| host.receive(4000)).map(|one| one.len).collect();
    assert_eq!(lengths, [5, 3, 7]);
}

#[test]
fn a_later_connection_waits_until_the_former_is_drained() {
    let (mut host, first) = connected(Limits { lanes: 1, ..Limits::default() });
    map(&mut host, first, &CongestionMap::new());
    say(&mut host, first, &pong(1, 1));
    written(&mut host, first);
    outputs(&mut host);
    let second = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    assert_eq!(outputs(&mut host), [Output::Drain(first)]);
    assert_eq!(host.expect(second), handoff_rds::protocol::Expect::Nothing);
    assert!(host.next_write(second).is_none());
    say(&mut host, first, &message(2, 0, 5));
    host.closed(first);
    assert_eq!(outputs(&mut host), [Output::Resume(second), Output::Ready(second)]);
    say(&mut host, second, &message(2, FLAG_RETRANSMITTED, 5));
    assert!(host.receive(4000).is_some());
    assert!(host.receive(4000).is_none(), "it was there already");
}
