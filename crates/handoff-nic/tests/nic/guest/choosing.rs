//! Which queues are chosen, and that everything comes back.

use std::fs;
use std::thread;

use handoff_nic::{Bound, Error, Plan, Wanted};

use super::card::{Card, plan};
use crate::zcrx::Receiver;

#[test]
fn everything_that_can_be_changed_comes_back() {
    let card = Card::new();
    let before = card.settings();
    for (queues, chosen) in [(1, vec![3]), (3, vec![1, 2, 3]), (7, (1..8).collect())] {
        let plan = Plan { hardware_gro: true, ..plan(queues) };
        let nic = card.look();
        let steps: Vec<_> = plan.steps(&nic).expect("possible").into_iter().collect();
        assert_eq!(plan.queues(&nic).expect("possible"), chosen);
        assert_eq!(card.settings(), before, "planning changes nothing");

        let prepared = card.prepare(&plan).expect("is fit");
        assert_eq!(prepared.queues(), chosen);
        assert_eq!(prepared.steps(), steps, "what is done is what was said");
        let nic = card.look();
        assert!(nic.rings.expect("has some").splits() && nic.hardware_gro.on);
        let table = nic.table().expect("has one").queues();
        assert!(chosen.iter().all(|queue| !table.contains(queue)), "{table:?}");
        assert_eq!(nic.rules.as_ref().expect("has some").rules.len(), 2);
        let record = nic.record(&card.directory()).expect("reads").expect("is written down");
        assert_eq!((record.queues.clone(), record.changes.len()), (chosen, steps.len()));
        assert!(plan.steps(&nic).is_err() || queues == 7, "what is led to is passed over");

        let undone = prepared.undo().expect("comes back");
        assert_eq!((undone.put_back.len(), undone.left.len()), (steps.len(), 0));
        assert_eq!(card.settings(), before);
        card.nothing_is_written_down();
    }
}

#[test]
fn a_table_that_was_set_comes_back_as_it_was() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!("ethtool -X {name} weight 1 2 0 5"));
    let before = card.settings();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    assert!(!card.look().table().expect("has one").queues().contains(&3));
    drop(prepared);
    assert_eq!(card.settings(), before);
}

/// The guest's ethtool has no word for the threshold, but a record can ask for one.
#[test]
fn a_threshold_is_taken_away_and_comes_back() {
    let card = Card::new();
    let threshold = || card.look().rings.expect("has some").split_threshold;
    let record = card.prepare(&plan(1)).expect("is fit").keep().expect("is written down");
    let text = fs::read_to_string(&record).expect("is there");
    let asked = r#""changes":[{"ring":{"setting":"split-threshold","from":100,"to":0}},"#;
    fs::write(&record, text.replace(r#""changes":["#, asked)).expect("is written");
    card.restore(card.name()).expect("comes back");
    assert_eq!(threshold(), Some(100));

    let prepared = card.prepare(&plan(1)).expect("is fit");
    let step_text = "split threshold: 100 -> 0 bytes";
    assert!(prepared.steps().iter().any(|step| step.text.starts_with(step_text)));
    assert_eq!(threshold(), Some(0));
    drop(prepared);
    assert_eq!(threshold(), Some(100));
}

#[test]
fn queues_of_others_are_left_alone() {
    let card = Card::new();
    let name = card.name();
    let output = card.sh(&format!("ethtool -X {name} context new start 2 equal 1"));
    card.sh(&format!("ethtool -N {name} flow-type udp4 dst-port 53 action 3"));
    let context = output.trim().rsplit(' ').next().expect("a number").to_owned();
    let before = card.settings();
    let prepared = card.prepare(&plan(2)).expect("has one, and can have more");
    assert_eq!(prepared.queues(), [1, 4]);
    drop(prepared);
    assert_eq!(card.settings(), before);
    for (queue, expected) in [
        (0, "own traffic"),
        (2, &format!("RSS context {context}")[..]),
        (3, "what rule 0 leads to"),
    ] {
        let wanted = Plan { queues: Wanted::These(vec![queue]), ..plan(1) };
        let error = card.prepare(&wanted).expect_err("is another's");
        assert!(matches!(error, Error::NotPossible { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = card.prepare(&plan(6)).expect_err("there are 5").to_string();
    assert!(error.contains("can set aside 5"), "{error}");
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
}

#[test]
fn a_queue_that_is_bound_is_passed_over() {
    let card = Card::new();
    let name = card.name();
    card.sh(&format!("ethtool -G {name} tcp-data-split on; ethtool -X {name} equal 3"));
    let before = card.settings();
    let bound = card.inside(|| Receiver::bind(card.look().index, 3, 512, 4_096)).expect("binds");
    let nic = card.look();
    assert_eq!(nic.queues.as_ref().expect("told")[3].bound, Some(Bound::IoUring));
    assert!(nic.obstacles().iter().any(|other| other.cause.contains("queue 3 is bound")));
    let prepared = card.prepare(&plan(1)).expect("has others");
    assert_eq!(prepared.queues(), [2]);
    drop(prepared);
    assert_eq!(card.settings(), before);
    let wanted = Plan { queues: Wanted::These(vec![3]), ..plan(1) };
    let error = card.prepare(&wanted).expect_err("is bound").to_string();
    assert!(error.contains("is bound to io_uring: choose another"), "{error}");
    drop(bound);
}

#[test]
fn of_two_at_once_one_is_told_of_the_other() {
    let card = Card::new();
    let before = card.settings();
    for _ in 0..3 {
        let namespace = card.pair.right.namespace();
        let prepare = || {
            let (directory, name) = (card.directory(), card.name());
            let one = move || handoff_nic::Prepared::new(name, &plan(1), &directory);
            namespace.spawn("prepares", one).expect("starts")
        };
        let both = [prepare(), prepare()].map(|one| one.join().expect("ends"));
        let (prepared, refused): (Vec<_>, Vec<_>) = both.into_iter().partition(Result::is_ok);
        assert_eq!((prepared.len(), refused.len()), (1, 1));
        let error = refused.into_iter().next().and_then(Result::err).expect("is one").to_string();
        assert!(error.contains("prepared"), "{error}");
        thread::spawn(move || drop(prepared)).join().expect("goes in another namespace too");
        assert_eq!(card.settings(), before);
        card.nothing_is_written_down();
    }
}
