//! Whatever step fails, those before it are undone.

use std::collections::BTreeSet;
use std::fs;

use handoff_nic::{Error, ErrorKind, Plan};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::card::{Card, PORT, plan};

#[test]
fn a_full_table_of_rules_undoes_all_else() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!(
        "i=0; while [ $i -lt 63 ]; do i=$((i + 1)); \
         ethtool -N {name} flow-type udp4 dst-port $i action 0; done"
    ));
    for free in [1, 0] {
        let before = card.settings();
        let error = card.prepare(&plan(1)).expect_err("there is no room");
        assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
        let error = error.to_string();
        assert!(error.contains("the table of rules is full: ethtool -n"), "{error}");
        assert_eq!(error.contains("put back: rule for TCP over IPv4"), free == 1, "{error}");
        assert!(error.contains("RSS, header/data split"), "{error}");
        assert_eq!(card.settings(), before);
        card.nothing_is_written_down();
        if free == 1 {
            card.sh(&format!("ethtool -N {name} flow-type udp4 dst-port 99 action 0"));
        }
    }
}

/// The record grows with each step, so a limit to the size of files fails one step after the other.
#[test]
fn each_step_that_cannot_be_written_down_undoes_those_before() {
    let card = Card::new();
    let before = card.settings();
    let wanted = Plan { hardware_gro: true, ..plan(4) };
    let steps = wanted.steps(&card.look()).expect("possible").len();
    assert_eq!(steps, 6, "channels, split, GRO, RSS, two rules");
    let all = getrlimit(Resource::Fsize);
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut failed_at = BTreeSet::new();
    let limit = |bytes| setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..all });
    for bytes in (0..4_000).step_by(40) {
        limit(bytes).expect("lower");
        let outcome = card.prepare(&wanted);
        setrlimit(Resource::Fsize, all).expect("as before");
        let error = match outcome {
            Ok(prepared) => {
                drop(prepared);
                break;
            }
            Err(error) => error.to_string(),
        };
        assert!(error.contains("writing") && error.contains("File too large"), "{error}");
        let undone = error.split_once("put back: ").map_or(0, |(_, all)| all.split(", ").count());
        if failed_at.insert(undone) {
            assert_eq!(card.settings(), before, "{error}");
            card.nothing_is_written_down();
        }
    }
    assert_eq!(failed_at, (0..steps).collect(), "not every step has failed");
    assert_eq!(card.settings(), before);

    // Putting back needs no room.
    let prepared = card.prepare(&wanted).expect("is fit");
    limit(0).expect("lower");
    let undone = prepared.undo();
    setrlimit(Resource::Fsize, all).expect("as before");
    assert_eq!(undone.expect("comes back").put_back.len(), steps);
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
}

#[test]
fn a_setting_that_the_driver_lacks_changes_nothing() {
    let card = Card::new();
    let before = card.settings();
    let wanted = Plan { buffer_length: Some(8_192), ..plan(1) };
    let error = card.prepare(&wanted).expect_err("has no such setting");
    assert!(matches!(error, Error::NotPossible { .. }), "{error}");
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
}

#[test]
fn a_record_that_cannot_be_read_is_not_overwritten() {
    let card = Card::new();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    let record = prepared.keep().expect("is written down");
    let text = fs::read(&record).expect("is there");
    fs::write(&record, &text[..text.len() / 2]).expect("is cut off");
    for outcome in [card.prepare(&plan(1)).err(), card.restore(card.name()).err()] {
        let error = outcome.expect("is broken").to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
    fs::write(&record, &text).expect("is whole again");
    card.restore(card.name()).expect("comes back");
    assert!(!card.settings().contains(&PORT.to_string()));
}
