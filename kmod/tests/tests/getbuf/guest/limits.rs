use std::fs::File;
use std::io::Write;

use handoff_testbed::helpers::eventually;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::device::{
    Device, Lending, NULL, Parameter, REPLACE, SOURCE, connection, direct, further, in_memory,
    on_disk,
};

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
    // Replaced lends make room, and of many as many are lent as allowed.
    let many = lending.get_with(2, NULL, 0, 8, REPLACE | further(9));
    assert_eq!(lending.run(many), 8);
    assert_eq!(lending.run(lending.put(1)), 0);
    let many = lending.get_with(2, NULL, 0, 8, REPLACE | further(9));
    assert_eq!(lending.run(many), 16);
    assert_eq!(lending.device.query().lends, 2);
}

#[test]
fn who_has_the_device_open_twice_has_out_no_more() {
    let (mut one, mut two) = (Lending::with(Device::alone()), Lending::new());
    let lends = Parameter::set("lends", 3);
    assert_eq!(one.run(one.get(0, NULL, 0, 8)), 8);
    assert_eq!(one.run(one.get(1, NULL, 0, 8)), 8);
    assert_eq!(two.run(two.get_with(0, NULL, 0, 8, further(9))), 8);
    assert_eq!(two.run(two.get(1, NULL, 0, 8)), -libc::ENOBUFS);
    let query = two.device.query();
    assert_eq!((query.lends, query.user_lends, query.over_limit), (1, 3, 1), "{query:?}");
    drop(one);
    eventually("the lends are back", || (two.device.query().user_lends == 1).then_some(()));
    assert_eq!(two.run(two.get(1, NULL, 0, 8)), 8);
    drop(lends);

    let mut one = Lending::new();
    let _bytes = Parameter::set("bytes", 100 << 10);
    assert_eq!(one.run(one.fresh(0, 1, 64 << 10)), 64 << 10);
    assert_eq!(two.run(two.fresh(2, 3, 64 << 10)), -libc::ENOBUFS);
    assert_eq!(two.device.query().user_bytes, 64 << 10);
    assert_eq!(one.run(one.put(0)), 0);
    assert_eq!(one.run(one.put(1)), 0);
    assert_eq!(two.run(two.fresh(2, 3, 64 << 10)), 64 << 10);
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
fn as_much_is_lent_as_may_be_whichever_way_it_is_read() {
    let mut lending = Lending::new();
    let id = lending.device.bind(&direct(&[1; 256 << 10]), SOURCE).expect("binds");
    let _limit = Parameter::set("bytes", 64 << 10);
    assert_eq!(lending.run(lending.get(0, id, 0, 256 << 10)), 64 << 10);
    assert_eq!(lending.run(lending.get(1, id, 0, 256 << 10)), -libc::ENOBUFS);
    let query = lending.device.query();
    assert_eq!((query.from_splice, query.bytes), (1, 64 << 10), "{query:?}");
}

/// Pages of the cache are charged many at a time, but no more than are lent.
#[test]
fn what_is_lent_of_the_cache_is_charged_and_no_more() {
    const PAGES: [u64; 5] = [1, 31, 32, 50, 64];
    let mut lending = Lending::new();
    // Its folios are pages.
    let file = in_memory();
    (&file).write_all(&[1; 256 << 10]).expect("writes");
    let id = lending.device.bind(&file, SOURCE).expect("binds");
    for bytes in PAGES.map(|pages| pages << 12) {
        let wanted = u32::try_from(bytes).expect("is little");
        assert_eq!(lending.run(lending.get(0, id, 0, wanted)), wanted.cast_signed());
        assert_eq!(lending.device.query().bytes, bytes);
        assert_eq!(lending.run(lending.put(0)), 0);
        assert_eq!(lending.until_all_are_back().bytes, 0);
    }
    for (turn, pages) in PAGES.into_iter().take(4).enumerate() {
        let bytes = pages << 12;
        let _limit = Parameter::set("bytes", bytes);
        let lent = lending.run(lending.get(0, id, 0, 256 << 10));
        assert_eq!(u64::try_from(lent).expect("some are lent"), bytes);
        let query = lending.device.query();
        assert_eq!((query.bytes, query.over_limit), (bytes, turn as u64 + 1), "{query:?}");
        assert_eq!(lending.run(lending.put(0)), 0);
        assert_eq!(lending.until_all_are_back().bytes, 0);
    }
}

#[test]
fn a_get_that_has_waited_is_charged_to_who_asked() {
    let mut lending = Lending::new();
    let (mut from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let none = Some(0);
    setrlimit(Resource::Memlock, Rlimit { current: none, maximum: none }).expect("sets");
    // Root is charged for nothing; these credentials are.
    // SAFETY: changes the user of this process, which runs no other test.
    assert_eq!(unsafe { libc::seteuid(65_534) }, 0);
    let other = lending.ring.submitter().register_personality().expect("registers");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::seteuid(0) }, 0);
    let waits = lending.get(0, id, 0, 10).personality(other);
    lending.submit(&[waits]);
    assert_eq!(lending.device.query().waiting, 1);
    from.write_all(&[1; 20]).expect("sends");
    assert_eq!(lending.wait(1)[0].result(), -libc::ENOMEM);
    assert_eq!(lending.run(lending.get(0, id, 0, 10).personality(other)), -libc::ENOMEM);
    assert_eq!(lending.run(lending.get(0, id, 0, 10)), 10);
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
    assert_eq!(lending.run(lending.fresh(2, 3, 132 << 10)), -libc::ENOMEM);
    // As much as allowed, in whole folios.
    let some = lending.run(lending.get(4, id, 0, 1 << 20));
    assert!(some == -libc::ENOMEM || (some > 0 && some <= 128 << 10), "{some}");
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
    // To open the device anew does not help.
    let mut another = Lending::new();
    assert_eq!(another.run(another.get(2, NULL, 0, 8)), -libc::ETIME);
    let query = another.device.query();
    assert!(query.user_oldest_stream > 40 && query.oldest_stream == 0, "{query:?}");
    assert_eq!(lending.run(lending.put(0)), 0);
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), -libc::ETIME);
    assert_eq!(lending.run(lending.put(1)), 0);
    assert_eq!(lending.run(lending.get(2, NULL, 0, 8)), 8);
    assert_eq!(lending.device.query().over_age, 2);
}

