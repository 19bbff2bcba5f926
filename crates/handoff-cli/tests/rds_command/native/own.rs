//! By our own engine.

use handoff_testbed::Pair;

use crate::copy::{Files, sender};
use crate::peer::play;
use crate::session::{Answering, goes_on_after_a_restart, loses_pings, rds, stress};

fn pair() -> Pair {
    Pair::new(9000).expect("namespaces and veth")
}

#[test]
fn requests_are_answered_and_counted() {
    let pair = pair();
    let more = ["-q", "16K", "-a", "1K", "-t", "4", "-d", "16"];
    // Either side connects to the other.
    for [from, to] in [[&pair.left, &pair.right], [&pair.right, &pair.left]] {
        let [asked, answered] = stress(from, to, &["--engine", "own"], 1, &more);
        assert_eq!((&asked["engine"], &answered["engine"]), (&"rds-own".into(), &"rds-own".into()));
        let messages = asked["messages"].as_u64().expect("a number");
        assert_eq!(asked["bytes"].as_u64(), Some(messages * 16_384));
    }
}

#[test]
fn copies_are_asked_for_and_reported() {
    let pair = pair();
    let [asked, _] =
        stress(&pair.left, &pair.right, &["--engine", "own"], 1, &["--copy", "-q", "100K"]);
    assert_eq!(asked["sent"]["zero_copy"], 0);
    assert!(asked["sent"]["copied"].as_u64() >= asked["bytes"].as_u64(), "{asked}");
}

#[test]
fn pings_are_answered_whoever_connects() {
    let pair = pair();
    for [from, to] in [[&pair.left, &pair.right], [&pair.right, &pair.left]] {
        let answering = Answering::start(to, "own");
        let [own, peer] = [from, to].map(|end| end.v4().to_string());
        let asks = ["ping", &own, &peer, "-c", "3", "--engine", "own", "--json"];
        let answers = rds(from, &[&asks[..], &["--timeout", "60"]].concat()).report();
        assert_eq!(answers["engine"], "rds-own");
        assert_eq!(answers["answers_us"].as_array().map(Vec::len), Some(3), "{answers}");
        answering.stop();
    }
}

#[test]
fn pings_without_an_answer_are_counted() {
    let pair = pair();
    loses_pings(&pair, &Answering::start(&pair.right, "own"), "own");
}

#[test]
fn what_cannot_be_is_told() {
    let pair = pair();
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["stress", &own, "-s", &peer, "--engine", "own", "--timeout", "1"];
    let silent = rds(&pair.left, &asks);
    assert_eq!(silent.code, Some(1));
    assert!(silent.stderr.contains(&format!("no answer for 1 s from any of {peer}")));
    let long = rds(&pair.left, &[&asks[..], &["-q", "2M"]].concat());
    assert_eq!(long.code, Some(2));
    assert!(long.stderr.contains("16 bytes to 1M"), "{}", long.stderr);
    let asks = ["ping", &own, &peer, "--engine"];
    let kernel = rds(&pair.left, &[&asks[..], &["kernel"]].concat());
    if kernel.code == Some(3) {
        assert!(kernel.stderr.contains("remedy"), "{}", kernel.stderr);
    } else {
        assert_eq!(kernel.code, Some(1), "nobody is there: {}", kernel.stderr);
    }
    let nobody = rds(&pair.left, &[&asks[..], &["own", "--timeout", "1"]].concat());
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.stderr.contains("does not answer within 1 s"), "{}", nobody.stderr);
    let foreign = rds(&pair.left, &["stress", "192.0.2.77", "--engine", "own"]);
    assert_eq!(foreign.code, Some(1));
    assert!(foreign.stderr.contains("listen for RDS peers"), "{}", foreign.stderr);
}

#[test]
fn a_second_engine_at_an_address_is_refused_with_the_name_of_the_first() {
    let (pair, files) = (pair(), Files::new(100));
    let answering = Answering::start(&pair.right, "own");
    let [own, peer] = [&pair.right, &pair.left].map(|end| end.v4().to_string());
    let holder = format!("{own} already, that of process {} (handoff)", answering.pid());
    // A packet filter might lead peers to the other port.
    let asks = ["ping", &own, &peer, "--engine", "own", "--listen-port", "7000"];
    let pinged = rds(&pair.right, &asks);
    let sent = sender(&pair.right, &files.source(), &pair.left, &["--rds", "own"]).end();
    for refused in [pinged, sent] {
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(&holder), "{refused:?}");
        assert!(refused.stderr.contains("use another of this host's addresses"), "{refused:?}");
    }
    let asks = ["ping", &peer, &own, "--engine", "own", "--timeout", "60", "-c", "1"];
    assert_eq!(rds(&pair.left, &asks).code, Some(0));
    assert_eq!(answering.stop().0, Some(130));
    // It has ended.
    let answering = Answering::start(&pair.right, "own");
    assert_eq!(rds(&pair.left, &asks).code, Some(0));
    answering.stop();
}

#[test]
fn a_run_that_has_lost_requests_has_failed() {
    let pair = pair();
    // It answers all but the first.
    let peer = play(&pair.right, pair.right.v4(), async |peer| {
        peer.hear().await.expect("asks");
        while let Some(request) = peer.hear().await {
            let answer = [b"hoAN".as_slice(), &request.payload[4..16], &[0; 240]].concat();
            peer.say(request.from, &answer).await;
        }
    });
    let [own, to] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["stress", &own, "-s", &to, "--engine", "own", "--no-verify", "--json"];
    let timeout = ["-d", "2", "--time", "2", "--timeout", "60"];
    let asked = rds(&pair.left, &[&asks[..], &timeout].concat());
    assert_eq!((asked.code, &asked.json()["lost"]), (Some(1), &1.into()), "{asked:?}");
    assert!(asked.stderr.contains("1 requests were lost"), "{asked:?}");
    peer.join().expect("plays");
}

#[test]
fn requests_go_on_when_the_answering_side_was_killed_and_started_again() {
    goes_on_after_a_restart(&pair(), "own");
}
