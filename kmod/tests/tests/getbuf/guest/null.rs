use std::os::unix::fs::FileExt;

use crate::device::{Lending, NULL, REPLACE, further, in_memory, write};

#[test]
fn get_use_put_works_in_one_submission() {
    let mut lending = Lending::new();
    let target = in_memory();
    target.write_all_at(&[7; 5_000], 0).expect("writes");
    let results = lending.chain(&[
        lending.get(3, NULL, 0, 9_000),
        write(3, &target, 0, 4_096, 0),
        lending.put(3),
    ]);
    assert_eq!(results, [4_096, 4_096, 0]);
    let mut content = [1; 5_000];
    target.read_exact_at(&mut content, 0).expect("reads");
    assert!(content[..4_096].iter().all(|&byte| byte == 0));
    assert!(content[4_096..].iter().all(|&byte| byte == 7));
    let query = lending.until_all_are_back();
    assert_eq!((query.lent, query.from_null, query.lent_bytes), (1, 1, 4_096));
}

#[test]
fn get_and_use_need_no_link() {
    let mut lending = Lending::new();
    let target = in_memory();
    lending.submit(&[lending.get(0, NULL, 0, 100), write(0, &target, 0, 100, 0), lending.put(0)]);
    let mut results: Vec<_> = lending.wait(3).iter().map(|entry| entry.result()).collect();
    results.sort_unstable();
    assert_eq!(results, [0, 100, 100]);
}

#[test]
fn many_slots_are_lent_and_lent_again() {
    let mut lending = Lending::new();
    let target = in_memory();
    for _ in 0..20 {
        let gets: Vec<_> = (0..64).map(|slot| lending.get(slot, NULL, 0, 4_096)).collect();
        lending.submit(&gets);
        assert!(lending.wait(64).iter().all(|entry| entry.result() == 4_096));
        assert_eq!(lending.device.query().lends, 64);
        let uses: Vec<_> = (0..64)
            .flat_map(|slot| [write(slot, &target, 0, 4_096, 0), lending.put(slot)])
            .collect();
        lending.submit(&uses);
        assert!(lending.wait(128).iter().all(|entry| entry.result() >= 0));
    }
    assert_eq!(lending.until_all_are_back().lent, 1_280);
}

#[test]
fn a_get_clears_what_is_in_its_slots() {
    let mut lending = Lending::new();
    // Some of them, or all, may be empty.
    for (slots, out) in [(1, 1), (4, 4), (2, 4), (8, 8)] {
        let get = lending.get_with(0, NULL, 0, 100, REPLACE | further(slots - 1));
        assert_eq!(lending.run(get), i32::from(slots) * 100);
        assert_eq!(lending.device.query().lends, out);
    }
    let query = lending.device.query();
    assert_eq!((query.lent, query.returned, query.from_null), (15, 7, 15), "{query:?}");
    assert_eq!(query.lent_bytes, 1_500);
    let target = in_memory();
    for slot in 0..8 {
        assert_eq!(lending.write(slot, &target, 100), 100);
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    lending.until_all_are_back();
}

#[test]
fn a_lend_that_is_replaced_in_use_comes_back_after_its_last_use() {
    let mut lending = Lending::new();
    assert_eq!(lending.run(lending.get(0, NULL, 0, 4_096)), 4_096);
    // A pipe that is full: the write waits, with the buffer.
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4_096).expect("resizes");
    assert_eq!(lending.write(0, &writer, 4_096), 4_096);
    lending.submit(&[write(0, &writer, 0, 4_096, 0)]);
    let get = lending.get_with(0, NULL, 0, 8, REPLACE);
    lending.submit(&[get.user_data(1)]);
    let done = lending.wait(1);
    assert_eq!((done[0].user_data(), done[0].result()), (1, 8));
    let query = lending.device.query();
    assert_eq!((query.lends, query.returned), (2, 0), "{query:?}");
    let mut read = || std::io::Read::read_exact(&mut reader, &mut [1; 4_096]).expect("reads");
    read();
    assert_eq!(lending.wait(1)[0].result(), 4_096);
    read();
    assert_eq!(lending.run(lending.put(0)), 0);
    lending.until_all_are_back();
}

#[test]
fn slots_are_lent_to_as_far_as_it_goes() {
    let mut lending = Lending::new();
    let many = |lending: &Lending, slot, bytes, slots| {
        lending.get_with(slot, NULL, 0, bytes, further(slots))
    };
    // The table has 128.
    assert_eq!(lending.run(many(&lending, 120, 10, 255)), 80);
    assert_eq!(lending.run(many(&lending, 120, 10, 0)), -libc::EBUSY);
    assert_eq!(lending.run(many(&lending, 100, 10, 255)), 200);
    // One that is shorter than asked for is the last.
    assert_eq!(lending.run(many(&lending, 0, 5_000, 3)), 4_096);
    let query = lending.device.query();
    assert_eq!((query.lends, query.lent, query.lent_bytes), (29, 29, 4_376), "{query:?}");
}
