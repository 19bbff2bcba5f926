//! An address has one engine.

use std::net::{Ipv4Addr, SocketAddr};

use handoff::{Driver, Engine as Sending};
use handoff_rds::Error;
use handoff_rds::own::Engine;
use handoff_rds::protocol::Limits;
use handoff_rds::wire::PORT;

use crate::hosts::pair;

fn engine(driver: &Driver, own: impl Into<SocketAddr>) -> Result<Engine, Error> {
    Engine::listening_at(driver, own.into(), Limits::default(), Sending::Auto)
}

#[test]
fn a_second_engine_is_refused_until_the_first_has_ended() {
    let (pair, driver) = (pair(), Driver::new().expect("a driver"));
    let own = pair.right.v4();
    let alone = |port| engine(&driver, (own, port)).expect("has the address alone");
    let refused = |own: SocketAddr| match engine(&driver, own) {
        Err(error @ Error::AddressInUse { .. }) => error.to_string(),
        other => panic!("{:?}", other.map(|engine| engine.address())),
    };
    let done = pair.right.namespace().run(|| {
        let first = alone(PORT);
        let reason = refused((own, PORT).into());
        assert!(reason.contains(&format!("{own} already, that of this process")), "{reason}");
        // It may listen elsewhere, and be asked for by another form of the address.
        refused((own, 4_000).into());
        refused((own.to_ipv6_mapped(), PORT).into());
        let elsewhere = engine(&driver, (Ipv4Addr::LOCALHOST, PORT)).expect("another address");
        assert_eq!((first.not_listening(), elsewhere.not_listening()), (None, None));
        drop(first);
        let beside = alone(4_000);
        refused((own, PORT).into());
        // Neither was run.
        let socket = beside.bind(4_000).expect("is free");
        drop(beside);
        refused((own, PORT).into());
        drop(socket);
        alone(PORT);
    });
    done.expect("enters");
    // The same address is another one in another namespace.
    let there = pair.right.namespace().run(|| engine(&driver, (Ipv4Addr::LOCALHOST, PORT)));
    let here = pair.left.namespace().run(|| engine(&driver, (Ipv4Addr::LOCALHOST, PORT)));
    assert!([there, here].into_iter().all(|engine| engine.expect("enters").is_ok()));
}
