//! By the kernel's sockets.

use std::time::{Duration, Instant};

use handoff_rds::kernel::{Mode, Socket};
use handoff_testbed::running::{Running, TIMEOUT};
use handoff_testbed::{Netem, Pair, load};

use crate::hosts::{hosts, ip, stranger_at};
use crate::session::{
    Answering, command, goes_on_after_a_restart, loses_pings, many_packets_come_to, rds, request,
    stress,
};
use crate::strangers::Visited;

fn pair() -> Pair {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    Pair::new(9000).expect("the lab's kernel has veth")
}

#[test]
fn requests_are_answered_and_counted() {
    let pair = pair();
    let more = ["-q", "8K", "-t", "2", "-d", "4"];
    let [asked, _] = stress(&pair.left, &pair.right, &[], 1, &more);
    assert_eq!(asked["engine"], "rds-kernel");
    assert_eq!((&asked["sent"]["copied"], &asked["sent"]["zero_copy"]), (&0.into(), &0.into()));
    let info = rds(&pair.left, &["info", "--json"]).report();
    let connection = &info["connections"][0];
    assert_eq!(connection["peer"], pair.right.v4().to_string());
    // Both ends have closed theirs.
    assert_eq!(info["sockets"].as_array().map(Vec::len), Some(0), "{info}");
    assert_eq!(info["queues"].as_array().map(Vec::len), Some(0), "{info}");
    assert!(info["counters"].as_array().is_some_and(|all| all.len() > 10), "{info}");
}

#[test]
fn a_ping_is_answered_or_its_absence_told() {
    let pair = pair();
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["ping", &own, &peer, "-c", "3", "--json", "--timeout", "60"];
    let answers = rds(&pair.left, &asks).report();
    assert_eq!(answers["answers_us"].as_array().map(Vec::len), Some(3));
    let [a, b, c, _] = pair.left.v4().octets();
    let absent = format!("{a}.{b}.{c}.77");
    let nobody = rds(&pair.left, &["ping", &own, &absent, "-c", "1", "--timeout", "1"]);
    assert_eq!(nobody.code, Some(1), "{}", nobody.stderr);
    assert!(nobody.stderr.contains("does not answer within 1 s"), "{}", nobody.stderr);
}

#[test]
fn a_late_answer_is_none_to_the_next_ping() {
    const AWAY: Duration = Duration::from_secs(3);
    let pair = pair();
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["ping", &own, &peer, "--engine", "kernel", "-c"];
    let first = rds(&pair.left, &[&asks[..], &["1", "--timeout", "60"]].concat());
    assert_eq!(first.code, Some(0), "{first:?}");
    pair.right
        .set_netem(&Netem { delay: AWAY, ..Netem::default() })
        .expect("the lab's kernel has it");
    // Each answer comes while the next ping waits for its own.
    let late = rds(&pair.left, &[&asks[..], &["3", "--timeout", "2"]].concat());
    let stdout = String::from_utf8_lossy(&late.stdout);
    let pings: Vec<_> = stdout.lines().filter_map(|line| line.split_once(": ")).collect();
    assert_eq!(pings.len(), 3, "{late:?}");
    for (_, ended) in pings {
        // A busy machine may look for an answer only after its time.
        let took = ended.strip_suffix(" us").map(|took| took.parse().expect("a number"));
        assert!(took.is_none_or(|took| Duration::from_micros(took) >= AWAY), "{late:?}");
    }
}

#[test]
fn requests_go_on_when_the_answering_side_was_killed_and_started_again() {
    goes_on_after_a_restart(&pair(), "kernel");
}

