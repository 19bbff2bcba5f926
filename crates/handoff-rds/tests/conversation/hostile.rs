//! Peers that break the protocol: closed with a reason, never a panic, never unbounded memory.

use std::net::IpAddr;
use std::time::Duration;

use handoff_rds::protocol::{ConnectionId, Expect, Output, Reason};
use handoff_rds::wire::{
    CongestionMap, Extensions, FLAG_CONGESTION_MAP, HEADER_LEN, Header, MAP_LEN, Truncated,
};
use proptest::prelude::*;

use crate::peer::{
    LARGER, Own, SMALLER, connected, host, introduced, map, message, outputs, reason, short, to,
    written,
};

fn closed_for(header: &Header) -> Option<Reason> {
    let (mut host, id) = connected(short());
    host.header(id, &header.to_bytes());
    let reason = reason(&mut host);
    if reason.is_some() {
        assert_eq!(host.expect(id), Expect::Nothing);
        assert!(host.next_write(id).is_none());
        assert_eq!(host.statistics().violations, 1);
    }
    reason
}

#[test]
fn each_violation_has_its_reason() {
    let oversize = Reason::Oversize { len: u32::MAX, limit: 1000 };
    assert_eq!(closed_for(&message(1, 0, u32::MAX)), Some(oversize));
    assert_eq!(closed_for(&message(1, 0, 1000)), None);
    let map = Header { flags: FLAG_CONGESTION_MAP, len: 8193, ..Header::default() };
    assert_eq!(closed_for(&map), Some(Reason::MapLength(8193)));
    let ping = Header { source: 9, len: 1, ..Header::default() };
    assert_eq!(closed_for(&ping), Some(Reason::PingLength(1)));
    let mut extensions = [0; 16];
    extensions[..3].copy_from_slice(&[5, 0, 8]);
    extensions[3..8].copy_from_slice(&[6, 0, 0, 0, 1]);
    extensions[8..13].copy_from_slice(&[1, 0, 0, 0, 1]);
    extensions[13] = 3;
    let extensions = Extensions::from_bytes(extensions);
    let probe = Header { source: 1, extensions, ..Header::default() };
    assert_eq!(closed_for(&probe), Some(Reason::Extension(Truncated { kind: 3 })));
    assert_eq!(closed_for(&Header { source: 2, ..probe }), None, "only probes tell anything");
}

#[test]
fn pings_without_end_are_not_read_without_end() {
    let (mut host, id) = connected(short());
    let mut read = 0;
    while host.expect(id) == Expect::Header {
        host.header(id, &Header { sequence: read, source: 9, ..Header::default() }.to_bytes());
        read += 1;
        assert!(read < 1000);
    }
    outputs(&mut host);
    let mut written = 0;
    while host.next_write(id).is_some() {
        written += 1;
    }
    assert!(written > 60 && host.expect(id) == Expect::Header, "{written} pongs");
}

/// Pings of which so many are not answered that the connection is not read.
fn ping_without_end(host: &mut Own, id: ConnectionId) {
    while host.expect(id) == Expect::Header {
        host.header(id, &Header { source: 9, ..Header::default() }.to_bytes());
    }
}

#[test]
fn pings_that_are_not_answered_keep_no_connection_from_its_end() {
    let (mut host, first) = connected(short());
    ping_without_end(&mut host, first);
    host.accepted(SMALLER.into(), 40_000).expect("takes its place");
    assert_eq!(host.expect(first), Expect::Header, "nothing more is written to it");

    // A lane that is renewed.
    let (mut host, first) = introduced(short());
    written(&mut host, first);
    let mut theirs = CongestionMap::new();
    theirs.set(5000, true);
    map(&mut host, first, &theirs);
    ping_without_end(&mut host, first);
    host.send(to(SMALLER, 10, 0)).expect_err("is congested");
    host.advance(Duration::from_secs(5));
    assert!(outputs(&mut host).contains(&Output::Finish(first)));
    assert_eq!(host.expect(first), Expect::Header, "nothing more is written to it");
}

#[test]
fn connections_without_end_are_not_taken() {
    let (mut host, _) = connected(short());
    let taken = (0..100).filter(|_| host.accepted(SMALLER.into(), 40_000).is_ok()).count();
    assert!(taken < 10, "{taken} wait");
}

