//! Roles, the first frames, and peers that do not answer.

use std::time::Duration;

use handoff_rds::End;
use handoff_rds::protocol::{ConnectionId, Event, Expect, Limits, Output, Reason};
use handoff_rds::wire::{
    CongestionMap, Extension, FLAG_CONGESTION_MAP, FLAG_RETRANSMITTED, HEADER_LEN, Header, MAP_LEN,
};

use crate::peer::{
    GENERATION, LARGER, Own, SMALLER, after, capabilities, connected, ended, host, map, message,
    outputs, pong, reason, release, say, to, written,
};

#[test]
fn the_smaller_address_connects_and_the_larger_asks_it_to() {
    let mut client = host(SMALLER, Limits::default());
    assert_eq!(client.accepted(LARGER.into(), 40_000), Err(Reason::WakeUp));
    let asked = outputs(&mut client);
    let [Output::Connect { connection, peer, lane: 0 }] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(peer, std::net::IpAddr::from(LARGER));
    client.connected(connection);
    assert_eq!(outputs(&mut client), [Output::Resume(connection), Output::Ready(connection)]);

    let mut server = host(LARGER, Limits::default());
    server.send(to(SMALLER, 10, 0)).expect("is accepted");
    let asked = outputs(&mut server);
    let [Output::Connect { connection, lane: 0, .. }] = asked[..] else { panic!("{asked:?}") };
    server.connected(connection);
    assert_eq!(outputs(&mut server), [], "the connection only asks for another");
    let id = server.accepted(SMALLER.into(), 40_000).expect("is the other");
    let asked = Output::Close { connection, peer: SMALLER.into(), reason: Reason::Asked };
    assert_eq!(outputs(&mut server), [asked, Output::Resume(id), Output::Ready(id)]);
    assert_eq!(server.event(), Some(Event::Up(SMALLER.into())));
}

#[test]
fn a_kernel_is_probed_before_it_is_sent_to() {
    let (mut host, id) = connected(Limits::default());
    host.send(to(SMALLER, 10, 77)).expect("is accepted");
    let first = written(&mut host, id);
    let told: Vec<_> = first[0].header.extensions.iter().map(Result::unwrap).collect();
    assert_eq!(told[..2], [Extension::Paths(8), Extension::Generation(GENERATION)]);
    assert_eq!((first[0].header.flags, first.len()), (FLAG_CONGESTION_MAP, 1));
    assert_eq!(first[0].map, Some(vec![]));
    map(&mut host, id, &CongestionMap::new());
    let probe = written(&mut host, id);
    assert_eq!(probe.len(), 1);
    let header = probe[0].header;
    assert_eq!((header.sequence, header.source, header.destination), (1, 1, 0));
    assert_eq!(header.extensions, first[0].header.extensions);
    say(&mut host, id, &pong(1, 1));
    let sent = written(&mut host, id);
    let header = sent[0].header;
    assert_eq!((header.sequence, header.source, header.destination), (2, 4000, 5000));
    assert_eq!((header.len, header.flags), (10, 0));
    let all = first[0].end + probe[0].end + sent[0].end;
    host.acknowledged(id, all - 1);
    assert_eq!(ended(&mut host), []);
    host.acknowledged(id, all);
    assert_eq!(ended(&mut host), [], "it is still lent");
    release(&mut host, &sent);
    assert_eq!(ended(&mut host), [(77, End::Acknowledged)]);
}

#[test]
fn the_restart_of_one_of_ours_is_known_before_anything_goes_to_it_again() {
    let (mut host, id) = connected(Limits { lanes: 1, ..Limits::default() });
    let greeting = |generation| Header {
        flags: FLAG_CONGESTION_MAP,
        len: MAP_LEN as u32,
        extensions: capabilities(generation, 8),
        ..Header::default()
    };
    let greet = |host: &mut crate::peer::Own, id, generation| {
        host.header(id, &greeting(generation).to_bytes());
        host.map(id, &[0; MAP_LEN]);
    };
    greet(&mut host, id, 7);
    host.send(to(SMALLER, 10, 1)).expect("is accepted");
    let sent = written(&mut host, id);
    assert_eq!(sent[1].header.sequence, 1, "no probe is needed");
    host.closed(id);
    release(&mut host, &sent);
    host.send(to(SMALLER, 10, 2)).expect("is accepted");

    let same = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    assert_eq!(written(&mut host, same).len(), 1, "the map only");
    greet(&mut host, same, 7);
    let again = written(&mut host, same);
    let numbers: Vec<_> = again.iter().map(|it| (it.header.sequence, it.header.flags)).collect();
    assert_eq!(numbers, [(1, FLAG_RETRANSMITTED), (2, 0)]);
    host.closed(same);
    release(&mut host, &again);
    host.send(to(SMALLER, 10, 3)).expect("is accepted");

    let other = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    written(&mut host, other);
    greet(&mut host, other, 8);
    let gone = [(1, End::PeerRestarted), (2, End::PeerRestarted)];
    assert_eq!(ended(&mut host), gone);
    let fresh = written(&mut host, other);
    assert_eq!((fresh.len(), fresh[0].header.sequence, fresh[0].header.flags), (1, 1, 0));
    let told: Vec<_> = std::iter::from_fn(|| host.event()).collect();
    let restarted = Event::Restarted { peer: SMALLER.into(), generation: 8, lost: 2 };
    assert!(told.contains(&restarted), "{told:?}");
}

