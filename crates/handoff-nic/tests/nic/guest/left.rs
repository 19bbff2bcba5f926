//! `restore` puts back what was left or kept, whatever has happened meanwhile.

use std::fs;

use handoff_nic::{Directory, Error, Nic, restore_all};
use handoff_testbed::Pair;
use handoff_testbed::helpers::eventually;

use super::card::{Card, plan, wait_until};
use super::fixture;
use crate::zcrx::Receiver;

#[test]
fn a_killed_process_leaves_what_restore_needs() {
    let card = Card::new();
    let before = card.settings();
    let mut child = fixture::prepared(&card);
    let set_aside = card.settings();
    assert_ne!(set_aside, before);
    let error = card.restore(card.name()).expect_err("its process lives").to_string();
    assert!(error.contains(&format!("is prepared by process {}: end it", child.id())), "{error}");
    child.kill().expect("kills");
    child.wait().expect("ends");
    assert_eq!(card.settings(), set_aside);
    let error = card.prepare(&plan(1)).expect_err("is left").to_string();
    assert!(error.contains("which is gone: handoff nic restore"), "{error}");
    let undone = card.restore(card.name()).expect("comes back");
    assert_eq!(undone.put_back.len(), 4, "{undone:?}");
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
}

#[test]
fn a_kill_at_any_time_is_put_back() {
    let card = Card::new();
    let before = card.settings();
    for pause in (0..12).map(|turn| turn * 3) {
        let mut child = fixture::preparing(&card);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        child.kill().expect("kills");
        child.wait().expect("ends");
        match card.restore(card.name()) {
            // It had not begun.
            Err(Error::NotPrepared { .. }) => {}
            undone => assert!(undone.expect("comes back").left.is_empty()),
        }
        assert_eq!(card.settings(), before, "killed after {pause} ms");
    }
}

#[test]
fn what_somebody_else_has_changed_is_left_and_told() {
    let card = Card::new();
    let name = card.name();
    card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
    card.sh(&format!("ethtool -X {name} weight 1 0 0 0; ethtool -N {name} delete 0"));
    let undone = card.restore(name).expect("goes on");
    assert_eq!(undone.left, ["RSS leads to queue 0, by somebody else"]);
    assert_eq!(undone.put_back, ["rule for TCP over IPv6 to port 8000", "header/data split"]);
    let nic = card.look();
    assert_eq!(nic.table().expect("has one").queues().len(), 1);
    assert!(nic.rules.expect("has some").rules.is_empty());
    card.nothing_is_written_down();
}

#[test]
fn a_renamed_interface_is_found_by_both_names() {
    for by_old_name in [true, false] {
        let card = Card::new();
        let name = card.name();
        let before = card.settings();
        card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
        card.sh(&format!(
            "ip link set {name} down; ip link set {name} name other0; ip link set other0 up"
        ));
        let undone = card.restore(if by_old_name { name } else { "other0" }).expect("comes back");
        assert_eq!(undone.interface, "other0");
        card.sh(&format!(
            "ip link set other0 down; ip link set other0 name {name}; ip link set {name} up"
        ));
        assert_eq!(card.settings(), before);
    }
}

/// While it is down, the kernel names no queues, and one of them may be bound.
#[test]
fn an_interface_that_is_down_keeps_its_settings() {
    let card = Card::new();
    let name = card.name();
    let before = card.settings();
    card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
    let set_aside = card.settings();
    let bound = card.inside(|| Receiver::bind(card.look().index, 3, 512, 4_096)).expect("binds");
    card.sh(&format!("ip link set {name} down"));
    let error = card.restore(name).expect_err("nobody knows").to_string();
    assert!(error.contains(&format!("ip link set {name} up")), "{error}");
    assert_eq!(card.settings(), set_aside);
    card.sh(&format!("ip link set {name} up"));
    drop(bound);
    card.restore(name).expect("comes back");
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
}