#[test]
fn who_keeps_pages_of_a_file_gets_no_more() {
    let mut lending = Lending::new();
    let file = on_disk();
    file.set_len(10_000).expect("extends");
    let id = lending.device.bind(&file, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(0, id, 0, 10_000)), 10_000);
    assert_eq!(lending.run(lending.fresh(1, 2, 10_000)), 10_000);
    let _limit = Parameter::set("file_age", 10);
    eventually("it is old", || (lending.device.query().oldest_file > 40).then_some(()));
    assert_eq!(lending.run(lending.get(3, id, 0, 8)), -libc::ETIME);
    assert_eq!(lending.device.query().over_age, 1);
    // The lend stays with its user when the device is closed, and is old through any other.
    let mut lending = Lending { ring: lending.ring, device: Device::open() };
    let id = lending.device.bind(&file, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(3, id, 0, 8)), -libc::ETIME);
    let query = lending.device.query();
    assert!(query.user_oldest_file > 40 && query.oldest_file == 0, "{query:?}");
    assert_eq!(lending.run(lending.put(0)), 0);
    // Memory that only we have may stay.
    assert_eq!(lending.run(lending.get(3, id, 0, 8)), 8);
    assert_eq!(lending.device.query().over_age, 1);
}

#[test]
fn a_user_binds_no_more_files_with_many_devices() {
    drop(Device::open());
    // It is opened with root's power, for a user who may bind so many files.
    // SAFETY: changes the user of this process, which runs no other test.
    assert_eq!(unsafe { libc::setresuid(65_534, 0, 0) }, 0);
    let [one, two] = [(); 2].map(|()| Device(File::open("/dev/getbuf").expect("opens")));
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
    let file = in_memory();
    let limit = Some(64);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("sets");
    for device in [&one, &two] {
        for _ in 0..32 {
            device.bind(&file, SOURCE).expect("binds");
        }
    }
    for device in [&one, &two] {
        let refused = device.bind(&file, SOURCE).expect_err("is refused");
        assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
    }
    assert_eq!((two.query().bound, two.query().user_bound), (32, 64));
    one.unbind(7).expect("unbinds");
    two.bind(&file, SOURCE).expect("binds");
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

#[test]
fn each_is_told_of_their_own_lends() {
    let (mut one, mut two) = (Lending::with(Device::alone()), Lending::new());
    for lending in [&mut one, &mut two] {
        assert_eq!(lending.run(lending.get(0, NULL, 0, 8)), 8);
    }
    let counts = |device: &Device| {
        let query = device.query();
        (query.lends, query.user_lends, query.module_lends)
    };
    // SAFETY: changes the user of this process, which runs no other test.
    assert_eq!(unsafe { libc::setresuid(65_534, 0, 0) }, 0);
    let others = Device(File::open("/dev/getbuf").expect("opens"));
    assert_eq!(counts(&one.device), (1, 2, 2));
    assert_eq!(counts(&others), (0, 0, 2));
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
    assert_eq!(counts(&others), (0, 0, 0));
    // Whoever got root's device knows no more than that.
    assert_eq!(counts(&one.device), (1, 1, 1));
}
