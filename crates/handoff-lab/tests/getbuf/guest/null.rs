use std::os::unix::fs::FileExt;

use crate::device::{Lending, NULL, in_memory, write};

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
