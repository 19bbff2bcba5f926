//! Which queue a packet comes by.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use handoff_sys::netdev;
use handoff_sys::netlink::{Attributes, Generic, Netlink};
use handoff_testbed::PairEnd;
use handoff_testbed::helpers::eventually;
use netlink_packet_core::NLM_F_DUMP;

use crate::testbed::{MIB, PORT, counters, exchange, interface_index, pair, refused, run, steer};

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
    }
    // The second replaced the first, which is for the same packets.
    let output = run(&pair.right, &format!("ethtool -n {}", pair.right.device()));
    assert!(output.contains("Total 1 rules"), "{output}");
}

#[test]
fn contexts_and_tables_spread_flows() {
    let pair = pair(1_500);
    let device = pair.right.device();
    let bytes_of =
        |count: &BTreeMap<String, u64>, queue: u32| count[&format!("queue{queue}_rx_bytes")];
    let output = run(&pair.right, &format!("ethtool -X {device} context new start 2 equal 1"));
    let context = output.trim().rsplit(' ').next().expect("a number");
    let rule = format!("flow-type tcp6 dst-port {PORT} context {context}");
    run(&pair.right, &format!("ethtool -N {device} {rule}"));
    exchange(&pair, pair.right.v6(), MIB);
    let count = counters(&pair.right);
    assert!(bytes_of(&count, 2) > MIB as u64, "{count:?}");
    // The rule is about IPv6; all other packets go where the table says.
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
    let output = run(end, &format!("ethtool -X {device} context new start 2 equal 2"));
    let context = output.trim().rsplit(' ').next().expect("a number");
    // There are four: the context's last is 3, to which the rule's is added.
    let why = refused(end, &format!("ethtool -N {device} {RULE} context {context} action 1"));
    assert!(why.contains("Invalid argument"), "{why}");
    run(end, &format!("ethtool -N {device} {RULE} context {context} action 0"));
    run(end, &format!("ethtool -N {device} delete 0"));
    // Nor does the context grow past them under a rule.
    run(end, &format!("ethtool -X {device} context {context} start 0 equal 2"));
    run(end, &format!("ethtool -N {device} {RULE} context {context} action 2"));
    refused(end, &format!("ethtool -X {device} context {context} start 1 equal 2"));
    // Nor do queues go that both name together.
    refused(end, &format!("ethtool -L {device} combined 3"));
    exchange(&pair, pair.right.v4(), MIB);
    run(end, &format!("ethtool -N {device} delete 0"));
    run(end, &format!("ethtool -X {device} context {context} start 1 equal 2"));
    run(end, &format!("ethtool -L {device} combined 3"));
}

#[test]
fn what_the_hash_is_made_of_can_be_chosen() {
    let pair = pair(1_500);
    let (end, device) = (&pair.right, pair.right.device());
    let queues_hit = |fields: &str| {
        run(end, &format!("ethtool -N {device} rx-flow-hash udp6 {fields}"));
        let to = end.namespace().run(|| UdpSocket::bind((end.v6(), 0)));
        let to = to.expect("enters").expect("binds").local_addr().expect("bound");
        let before = counters(end);
        for _ in 0..64 {
            // Each from its own port, and with its own label.
            let from = pair.left.namespace().run(|| UdpSocket::bind((pair.left.v6(), 0)));
            from.expect("enters").expect("binds").send_to(&[0; 600], to).expect("sends");
        }
        eventually("all has arrived", || {
            let now = counters(end);
            let arrived = |queue: u32| {
                let name = format!("queue{queue}_rx_bytes");
                now[&name] - before[&name]
            };
            // A few small packets resolve neighbours.
            let is_all = (0..4).map(arrived).sum::<u64>() >= 64 * 600;
            is_all.then(|| (0..4).filter(|&queue| arrived(queue) > 600).count())
        })
    };
    assert_eq!(queues_hit("sdfn"), 4);
    assert_eq!(queues_hit("sd"), 1);
    assert_eq!(queues_hit("sdn"), 1, "one port, of many senders");
    assert_eq!(queues_hit("sdl"), 4, "each has a label of its own");
    let output = run(end, &format!("ethtool -n {device} rx-flow-hash udp6"));
    assert!(output.contains("IPv6 Flow Label") && !output.contains("L4 bytes"), "{output}");
    let output = run(end, &format!("ethtool -n {device} rx-flow-hash tcp6"));
    assert!(output.contains("L4 bytes 0 & 1") && output.contains("L4 bytes 2 & 3"), "{output}");
    refused(end, &format!("ethtool -N {device} rx-flow-hash tcp4 sdfnl"));
    refused(end, &format!("ethtool -N {device} rx-flow-hash udp4 v"));
}

/// The interrupts that the netdev family reports for the interface at this end.
fn napi_interrupts(end: &PairEnd) -> Vec<u32> {
    let index = interface_index(end);
    let asked = end.namespace().run(|| {
        let mut netlink = Netlink::generic()?;
        let family = netlink.family(netdev::FAMILY)?;
        let of = Attributes::new().with(netdev::NAPI_IFINDEX, &index.to_ne_bytes());
        netlink.ask(Generic::new(family, netdev::NAPI_GET, of), NLM_F_DUMP)
    });
    let napis = asked.expect("enters").expect("answers");
    napis.iter().filter_map(|napi| napi.attributes.number(netdev::NAPI_IRQ)).collect()
}

/// The interrupt of this queue, and how often each processor has taken it.
fn interrupts(end: &PairEnd, queue: u32) -> (u32, Vec<u64>) {
    // An interface of another test, not yet gone, may have had the same name.
    let ours = napi_interrupts(end);
    let name = format!("{}-{queue}", end.device());
    let table = fs::read_to_string("/proc/interrupts").expect("reads");
    let found = table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let irq = words.next()?.trim_end_matches(':').parse().ok()?;
        let counts = words.map_while(|word| word.parse().ok()).collect();
        (ours.contains(&irq) && line.ends_with(&name)).then_some((irq, counts))
    });
    found.unwrap_or_else(|| panic!("no {name} of {ours:?} in {table}"))
}

#[test]
fn an_interrupt_of_each_queue_runs_where_it_is_told() {
    let pair = pair(1_500);
    let (end, device) = (&pair.right, pair.right.device());
    steer(end, 2);
    for cpu in [1, 0] {
        let (irq, _) = interrupts(end, 2);
        fs::write(format!("/proc/irq/{irq}/smp_affinity"), format!("{:x}", 1 << cpu)).expect("set");
        // What was under way may have come before.
        let (_, before) = interrupts(end, 2);
        // It stays through everything that remakes rings.
        run(end, &format!("ethtool -L {device} combined 3 && ethtool -G {device} rx 64"));
        run(end, &format!("ip link set {device} down && ip link set {device} up"));
        exchange(&pair, pair.right.v4(), MIB);
        let (same, after) = interrupts(end, 2);
        assert_eq!(same, irq);
        let taken: Vec<u64> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        assert!(taken[cpu] > 0 && taken[1 - cpu] == 0, "CPU {cpu}: {taken:?}");
    }
    // It is one of several, as with a card.
    let (irq, _) = interrupts(end, 2);
    fs::write(format!("/proc/irq/{irq}/smp_affinity"), "3").expect("set");
    let (_, before) = interrupts(end, 2);
    exchange(&pair, pair.right.v4(), MIB);
    let (_, after) = interrupts(end, 2);
    let taken: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!(taken.iter().filter(|taken| **taken > 0).count(), 1, "{taken:?}");
}
