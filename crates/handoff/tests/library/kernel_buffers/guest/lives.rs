//! Whatever happens to handles, operations and drivers, each lend comes back once.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use handoff::{Driver, Error, Wait};
use handoff_testbed::helpers::{bytes_at, eventually};

use crate::kernel_buffers::testbed::{Lending, connection, filled, on_disk, read_all};
use crate::refusals::take_no_two_requests;

/// Lends on loan to all users of the device.
fn out_everywhere() -> u64 {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/getbuf");
    handoff_sys::getbuf::query(device.expect("opens")).expect("answers").module_lends
}

#[test]
fn a_wait_that_is_dropped_ends() {
    let (mut from, to) = connection();
    let lending = Lending::new();
    let source = lending.getbuf.source(&to).expect("lends");
    let waiting = source.get(1_000).expect("asks");
    lending.driver.turn(Wait::AtMost(Duration::from_millis(10))).expect("turns");
    drop(waiting);
    eventually("the wait is over", || {
        lending.driver.turn(Wait::No).expect("turns");
        (lending.driver.in_flight() == 0).then_some(())
    });
    // The dropped read took nothing from the stream.
    from.write_all(&bytes_at(0, 500)).expect("sends");
    let lease = lending.run(source.get(1_000).expect("asks")).expect("lends");
    assert_eq!(lease.expect("not the end").len(), 500);
    lending.until_all_are_back();
}

#[test]
fn a_lend_that_cannot_be_asked_for_leaves_its_slot_to_be_cleared() {
    let directory = on_disk();
    let lending = Lending::of(Driver::builder().entries(2));
    let source = lending.getbuf.source(filled(&directory, 4_096)).expect("lends");
    let lease = lending.run(source.get_at(0, 4_096).expect("asks")).expect("lends");
    take_no_two_requests();
    let (mut waits, mut others) = (Vec::new(), Vec::new());
    for (near, far) in (0..2).map(|_| UnixStream::pair().expect("a pair")) {
        let near = lending.driver.socket(near).expect("attaches");
        waits.push(near.readable().expect("waits"));
        others.push(far);
    }
    // The next lend is to clear its slot, and there is no room for the request.
    drop(lease);
    let refused = source.get_at(0, 4_096).expect("has a slot").try_take().expect("is over");
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    drop(others);
    for wait in waits {
        lending.run(wait).expect("readable");
    }
    lending.until_all_are_back();
    let lease = lending.run(source.get_at(0, 4_096).expect("asks")).expect("lends");
    assert_eq!(lease.expect("not the end").len(), 4_096);
}

#[test]
fn a_driver_goes_with_leases_waits_and_sends_out() {
    let (from, to) = connection();
    let (_quiet, waited) = connection();
    let directory = on_disk();
    let lending = Lending::new();
    let file = lending.getbuf.source(filled(&directory, 1 << 20)).expect("lends");
    let stream = lending.getbuf.source(&waited).expect("lends");
    let socket = lending.driver.socket(from).expect("attaches");
    let kept = lending.run(file.get_at(0, 1 << 20).expect("asks")).expect("lends");
    let kept = kept.expect("not the end");
    // Nobody reads, so these are under way when the driver goes.
    for _ in 0..8 {
        drop(socket.send(kept.clone()).expect("is taken"));
    }
    drop(stream.get(1_000).expect("asks"));
    lending.driver.turn(Wait::No).expect("turns");
    assert!(out_everywhere() > 0);
    drop((file, stream, socket, lending));
    // A handle on bytes that are gone is harmless.
    assert_eq!(kept.len(), 1 << 20);
    drop(to);
    eventually("all is back", || (out_everywhere() == 0).then_some(()));
    drop(kept);
}

#[test]
fn a_lender_that_goes_before_its_leases_gets_them_back() {
    let directory = on_disk();
    let lending = Lending::of(Driver::builder().registered_buffers(1));
    for _ in 0..3 {
        let getbuf = lending.driver.get_buf().expect("is there");
        let source = getbuf.source(filled(&directory, 4_096)).expect("lends");
        // With a single slot, which the earlier lease must have left.
        let getting = eventually("a slot is free", || {
            lending.driver.turn(Wait::No).expect("turns");
            source.get_at(0, 4_096).ok()
        });
        let lease = lending.run(getting).expect("lends");
        drop((getbuf, source));
        assert_eq!(lease.expect("not the end").len(), 4_096);
    }
    eventually("all is back", || {
        lending.driver.turn(Wait::No).expect("turns");
        (out_everywhere() == 0).then_some(())
    });
}

