//! By our own engine.

use handoff_lab::topology::Pair;

use crate::session::{errors, rds, stress};

fn pair() -> Pair {
    Pair::new(9000).expect("namespaces and veth")
}

#[test]
fn requests_are_answered_and_counted() {
    let pair = pair();
    let more = ["-q", "16K", "-a", "1K", "-t", "4", "-d", "16"];
    // Either side connects to the other.
    for [from, to] in [[&pair.left, &pair.right], [&pair.right, &pair.left]] {
        let [asked, answered] = stress(from, to, "own", &more);
        assert_eq!((&asked["engine"], &answered["engine"]), (&"rds-own".into(), &"rds-own".into()));
        let messages = asked["messages"].as_u64().expect("a number");
        assert_eq!(asked["bytes"].as_u64(), Some(messages * 16_384));
    }
}

#[test]
fn copies_are_asked_for_and_reported() {
    let pair = pair();
    let [asked, _] = stress(&pair.left, &pair.right, "own", &["--copy", "-q", "100K"]);
    assert_eq!(asked["sent"]["zero_copy"], 0);
    assert!(asked["sent"]["copied"].as_u64() >= asked["bytes"].as_u64(), "{asked}");
}

#[test]
fn what_cannot_be_is_told() {
    let pair = pair();
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["stress", &own, "-s", &peer, "--engine", "own", "--timeout", "1"];
    let silent = rds(&pair.left, &asks);
    assert_eq!(silent.status.code(), Some(1));
    assert!(errors(&silent).contains(&format!("no answer for 1 s from any of {peer}")));
    let long = rds(&pair.left, &[&asks[..], &["-q", "2M"]].concat());
    assert_eq!(long.status.code(), Some(2));
    assert!(errors(&long).contains("16 bytes to 1M"), "{}", errors(&long));
    let kernel = rds(&pair.left, &["ping", &own, &peer]);
    if kernel.status.code() == Some(3) {
        assert!(errors(&kernel).contains("remedy"), "{}", errors(&kernel));
    } else {
        assert_eq!(kernel.status.code(), Some(1), "nobody is there: {}", errors(&kernel));
    }
    let foreign = rds(&pair.left, &["stress", "192.0.2.77", "--engine", "own"]);
    assert_eq!(foreign.status.code(), Some(1));
    assert!(errors(&foreign).contains("listen for RDS peers"), "{}", errors(&foreign));
}
