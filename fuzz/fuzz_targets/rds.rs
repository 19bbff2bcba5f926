//! Whatever RDS peers send, on any number of connections and at any time, is read within the limits.
#![no_main]

use std::time::Duration;

use handoff_rds::protocol::{Expect, Host, Limits, Message, Output};
use handoff_rds::wire::{HEADER_LEN, Header, MAP_LEN};
use libfuzzer_sys::fuzz_target;

const MESSAGE: usize = 1000;
const HELD: u64 = 4000;

fn split<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { message: MESSAGE, held: HELD, receive: 2000, ..Limits::default() };
    let mut host = Host::<(), usize>::new([10, 0, 0, 2].into(), 1, limits);
    host.bind(1).expect("is free");
    let mut connections = Vec::new();
    let mut now = Duration::ZERO;
    let mut rest = bytes;
    // Each step: what to do, on which connection, and its bytes.
    while let Some([what, which]) = split(&mut rest, 2) {
        let connected = connections.len().max(1);
        let id = connections.get(usize::from(*which) % connected).copied();
        match (what % 8, id) {
            (0, _) => {
                let peer = [10, 0, 0, which >> 7].into();
                connections.extend(host.accepted(peer, u16::from(*which)));
            }
            (1, Some(id)) => host.closed(id),
            (2, Some(id)) => while host.next_write(id).is_some() {},
            (3, _) => drop(host.receive(1)),
            (4, Some(id)) => host.acknowledged(id, u64::from(*which) << 6),
            (5, _) => {
                let to = [10, 0, 0, which >> 7].into();
                let (port, len) = (u16::from(*which), usize::from(*which));
                // Refused where it is congested or full.
                let _ = host.send(Message { from: 1, to, port, payload: (), len, cookie: 0 });
            }
            (6, _) => {
                now += Duration::from_millis(u64::from(*which) << 4);
                host.advance(now);
            }
            (_, Some(id)) => match host.expect(id) {
                Expect::Header => {
                    let Some(header) = split(&mut rest, HEADER_LEN) else { return };
                    let header = header.try_into().expect("as split");
                    assert_eq!(Header::parse(&Header::parse(header).to_bytes()), Header::parse(header));
                    host.header(id, header);
                }
                Expect::Payload(len) => {
                    assert!(len <= MESSAGE);
                    host.payload_received(id, len);
                }
                Expect::Skip(len) => {
                    assert!(len <= MESSAGE);
                    host.skipped(id);
                }
                Expect::Map => host.map(id, &[*which; MAP_LEN]),
                Expect::Nothing => {}
            },
            (_, None) => {}
        }
        while let Some(output) = host.poll() {
            match output {
                Output::Accept(peer) => host.accepted_all(peer),
                Output::CatchUp(id) => host.caught_up(id),
                _ => {}
            }
        }
        assert!(host.statistics().held_bytes <= HELD + MESSAGE as u64);
    }
});