#[test]
fn rules_that_somebody_else_has_added_stay() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!("ethtool -K {name} ntuple off"));
    card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
    card.sh(&format!("ethtool -N {name} flow-type udp4 dst-port 53 action 0"));
    let undone = card.restore(name).expect("goes on");
    assert_eq!(undone.left, ["rx-ntuple-filter stays on for rules of somebody else"]);
    let nic = card.look();
    assert_eq!(nic.rules.expect("has one").rules.len(), 1);
    assert!(card.sh(&format!("ethtool -k {name}")).contains("ntuple-filters: on"));
    card.nothing_is_written_down();
}

#[test]
fn an_interface_that_goes_away_takes_its_settings_along() {
    let card = Card::new();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    card.sh(&format!("ip link del {}", card.name()));
    let error = prepared
        .steer(handoff_nic::Flow::port(handoff_nic::Ip::V4, 99), 3)
        .expect_err("is gone")
        .to_string();
    assert!(error.contains("is gone"), "{error}");
    let undone = prepared.undo().expect("has nothing to do");
    assert!(undone.gone && undone.put_back.is_empty(), "{undone:?}");
    card.nothing_is_written_down();

    let card = Card::new();
    card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
    card.sh(&format!("ip link del {}", card.name()));
    assert!(card.restore(card.name()).expect("has nothing to do").gone);
    card.nothing_is_written_down();
    let error = card.restore(card.name()).expect_err("there is none").to_string();
    assert!(error.contains("none was prepared"), "{error}");
}

#[test]
fn another_interface_of_the_same_number_is_left_alone() {
    let card = Card::new();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    let record = prepared.keep().expect("is written down");
    let set_aside = card.settings();
    let text = fs::read_to_string(&record).expect("is there");
    let address = card.look().address;
    let other = text.replace(&address, "02:00:00:00:00:99").replace(card.name(), "eth9");
    fs::write(&record, other).expect("is another's");
    assert!(card.restore("eth9").expect("is gone").gone);
    assert_eq!(card.settings(), set_aside);
}

/// A new namespace gets the lowest free inode, soon that of one before.
#[test]
fn namespaces_that_are_gone_leave_nothing_to_the_next() {
    let mut place = Some(tempfile::tempdir().expect("a directory"));
    let mut gone = Vec::new();
    eventually("a namespace gets the inode of one before", || {
        let card = Card { pair: Pair::wire(1_500).expect("a pair"), place: place.take()? };
        assert!(card.inside(|| restore_all(&card.directory())).expect("reads").is_empty());
        let inode = card.look().netns;
        card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
        place = Some(card.place);
        let is_again = gone.contains(&inode);
        gone.push(inode);
        is_again.then_some(())
    });
}

#[test]
fn all_of_a_namespace_are_put_back_and_no_others() {
    let (card, other) = (Card::new(), Card::new());
    let befores = [card.settings(), other.settings()];
    let directory: Directory = card.directory();
    for one in [&card, &other] {
        let prepared = one.inside(|| handoff_nic::Prepared::new(one.name(), &plan(1), &directory));
        prepared.expect("is fit").keep().expect("is written down");
    }
    let all = card.inside(|| restore_all(&directory)).expect("reads");
    assert_eq!(all.len(), 1);
    assert_eq!(card.settings(), befores[0]);
    assert_ne!(other.settings(), befores[1]);
    assert_eq!(directory.records().expect("reads").len(), 1);
    other.inside(|| restore_all(&directory)).expect("reads").remove(0).expect("comes back");
    assert_eq!(other.settings(), befores[1]);
}

#[test]
fn an_interface_moved_to_another_namespace_is_not_here_any_more() {
    let card = Card::new();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    let name = card.name();
    card.sh(&format!("ip link set {name} netns 1"));
    drop(prepared);
    card.nothing_is_written_down();
    wait_until("it is there", || Nic::look(name).is_ok());
}
