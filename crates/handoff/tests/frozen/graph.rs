//! Clones, parts, sends, drivers and threads in any order, beside the model.

use std::net::UdpSocket;
use std::time::Duration;

use handoff::{Driver, Engine, Region, RingUse, Wait};
use proptest::prelude::*;

use crate::LONG;
use crate::model::{Held, Model, Place, SHORT, Step, WHOLES, step};
use crate::readers::Readers;
use crate::traffic::{self, filled, narrow_tcp, within};
use crate::worker::Worker;

fn random_graph(steps: &[Step], engines: [Engine; 3]) {
    let rings = [RingUse::Prefer, RingUse::Prefer, RingUse::Avoid];
    let mut readers = Readers::new();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let places = rings.into_iter().zip(engines).map(|(ring, engine)| {
        let driver = Driver::builder().ring(ring).build().unwrap();
        let (near, far_end) = narrow_tcp();
        readers.add(far_end);
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.connect(far.local_addr().unwrap()).unwrap();
        let sockets = vec![driver.socket(near).unwrap(), driver.socket(datagrams).unwrap()];
        for socket in &sockets {
            // Without a ring, the choice stays free.
            let _ = socket.set_engine(engine);
        }
        Place { driver, sockets }
    });
    let places: Vec<_> = places.collect();
    let mut region = Region::anonymous(WHOLES * 8192).unwrap();
    let held = (0..WHOLES).map(|seed| {
        let frozen = filled(&mut region, seed, SHORT).freeze();
        (seed, Held { frozen, seed, start: 0 })
    });
    let held = held.collect();
    let streams = vec![Vec::new(); places.len()];
    let workers = [RingUse::Prefer, RingUse::Avoid].map(Worker::new).into();
    let mut model =
        Model { places, region, held, loans: Vec::new(), workers, streams, seeds: WHOLES };
    steps.iter().for_each(|step| model.act(step));
    model.workers.drain(..).for_each(Worker::end);
    // Operations under way end, and then each buffer is free with its last handle.
    while !model.loans.is_empty() || model.places.iter().any(|place| place.driver.in_flight() > 0) {
        for place in &model.places {
            place.driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
        let loans = std::mem::take(&mut model.loans);
        loans.into_iter().for_each(|loan| model.take(loan));
    }
    for whole in 0..WHOLES {
        let mut handles: Vec<_> =
            model.held.extract_if(.., |(of, _)| *of == whole).map(|(_, held)| held).collect();
        let last = handles.pop().expect("one of each is kept");
        drop(handles);
        last.frozen.try_unfreeze().expect("all loans are over");
    }
    let Model { places, streams, .. } = model;
    drop(places);
    for (got, sent) in readers.end().into_iter().zip(streams) {
        traffic::assert_same(&got, &sent);
    }
}

#[test]
fn clones_parts_and_loans_in_any_order() {
    let (cases, time) = if std::env::var_os("HANDOFF_SOAK").is_some() {
        (3_000, LONG * 30)
    } else if std::env::var_os("HANDOFF_EMULATED").is_some() {
        (12, LONG * 3)
    } else {
        (80, LONG * 3)
    };
    within(time, move || {
        let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
        let engines = prop_oneof![
            Just([Engine::UringZc, Engine::Auto, Engine::MsgZerocopy]),
            Just([Engine::UringZc, Engine::UringZc, Engine::Copy]),
            Just([Engine::MsgZerocopy, Engine::Copy, Engine::Auto]),
        ];
        let steps = prop::collection::vec(step(), 1..150);
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let checked = runner.run(&(steps, engines), |(steps, engines)| {
            random_graph(&steps, engines);
            Ok(())
        });
        if let Err(error) = checked {
            panic!("{error}");
        }
    });
}
