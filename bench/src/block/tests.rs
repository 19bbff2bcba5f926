//! Tests of the block bench that need no driver. The tests with devices are beside the command's.

use super::*;
use crate::{run::arguments_in_guest, testing};

fn args(line: &str) -> Result<BlockArgs, clap::Error> {
    testing::parse(line)
}

fn names(line: &str) -> Vec<String> {
    let (args, stop) = (args(line).unwrap(), AtomicBool::new(false));
    let testbed = Testbed::new(&args).unwrap();
    subjects(&args, &testbed, &stop).into_iter().map(|subject| subject.name).collect()
}

#[test]
fn a_row_brings_what_it_compares_with() {
    let given = "--backing /dev/null --backing /dev/zero";
    let all = names(given);
    let engines = Engine::ALL.len();
    // Each load has three targets, the limited load has one, and the kernel's driver is beside loop.
    assert_eq!(all.len(), 4 * 3 * engines + engines + 5);
    assert_eq!(all[0], "write 512k depth=16 null user-copy");
    assert!(all.contains(&"write 512k depth=16 745MiB/s loop bpf".to_owned()));
    let some = names(&format!("{given} --only depth=1.loop.bpf"));
    assert_eq!(some, ["read 4k depth=1 loop user-copy", "read 4k depth=1 loop bpf"]);
}

#[test]
fn a_peer_has_rows_beside_null_and_loop() {
    let line = "--backing /dev/null --backing /dev/zero --peer other=true --only other$";
    let rows = names(line);
    let others: Vec<&String> = rows.iter().filter(|name| name.ends_with("other")).collect();
    assert_eq!(others.len(), 4 * 2 + 1);
    assert!(others.iter().all(|name| name.contains("null") || name.contains("loop")));
}

#[test]
fn a_limit_spreads_requests() {
    assert_eq!(JOBS[0].due(1_000), Duration::ZERO);
    // 1,490 requests of 512 KiB are 745 MiB.
    assert_eq!(LIMITED.due(1_490), Duration::from_secs(1));
    assert_eq!(LIMITED.due(0), Duration::ZERO);
}

#[test]
fn other_programs_go_into_the_guest() {
    let given = args("--lab --program ./kublk --peer kublk=kublk").unwrap();
    assert!(arguments_in_guest(&given).contains(&"--peer=kublk=kublk".to_owned()));
    assert!(!given.programs.carried.is_empty());
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for line in ["--lab --backing a --backing b", "--peer a", "--time 0"] {
        assert!(args(line).is_err(), "{line}");
    }
    let one = args("--backing /dev/null").unwrap();
    assert!(matches!(Testbed::new(&one), Err(Failure::Usage(text)) if text.contains("twice")));
}

#[test]
fn the_guest_is_told_all_but_what_stays_here() {
    let given = args("--lab --quick --only loop --json-file a --compare b").unwrap();
    let words = arguments_in_guest(&given);
    assert_eq!(words, ["bench", "block", "--json", "--meter", "--only=loop", "--quick"]);
}
