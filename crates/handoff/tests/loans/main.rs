//! Loans that are dropped, forgotten, cancelled and panicked over in any order, on every handle and in
//! every state, by each engine. A model beside them says what must always be true:
//!
//! - each buffer comes back once, at its place and with its bytes, or belongs to the ring until that goes;
//! - peers get the bytes that were sent, in order on streams; spans have the bytes that peers wrote, and
//!   keep them as long as they are held;
//! - waiters are woken, whatever other wakers do;
//! - at the end nothing is left: no memory, no descriptor; and nobody has written to freed memory, not even
//!   the kernel ([`heap`]).
//!
//! Forgotten handles are kept aside and dropped last: for the library that makes no difference until then.

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../traffic/mod.rs"]
mod traffic;

mod alarm;
mod end;
mod handles;
mod heap;
mod inflow;
mod lanes;
#[cfg(feature = "getbuf")]
mod leases;
mod model;
mod sends;
mod steps;
mod transfers;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};

use handoff::{Driver, Engine, RingUse, Wait};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::world::{Setting, World};

#[global_allocator]
static ALLOCATOR: heap::Watching = heap::Watching;

/// Descriptors are counted, so only one test at a time opens any in a process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fewer where processors are emulated.
fn cases() -> u32 {
    match std::env::var("PROPTEST_CASES") {
        Ok(cases) => cases.parse().expect("a number"),
        Err(_) if std::env::var_os("HANDOFF_SOAK").is_some() => 2_000,
        Err(_) if std::env::var_os("HANDOFF_EMULATED").is_some() => 12,
        Err(_) => 60,
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("is there").count()
}

fn run(setting: &Setting, steps: &[steps::Step]) {
    // A failed case left something.
    drop(alarm::AT_HAND.take());
    let before = descriptors();
    let (may_leak, found) = heap::watched(|| {
        let mut world = World::new(setting);
        for step in steps {
            world.act(step);
        }
        let may_leak = world.may_leak;
        world.finish();
        may_leak
    });
    assert_eq!(found.overwritten, [], "freed memory was written to: length and place");
    assert!(may_leak || found.live == 0, "{} bytes are not freed", found.live);
    // An earlier test may still close some.
    assert!(descriptors() <= before, "descriptors are left");
}

fn check(setting: impl Fn(u32, usize) -> Setting) {
    let _alone = alone();
    run_all(setting);
}

/// As many owners as a case may lend at once: the thread keeps their places.
fn lend_many() {
    let driver = Driver::builder().ring(RingUse::Avoid).build().expect("a driver");
    let socket = driver.socket(traffic::udp_pair().0).expect("attaches");
    let sends: Vec<_> = (0..100).map(|_| socket.send(vec![0; 1]).expect("sends")).collect();
    drop(sends);
    while driver.in_flight() > 0 {
        driver.turn(Wait::Event).expect("turns");
    }
}

/// Runs the wanted number of cases, and finds the fewest steps that fail.
fn run_all(setting: impl Fn(u32, usize) -> Setting) {
    alarm::silence();
    // Everything made once and kept exists by now; of descriptors, the ring that keeps registered memory.
    if has_ring() {
        let region = handoff::Region::anonymous(1).expect("a region");
        Driver::new().expect("a driver").register(&region).expect("there is a ring");
    }
    lend_many();
    run(&setting(8, 64), &[]);
    let config = ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..ProptestConfig::default()
    };
    let entries = prop_oneof![Just(2u32), Just(8), Just(256)];
    let in_flight = prop_oneof![1 => 3usize..20, 3 => Just(256)];
    let steps = prop::collection::vec(steps::step(), 1..80);
    let checked =
        TestRunner::new(config).run(&(entries, in_flight, steps), |(entries, in_flight, steps)| {
            run(&setting(entries, in_flight), &steps);
            Ok(())
        });
    if let Err(error) = checked {
        panic!("{error}");
    }
}

fn with(
    ring: RingUse,
    registered: bool,
    engines: &'static [Engine],
) -> impl Fn(u32, usize) -> Setting {
    move |entries, in_flight| Setting {
        ring,
        registered,
        engines,
        entries,
        in_flight,
        rx_queue: false,
        #[cfg(feature = "getbuf")]
        lends: false,
    }
}

/// Whether there is a ring at all; without one, settings that want one are those without.
fn has_ring() -> bool {
    Driver::new().expect("a driver").ring_unavailable().is_none()
}

fn check_with_ring(test: &str, registered: bool, engines: &'static [Engine]) {
    let _alone = alone();
    if has_ring() {
        run_all(with(RingUse::Require, registered, engines));
    } else {
        traffic::skip(test, "the kernel has no io_uring here");
    }
}

#[test]
fn loans_by_uring_zc_registered() {
    check_with_ring("loans_by_uring_zc_registered", true, &[Engine::UringZc]);
}

#[test]
fn loans_by_uring_zc_not_registered() {
    check_with_ring("loans_by_uring_zc_not_registered", false, &[Engine::UringZc]);
}

#[test]
fn loans_by_msg_zerocopy_beside_a_ring() {
    check_with_ring("loans_by_msg_zerocopy_beside_a_ring", true, &[Engine::MsgZerocopy]);
}

#[test]
fn loans_by_copy_beside_a_ring() {
    check_with_ring("loans_by_copy_beside_a_ring", true, &[Engine::Copy]);
}

#[test]
fn loans_by_auto_with_a_ring() {
    check_with_ring("loans_by_auto_with_a_ring", true, &[Engine::Auto]);
}

#[test]
fn loans_by_engines_that_change() {
    const ALL: &[Engine] = &[Engine::UringZc, Engine::MsgZerocopy, Engine::Copy, Engine::Auto];
    check_with_ring("loans_by_engines_that_change", true, ALL);
}

#[test]
fn loans_by_msg_zerocopy_without_a_ring() {
    check(with(RingUse::Avoid, false, &[Engine::MsgZerocopy]));
}

#[test]
fn loans_by_copy_without_a_ring() {
    check(with(RingUse::Avoid, false, &[Engine::Copy]));
}

#[test]
fn loans_by_auto_without_a_ring() {
    check(with(RingUse::Avoid, false, &[Engine::Auto, Engine::MsgZerocopy, Engine::Copy]));
}

mod guest {
    use super::*;

    #[test]
    fn loans_beside_an_rx_queue_without_a_device() {
        let sends = with(RingUse::Require, true, &[Engine::UringZc]);
        check(|entries, in_flight| Setting { rx_queue: true, ..sends(entries, in_flight) });
    }

    #[cfg(feature = "getbuf")]
    #[test]
    fn loans_beside_lends_of_the_kernel() {
        handoff_testbed::load("getbuf", &[]).expect("the lab's kernel has it");
        let sends = with(RingUse::Require, true, &[Engine::UringZc]);
        check(|entries, in_flight| Setting { lends: true, ..sends(entries, in_flight) });
    }
}