#[test]
fn silence_ends_a_connection_and_an_unanswered_probe_means_one_lane() {
    let second = Duration::from_secs(1);
    let (mut host, _) = connected(Limits { peer_timeout: second, ..Limits::default() });
    after(&mut host, second);
    assert_eq!(reason(&mut host), Some(Reason::Silent));

    let id = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    host.send(to(SMALLER, 10, 0)).expect("is accepted");
    map(&mut host, id, &CongestionMap::new());
    assert_eq!(written(&mut host, id).len(), 2, "map and probe");
    after(&mut host, 2 * second);
    assert_eq!(written(&mut host, id).len(), 1, "the message");
    assert_eq!(reason(&mut host), None);
}

/// Accepts a connection on each of these lanes.
fn accepted<const LANES: usize>(host: &mut Own, lanes: [u16; LANES]) -> [ConnectionId; LANES] {
    lanes.map(|lane| host.accepted(SMALLER.into(), 40_000 + lane).expect("is taken"))
}

#[test]
fn a_peer_that_says_nothing_on_any_lane_keeps_none() {
    let second = Duration::from_secs(1);
    let mut host = host(LARGER, Limits { peer_timeout: second, ..Limits::default() });
    let [third, seventh] = accepted(&mut host, [3, 7]);
    assert_eq!(host.deadline(), Some(second));
    after(&mut host, second);
    let closed = outputs(&mut host).into_iter().filter_map(|output| match output {
        Output::Close { connection, reason, .. } => Some((connection, reason)),
        _ => None,
    });
    assert!(closed.eq([(third, Reason::Silent), (seventh, Reason::Silent)]));
}

#[test]
fn a_peer_that_speaks_may_have_lanes_by_which_it_has_nothing_to_say() {
    let second = Duration::from_secs(1);
    let mut host = host(LARGER, Limits { peer_timeout: second, ..Limits::default() });
    let [first, third] = accepted(&mut host, [0, 3]);
    map(&mut host, first, &CongestionMap::new());
    assert_eq!(host.deadline(), None);
    // Also when those by which it spoke have ended.
    host.closed(first);
    host.advance(10 * second);
    assert_eq!(reason(&mut host), None);
    assert_eq!(written(&mut host, third).len(), 1, "the map");
}

#[test]
fn what_nobody_has_read_is_no_silence() {
    let second = Duration::from_secs(1);
    let mut host = host(LARGER, Limits { peer_timeout: second, ..Limits::default() });
    accepted(&mut host, [0]);
    host.advance_with(second, |_| HEADER_LEN);
    assert_eq!((reason(&mut host), host.deadline()), (None, Some(2 * second)));
    // A part of a header only.
    host.advance_with(2 * second, |_| HEADER_LEN - 1);
    assert_eq!(reason(&mut host), Some(Reason::Silent));

    // One that is not acted on until all connections that wait are accepted.
    let [third] = accepted(&mut host, [3]);
    say(&mut host, third, &message(1, 0, 10));
    assert_eq!((host.expect(third), host.deadline()), (Expect::Nothing, None));
    host.advance(20 * second);
    assert_eq!(reason(&mut host), None);
}

#[test]
fn a_probe_is_unanswered_only_when_everything_is_read() {
    let second = Duration::from_secs(1);
    let mut host = host(LARGER, Limits { peer_timeout: second, ..Limits::default() });
    let [first] = accepted(&mut host, [0]);
    map(&mut host, first, &CongestionMap::new());
    host.closed(first);
    let [again] = accepted(&mut host, [0]);
    host.send(to(SMALLER, 10, 0)).expect("is accepted");
    assert_eq!(written(&mut host, again).len(), 2, "map and probe");
    outputs(&mut host);
    host.advance_with(second, |_| HEADER_LEN);
    assert_eq!((reason(&mut host), host.deadline()), (None, Some(2 * second)));
    map(&mut host, again, &CongestionMap::new());
    host.advance_with(2 * second, |_| HEADER_LEN);
    assert_eq!((written(&mut host, again).len(), host.deadline()), (0, Some(3 * second)));
    host.advance(3 * second);
    assert_eq!(written(&mut host, again).len(), 1, "the message, by one lane");
}

#[test]
fn a_pong_settles_the_lanes_and_the_client_opens_them() {
    let mut host = host(SMALLER, Limits { lanes: 4, ..Limits::default() });
    host.send(to(LARGER, 10, 0)).expect("is accepted");
    let Some(Output::Connect { connection, .. }) = host.poll() else { panic!("asks for lane 0") };
    host.connected(connection);
    map(&mut host, connection, &CongestionMap::new());
    written(&mut host, connection);
    outputs(&mut host);
    say(&mut host, connection, &pong(1, 2));
    let asked = outputs(&mut host).into_iter().filter_map(|output| match output {
        Output::Connect { lane, .. } => Some(lane),
        _ => None,
    });
    assert!(asked.eq([1]), "two lanes are what both can");
}
