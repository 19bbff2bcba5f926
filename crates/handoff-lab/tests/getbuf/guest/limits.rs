use std::fs;
use std::io::Write;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::device::{Lending, NULL, REPLACE, SOURCE, connection, eventually, further, on_disk};

/// A parameter of the module that is put back.
struct Parameter {
    path: String,
    before: String,
}

impl Parameter {
    fn set(name: &str, value: u64) -> Self {
        let path = format!("/sys/module/getbuf/parameters/{name}");
        let before = fs::read_to_string(&path).expect("reads");
        fs::write(&path, value.to_string()).expect("writes");
        Self { path, before }
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        // What is left set would show in the tests that follow.
        let _ = fs::write(&self.path, &self.before);
    }
}

#[test]
fn lends_are_limited() {
    let mut lending = Lending::new();
    let _limit = Parameter::set("lends", 2);
    assert_eq!(lending.run(lending.get(0, NULL, 0, 8)), 8);
    assert_eq!(lending.run(lending.get(1, NULL, 0, 8)), 8);
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), -libc::ENOBUFS);
    assert_eq!(lending.run(lending.put(0)), 0);
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), 8);
    assert_eq!(lending.device.query().over_limit, 1);
    // Replaced lends make room, and of many as many are lent as may be.
    let many = lending.get_with(2, NULL, 0, 8, REPLACE | further(9));
    assert_eq!(lending.run(many), 8);
    assert_eq!(lending.run(lending.put(1)), 0);
    let many = lending.get_with(2, NULL, 0, 8, REPLACE | further(9));
    assert_eq!(lending.run(many), 16);
    assert_eq!(lending.device.query().lends, 2);
}

#[test]
fn bytes_are_limited() {
    let mut lending = Lending::new();
    let _limit = Parameter::set("bytes", 100 << 10);
    assert_eq!(lending.run(lending.fresh(0, 1, 64 << 10)), 64 << 10);
    assert_eq!(lending.device.query().bytes, 64 << 10);
    assert_eq!(lending.run(lending.fresh(2, 3, 64 << 10)), -libc::ENOBUFS);
    assert_eq!(lending.device.query().bytes, 64 << 10);
    assert_eq!(lending.run(lending.fresh(2, 3, 32 << 10)), 32 << 10);
    for slot in 0..4 {
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    assert_eq!(lending.until_all_are_back().bytes, 0);
}

#[test]
fn pages_are_charged_against_memlock() {
    let mut lending = Lending::new();
    let file = on_disk();
    file.set_len(1 << 20).expect("extends");
    let id = lending.device.bind(&file, SOURCE).expect("binds");
    let limit = Some(256 << 10);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("sets");
    // SAFETY: changes the user of this process, which runs no other test.
    assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
    assert_eq!(lending.run(lending.fresh(0, 1, 128 << 10)), 128 << 10);
    assert_eq!(lending.run(lending.fresh(2, 3, 128 << 10)), -libc::ENOMEM);
    // As much as may be.
    let some = lending.run(lending.get(4, id, 0, 1 << 20));
    assert!(some == -libc::ENOMEM || (some > 0 && some < 128 << 10), "{some}");
    assert!(lending.device.query().over_memlock > 0);
    for slot in [0, 1] {
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    assert_eq!(lending.run(lending.fresh(2, 3, 128 << 10)), 128 << 10);
}

#[test]
fn who_keeps_received_data_gets_no_more() {
    let mut lending = Lending::new();
    let (mut from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    from.write_all(&[1; 100]).expect("sends");
    assert_eq!(lending.run(lending.get(0, id, 0, 50)), 50);
    assert_eq!(lending.run(lending.get(1, id, 0, 10)), 10);
    let _limit = Parameter::set("stream_age", 10);
    eventually("it is old", || (lending.device.query().oldest_stream > 40).then_some(()));
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), -libc::ETIME);
    assert_eq!(lending.run(lending.put(0)), 0);
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), -libc::ETIME);
    assert_eq!(lending.run(lending.put(1)), 0);
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), 8);
    assert_eq!(lending.device.query().over_age, 2);
}

#[test]
fn files_are_bound_as_many_as_may_be_open() {
    let lending = Lending::new();
    let file = on_disk();
    let limit = Some(64);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("sets");
    for _ in 0..64 {
        lending.device.bind(&file, SOURCE).expect("binds");
    }
    let refused = lending.device.bind(&file, SOURCE).expect_err("is refused");
    assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
    lending.device.unbind(7).expect("unbinds");
    assert_eq!(lending.device.bind(&file, SOURCE).expect("binds"), 7);
}