/// Headers that lead somewhere more often than arbitrary ones.
fn header() -> impl Strategy<Value = [u8; HEADER_LEN]> {
    let port = prop_oneof![Just(0), Just(1), Just(4000), any::<u16>()];
    let len = prop_oneof![Just(0), 0..1100_u32, Just(MAP_LEN as u32), any::<u32>()];
    let flags = prop_oneof![Just(0), Just(1), Just(4), any::<u8>()];
    let extensions = prop_oneof![
        Just([5, 0, 8, 6, 0, 0, 0, 9, 8, 0, 0, 0, 0, 0, 0, 0]),
        Just([6, 0, 0, 0, 8, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        any::<[u8; 16]>(),
    ];
    let sequence = prop_oneof![0..10_u64, any::<u64>()];
    (sequence, len, port.clone(), port, flags, extensions).prop_map(
        |(sequence, len, source, destination, flags, extensions)| {
            let extensions = Extensions::from_bytes(extensions);
            let header = Header {
                sequence,
                len,
                source,
                destination,
                flags,
                extensions,
                ..Header::default()
            };
            header.to_bytes()
        },
    )
}

proptest! {
    #[test]
    fn whatever_comes_is_bounded(
        steps in prop::collection::vec((header(), 0..4_u16, 0..4_u8), 1..200),
    ) {
        let (mut host, first) = connected(short());
        let mut connections = vec![first];
        for (header, lane, then) in steps {
            let id = connections[usize::from(lane) % connections.len()];
            match host.expect(id) {
                Expect::Header => host.header(id, &header),
                Expect::Payload(len) => {
                    prop_assert!(len <= 1000);
                    host.payload_received(id, vec![0; len]);
                }
                Expect::Skip(len) => {
                    prop_assert!(len <= 1000);
                    host.skipped(id);
                }
                Expect::Map => host.map(id, &[0x55; MAP_LEN]),
                Expect::Nothing => {}
            }
            match then {
                0 => drop(host.receive(4000)),
                1 => while host.next_write(id).is_some() {},
                2 => connections.extend(host.accepted(SMALLER.into(), 40_000 + lane)),
                _ => host.closed(connections[connections.len() / 2]),
            }
            outputs(&mut host);
            prop_assert!(host.statistics().held_bytes <= 4000 + 1000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn nobody_waits_for_ever(
        client in any::<bool>(),
        steps in prop::collection::vec((header(), 0..8_usize, 0..7_u8), 1..60),
    ) {
        let (own, peer) = if client { (SMALLER, LARGER) } else { (LARGER, SMALLER) };
        let mut host = host(own, short());
        let mut driver = Driver::default();
        if client {
            host.send(to(peer, 10, 0)).expect("is accepted");
        }
        for (header, at, then) in steps {
            if driver.open.is_empty() {
                driver.open.extend(host.accepted(peer.into(), 40_000));
                driver.pass(&mut host, Duration::from_secs(2));
                continue;
            }
            let id = driver.open[at % driver.open.len()];
            match host.expect(id) {
                Expect::Header => host.header(id, &header),
                _ => driver.read_on(&mut host, id),
            }
            match then {
                0 => drop(host.receive(4000)),
                1 => drop(written(&mut host, id)),
                2 => driver.open.extend(host.accepted(peer.into(), 40_000 + at as u16 % 3)),
                3 => driver.note(&mut host),
                4 => driver.pass(&mut host, Duration::from_millis(20)),
                5 => {
                    driver.open.retain(|open| *open != id);
                    host.closed(id);
                }
                _ => {}
            }
        }
        // All that is there is read, taken, written and answered, until that changes nothing.
        for _ in 0..100 {
            for id in driver.open.clone() {
                driver.read_on(&mut host, id);
                written(&mut host, id);
            }
            while host.receive(4000).is_some() {}
            driver.pass(&mut host, Duration::from_millis(1));
        }
        for id in &driver.open {
            prop_assert_eq!(host.expect(*id), Expect::Header, "{:?} of {:?}", id, driver.open);
        }
    }
}

/// What a driver has to answer.
#[derive(Default)]
struct Driver {
    now: Duration,
    open: Vec<ConnectionId>,
    attempts: Vec<ConnectionId>,
    accepts: Option<IpAddr>,
    awaited: Vec<ConnectionId>,
    drained: Vec<ConnectionId>,
}

impl Driver {
    /// The rest of what was begun comes.
    fn read_on(&self, host: &mut Own, id: ConnectionId) {
        match host.expect(id) {
            Expect::Payload(len) => host.payload_received(id, vec![0; len]),
            Expect::Skip(_) => host.skipped(id),
            Expect::Map => host.map(id, &[0; MAP_LEN]),
            Expect::Header | Expect::Nothing => {}
        }
    }

    fn note(&mut self, host: &mut Own) {
        for output in outputs(host) {
            match output {
                Output::Connect { connection, .. } => self.attempts.push(connection),
                Output::Accept(peer) => self.accepts = Some(peer),
                Output::CatchUp(id) => self.awaited.push(id),
                Output::Drain(id) => self.drained.push(id),
                Output::Close { connection, .. } => {
                    self.open.retain(|id| *id != connection);
                    self.attempts.retain(|id| *id != connection);
                }
                _ => {}
            }
        }
    }

    /// Time passes, in which everything is answered.
    fn pass(&mut self, host: &mut Own, time: Duration) {
        self.now += time;
        host.advance(self.now);
        self.note(host);
        for (at, id) in self.attempts.drain(..).enumerate() {
            // Some fail.
            if at % 3 == 2 {
                host.closed(id);
            } else {
                host.connected(id);
                self.open.push(id);
            }
        }
        if let Some(peer) = self.accepts.take() {
            host.accepted_all(peer);
        }
        self.awaited.retain(|id| {
            let may_go_on = host.expect(*id) == Expect::Header;
            if may_go_on {
                host.caught_up(*id);
            }
            !may_go_on
        });
        self.drained.retain(|id| {
            let is_over = host.expect(*id) == Expect::Header;
            if is_over {
                host.closed(*id);
                self.open.retain(|open| open != id);
            }
            !is_over
        });
    }
}
