//! Unfit interfaces and users without permission: the answer says what helps.

use handoff_nic::{Error, Nic, Prepared, Weight};
use handoff_testbed::Pair;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::card::{Card, plan};

/// Cause and remedy of obstacles that nothing removes.
#[track_caller]
fn blocking(nic: &Nic) -> (String, String) {
    let mut all = nic.obstacles().into_iter().filter(|other| other.weight == Weight::Blocks);
    let first = all.next().expect("something is in the way");
    assert_eq!(all.next(), None);
    (first.cause, first.remedy.expect("something helps"))
}

#[test]
fn interfaces_without_queues_of_a_card_say_so() {
    let pair = Pair::new(1_500).expect("a cable");
    let look = |name| pair.right.namespace().run(|| Nic::look(name)).expect("enters");
    let (cause, _) = blocking(&look("lo").expect("is there"));
    assert!(cause.contains("loopback"), "{cause}");
    let veth = look(pair.right.device()).expect("is there");
    let (cause, remedy) = blocking(&veth);
    assert!(cause.contains("veth, has no header/data split"), "{cause}");
    assert!(remedy.contains("a network card"), "{remedy}");
    let error = look("eth77").expect_err("there is none");
    assert!(matches!(error, Error::NoInterface { .. }), "{error}");
    assert!(error.to_string().contains("here are: lo, "), "{error}");
}

#[test]
fn bonds_vlans_and_bridges_name_what_they_stand_on() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!(
        "ip link set {name} down; ip link add bond7 type bond mode active-backup; \
         ip link set {name} master bond7; ip link set bond7 up; \
         ip link add link {name} name vlan7 type vlan id 7; ip link add bridge7 type bridge; \
         ip link set vlan7 master bridge7"
    ));
    for (upper, lower) in [("bond7", name), ("vlan7", name), ("bridge7", "vlan7")] {
        let nic = card.inside(|| Nic::look(upper)).expect("is there");
        let (cause, remedy) = blocking(&nic);
        assert!(cause.contains(&format!(" over {lower}")), "{cause}");
        assert!(remedy.contains(lower), "{remedy}");
        let error = card.inside(|| Prepared::new(upper, &plan(1), &card.directory()));
        assert!(matches!(error, Err(Error::NotPossible { .. })), "{error:?}");
    }
    // The card itself can be prepared, and the answer says what that means.
    let before = card.settings();
    let beware: Vec<_> = card.look().obstacles().into_iter().collect();
    let beware = beware.iter().find(|other| other.weight == Weight::Beware).expect("is told");
    assert!(beware.cause.contains("belongs to bond7 (bond)"), "{beware:?}");
    drop(card.prepare(&plan(1)).expect("is fit"));
    assert_eq!(card.settings(), before);
}

#[test]
fn a_card_that_is_down_or_has_one_queue_says_so() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!("ip link set {name} down"));
    assert_eq!(blocking(&card.look()), ("it is down".into(), format!("ip link set {name} up")));
    card.sh(&format!("ip link set {name} up; ethtool -L {name} combined 1"));
    let before = card.settings();
    let prepared = card.prepare(&plan(1)).expect("can have more");
    assert_eq!((prepared.queues(), card.look().rx_queues()), (&[1][..], 2));
    drop(prepared);
    assert_eq!(card.settings(), before);
    card.sh("ip link add one0 numrxqueues 1 numtxqueues 1 type wire; ip link set one0 up");
    let one = card.inside(|| Nic::look("one0")).expect("is there");
    let (cause, _) = blocking(&one);
    assert!(cause.contains("one rx queue only"), "{cause}");
}

#[test]
fn what_a_driver_can_switch_is_told_from_what_it_cannot() {
    let card = Card::new();
    card.sh("ip link add cable7 type veth");
    let cable = card.inside(|| Nic::look("cable7")).expect("is there");
    for (feature, switchable) in [(card.look().ntuple, true), (cable.ntuple, false)] {
        assert_eq!(feature.switchable, switchable, "{feature:?}");
    }
}

#[test]
fn rules_are_switched_on_and_off_again() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!("ethtool -K {name} ntuple off"));
    let before = card.settings();
    let prepared = card.prepare(&plan(1)).expect("can be switched");
    assert!(card.look().ntuple.on);
    drop(prepared);
    assert_eq!(card.settings(), before);
}

#[test]
fn without_the_capability_looking_works_and_preparing_says_what_is_missing() {
    let card = Card::new();
    let before = card.settings();
    let (directory, name) = (card.directory(), card.name());
    let work = move || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).expect("gives them up");
        let nic = Nic::look(name).expect("everybody may look");
        assert_eq!(nic.rx_queues(), 4);
        let (cause, remedy) = blocking(&nic);
        assert!(cause.contains("may not") && remedy.contains("CAP_NET_ADMIN"), "{cause}, {remedy}");
        let error = Prepared::new(name, &plan(1), &directory).expect_err("it may not");
        assert!(matches!(error, Error::NotPossible { .. }), "{error}");
    };
    card.pair.right.namespace().spawn("powerless", work).expect("starts").join().expect("ends");
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
}
