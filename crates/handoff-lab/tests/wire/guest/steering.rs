//! Which queue a packet comes by.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Duration;

use crate::bed::{MIB, PORT, counters, exchange, pair, refused, run, steer};

#[test]
fn a_rule_names_the_queue() {
    let pair = pair(1_500);
    for queue in [2, 1] {
        steer(&pair.right, queue);
        let before = counters(&pair.right);
        exchange(&pair, pair.right.v4(), MIB);
        let after = counters(&pair.right);
        let arrived = |index: u32| {
            let name = format!("queue{index}_rx_bytes");
            after[&name] - before[&name]
        };
        assert!(arrived(queue) > MIB as u64, "{after:?}");
        for other in (0..4).filter(|&other| other != queue) {
            assert!(arrived(other) < 4_096, "queue {other} got {}", arrived(other));
        }
        run(&pair.right, &format!("ethtool -N {} delete 0", pair.right.device()));
    }
}

#[test]
fn contexts_and_tables_spread_flows() {
    let pair = pair(1_500);
    let device = pair.right.device();
    let bytes_of =
        |count: &BTreeMap<String, u64>, queue: u32| count[&format!("queue{queue}_rx_bytes")];
    let said = run(&pair.right, &format!("ethtool -X {device} context new start 2 equal 1"));
    let context = said.trim().rsplit(' ').next().expect("a number");
    let rule = format!("flow-type tcp6 dst-port {PORT} context {context}");
    run(&pair.right, &format!("ethtool -N {device} {rule}"));
    exchange(&pair, pair.right.v6(), MIB);
    let count = counters(&pair.right);
    assert!(bytes_of(&count, 2) > MIB as u64, "{count:?}");
    // The rule is about IPv6; all the rest goes where the table says.
    run(&pair.right, &format!("ethtool -X {device} start 1 equal 1"));
    let before = counters(&pair.right);
    exchange(&pair, pair.right.v4(), MIB);
    let after = counters(&pair.right);
    assert!(bytes_of(&after, 1) - bytes_of(&before, 1) > MIB as u64, "{after:?}");
    run(&pair.right, &format!("ethtool -N {device} flow-type tcp4 dst-port {PORT} action -1"));
    let refused = pair.left.namespace().run(|| {
        let far = (pair.right.v4(), PORT).into();
        TcpStream::connect_timeout(&far, Duration::from_millis(500))
    });
    assert!(refused.expect("enters").is_err(), "a rule that drops lets a flow pass");
    assert!(counters(&pair.right)["dropped_by_rule"] > 0);
}

#[test]
fn a_rule_and_its_context_name_queues_that_there_are() {
    const RULE: &str = "flow-type tcp4 dst-port 4000";
    let pair = pair(1_500);
    let (end, device) = (&pair.right, pair.right.device());
    let said = run(end, &format!("ethtool -X {device} context new start 2 equal 2"));
    let context = said.trim().rsplit(' ').next().expect("a number");
    // There are four: the context's last is 3, to which the rule's is added.
    let why = refused(end, &format!("ethtool -N {device} {RULE} context {context} action 1"));
    assert!(why.contains("Invalid argument"), "{why}");
    run(end, &format!("ethtool -N {device} {RULE} context {context} action 0"));
    run(end, &format!("ethtool -N {device} delete 0"));
    // Neither does the context grow past them under a rule.
    run(end, &format!("ethtool -X {device} context {context} start 0 equal 2"));
    run(end, &format!("ethtool -N {device} {RULE} context {context} action 2"));
    refused(end, &format!("ethtool -X {device} context {context} start 1 equal 2"));
    // Nor do queues go that both together name.
    refused(end, &format!("ethtool -L {device} combined 3"));
    exchange(&pair, pair.right.v4(), MIB);
    run(end, &format!("ethtool -N {device} delete 0"));
    run(end, &format!("ethtool -X {device} context {context} start 1 equal 2"));
    run(end, &format!("ethtool -L {device} combined 3"));
}
