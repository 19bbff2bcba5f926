//! Congestion, ours and theirs.

use handoff_rds::Error;
use handoff_rds::protocol::{Event, Expect, Output};
use handoff_rds::wire::CongestionMap;

use crate::peer::{SMALLER, introduced, map, message, outputs, say, short, to, written};

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
    for sequence in 2..6 {
        say(&mut host, id, &message(sequence, 0, 1000));
    }
    assert_eq!(host.statistics().held_bytes, 4000);
    host.header(id, &message(6, 0, 1).to_bytes());
    assert_eq!(host.expect(id), Expect::Nothing);
    outputs(&mut host);
    host.receive(4000).expect("waits");
    assert!(outputs(&mut host).contains(&Output::Resume(id)));
    assert_eq!(host.expect(id), Expect::Payload(1));
    assert_eq!((host.statistics().held_bytes, host.statistics().pauses), (3001, 1));
}