#[test]
fn who_takes_no_answers_delays_no_others() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let (pair, to) = hosts();
    let answering = Answering::at(&pair.right, to, &["--no-verify"]);
    let other = stranger_at(&pair.left, 0).to_string();
    let [own, peer] = [pair.left.v4(), to].map(|address| address.to_string());
    let asks = |from, time| ["stress", from, "-s", &peer, "--no-verify", "--json", "--time", time];
    // More than one of the kernel's sockets has under way.
    let many = [&asks(&other, "600")[..], &["-a", "1M", "-d", "64"]].concat();
    let gone = Running::start(&mut command(&pair.left, &many));
    many_packets_come_to(&pair.left);
    ip(&pair.left, &["addr", "del", &format!("{other}/24"), "dev", pair.left.device()]);
    let asked = rds(&pair.left, &[&asks(&own, "1")[..], &["--timeout", "60"]].concat()).report();
    assert!(asked["messages"].as_u64() > Some(0), "{asked}");
    drop(gone);
    assert_eq!(answering.stop().0, Some(130));
}

/// Each gets a socket of its own, as long as there are descriptors.
#[test]
fn more_are_answered_than_there_are_descriptors_for() {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let (pair, to) = hosts();
    let answering = Answering::at(&pair.right, to, &[]);
    Visited::new(answering.pid()).leave_descriptors(16);
    let asking: Vec<_> = (0..20)
        .map(|number| {
            let from = (stranger_at(&pair.left, number), 0).into();
            let bound = pair.left.namespace().run(|| Socket::<Vec<u8>>::bind(from));
            let asking = bound.expect("enters").expect("the address is there");
            let asked = asking.send((to, 4000).into(), request(1, 16), 0, Mode::Copy);
            asked.expect("nothing else is under way");
            asking
        })
        .collect();
    for asking in asking {
        let deadline = Instant::now() + TIMEOUT;
        while asking.receive().expect("is there").is_none() {
            assert!(Instant::now() < deadline, "{} gets no answer", asking.local_addr());
            asking.wait_readable(TIMEOUT).expect("waits");
        }
    }
    assert_eq!(answering.stop().0, Some(130));
}

#[test]
fn who_answers_says_that_anyone_may_ask() {
    let pair = pair();
    let to = pair.right.v4().to_string();
    let answering = Running::start(&mut command(&pair.right, &["stress", &to]));
    let log = answering.lines("answering").concat();
    assert!(log.contains("engine rds-kernel"), "{log}");
    assert!(log.contains(&format!("anyone who reaches {to}:16385 may send")), "{log}");
}

#[test]
fn ours_asks_the_kernels() {
    let pair = pair();
    let _answering = Answering::start(&pair.right, "kernel");
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let asks = ["stress", &own, "-s", &peer, "--engine", "own", "--time", "1", "--json", "-d", "4"];
    let asked = rds(&pair.left, &[&asks[..], &["--timeout", "100"]].concat());
    assert!(asked.stderr.contains("rds_tcp"), "{}", asked.stderr);
    assert_eq!(asked.report()["corrupt"], 0);
}

#[test]
fn ours_answers_the_kernels_beside_a_kernel_that_has_the_port() {
    let pair = pair();
    let [own, peer] = [&pair.left, &pair.right].map(|end| end.v4().to_string());
    let taken = ["ping", &peer, &own, "-c", "1", "--engine", "own", "--timeout", "1"];
    let taken = rds(&pair.right, &taken);
    assert!(taken.stderr.contains("--listen-port"), "{taken:?}");
    let answering = Answering::at(&pair.right, pair.right.v4(), &["--listen-port", "17000"]);
    pair.right.redirect(16_385, 17_000).expect("the lab's kernel leads packets there");
    let asks = ["ping", &own, &peer, "-c", "3", "--json", "--timeout", "60"];
    let answers = rds(&pair.left, &asks).report();
    assert_eq!((&answers["engine"], &answers["lost"]), (&"rds-kernel".into(), &0.into()));
    loses_pings(&pair, &answering, "kernel");
    let (_, answered) = answering.stop();
    assert_eq!(answered["engine"], "rds-own");
    let asks = ["ping", &own, &peer, "--engine", "kernel", "--listen-port", "17000"];
    let kernel = rds(&pair.left, &asks);
    assert_eq!(kernel.code, Some(2), "{kernel:?}");
    assert!(kernel.stderr.contains("goes with --engine own"), "{kernel:?}");
}