#[test]
fn a_lease_is_refused_by_another_driver() {
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, 4_096)).expect("lends");
    let lease = lending.run(source.get_at(0, 4_096).expect("asks")).expect("lends");
    let lease = lease.expect("not the end");
    let other = Driver::new().expect("a ring");
    let (from, _to) = connection();
    let socket = other.socket(from).expect("attaches");
    let refused = socket.send(lease).expect_err("is refused");
    assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
    let file = other.file(tempfile::tempfile().expect("makes")).expect("attaches");
    let refused = file.write_at(refused.buffer, 0).expect_err("is refused");
    assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
    let pages = lending.run(lending.getbuf.fresh(4_096).expect("asks")).expect("lends");
    let not_filled = socket.receive_exact(pages).expect_err("is refused");
    assert!(matches!(not_filled.error, Error::Invalid(_)), "{}", not_filled.error);
    // It still works on its own.
    let (from, to) = connection();
    let received = read_all(to);
    let socket = lending.driver.socket(from).expect("attaches");
    lending
        .run(async { socket.send(refused.buffer).expect("is taken").await.unwrap().sent })
        .expect("sends");
    drop(socket);
    assert!(received.join().expect("ends") == bytes_at(0, 4_096), "what arrived differs");
}

#[test]
fn a_full_table_says_so_and_slots_are_used_again() {
    let directory = on_disk();
    let lending = Lending::of(Driver::builder().registered_buffers(2));
    let source = lending.getbuf.source(filled(&directory, 8_192)).expect("lends");
    let get = || lending.run(source.get_at(0, 4_096).expect("asks")).expect("lends");
    let leases = [get(), get()];
    let error = source.get_at(0, 4_096).expect_err("there is no slot");
    assert!(error.to_string().contains("registered_buffers"), "{error}");
    drop(leases);
    lending.until_all_are_back();
    for _ in 0..10 {
        let _lease = eventually("a slot is free", || {
            lending.driver.turn(Wait::No).expect("turns");
            source.get_at(0, 4_096).ok()
        });
    }
    lending.until_all_are_back();
}

#[test]
fn a_lend_that_is_refused_keeps_no_slot() {
    let directory = on_disk();
    let (_quiet, waited) = connection();
    let lending = Lending::of(Driver::builder().registered_buffers(4).in_flight(1));
    let source = lending.getbuf.source(filled(&directory, 8_192)).expect("lends");
    let stream = lending.getbuf.source(&waited).expect("lends");
    let waiting = stream.get(1_000).expect("asks");
    for _ in 0..10 {
        let refused = source.get_at(0, 4_096).expect_err("there is no room");
        assert!(matches!(refused, Error::Busy { .. }), "{refused}");
        let refused = lending.getbuf.fresh(4_096).expect_err("there is no room");
        assert!(matches!(refused, Error::Busy { .. }), "{refused}");
    }
    drop(waiting);
    eventually("the wait is over", || {
        lending.driver.turn(Wait::No).expect("turns");
        (lending.driver.in_flight() == 0).then_some(())
    });
    let get = || lending.run(source.get_at(0, 4_096).expect("asks")).expect("lends");
    drop([get(), get(), get(), get()]);
    lending.until_all_are_back();
}

#[test]
fn what_can_not_be_lent_from_says_why() {
    let lending = Lending::new();
    let (left, _right) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let error = lending.getbuf.source(&left).expect_err("it can't");
    assert!(matches!(error, Error::EngineUnavailable { engine: "get-buf", .. }), "{error}");
    let directory = on_disk();
    drop(filled(&directory, 10));
    let path = directory.path().join("source");
    let write_only = std::fs::OpenOptions::new().write(true).open(path).expect("opens");
    let error = lending.getbuf.source(write_only).expect_err("it can't be read");
    assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{error}");
}
