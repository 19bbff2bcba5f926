//! What a host does not take on.

use std::time::Duration;

use handoff_rds::Error;
use handoff_rds::protocol::{Limits, Reason};

use crate::peer::{LARGER, SMALLER, after, host, introduced, short, to, written};

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
