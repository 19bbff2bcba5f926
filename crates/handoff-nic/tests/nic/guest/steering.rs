//! Steered packets arrive at their queue, and no others.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::mem::replace;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use handoff_nic::{Error, Flow, Ip, Nic, Plan};
use socket2::{Domain, Socket, Type};

use super::card::{Card, PORT, plan, wait_until};
use crate::zcrx::Receiver;

const MIB: usize = 1 << 20;

/// A connection from the left to the right.
fn connect(card: &Card, address: IpAddr, port: u16) -> (TcpStream, TcpStream) {
    connect_from(card, 0, address, port)
}

/// The same, from this port.
fn connect_from(card: &Card, from: u16, address: IpAddr, port: u16) -> (TcpStream, TcpStream) {
    let to = SocketAddr::from((address, port));
    let listener = card.inside(|| TcpListener::bind(to)).expect("binds");
    let any = match address {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let left = card.pair.left.namespace().run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        // A connection over IPv4 may have had the port just before.
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((any, from)).into())?;
        socket.connect(&to.into())?;
        Ok::<_, io::Error>(TcpStream::from(socket))
    });
    let left = left.expect("enters").expect("connects");
    (left, listener.accept().expect("accepts").0)
}

fn carry(mut left: &TcpStream, mut right: &TcpStream) {
    let sent: Vec<u8> = (0..MIB).map(|at| (at ^ (at >> 8)) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| left.write_all(&sent).expect("sends"));
        let mut received = vec![0; MIB];
        right.read_exact(&mut received).expect("receives");
        assert!(received == sent, "what arrived differs");
    });
}

/// Ends a connection from the left, and waits until the right knows.
fn end(mut left: TcpStream, mut right: TcpStream) {
    left.shutdown(Shutdown::Write).expect("ends");
    assert_eq!(right.read(&mut [0]).expect("receives"), 0);
    drop(right);
    assert_eq!(left.read(&mut [0]).expect("receives"), 0);
}

/// The counters when the last packets of connections that have ended are there.
fn settled(card: &Card) -> BTreeMap<String, u64> {
    let mut counters = card.counters();
    wait_until("nothing comes", || {
        let before = replace(&mut counters, card.counters());
        before == counters
    });
    counters
}

/// Bytes that arrived at each queue meanwhile.
fn arrived(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<u64> {
    let name = |queue: usize| format!("queue{queue}_rx_bytes");
    let queues = (0..).map_while(|queue| Some(after.get(&name(queue))? - before[&name(queue)]));
    queues.collect()
}

#[test]
fn a_port_of_both_versions_arrives_at_its_queue() {
    let card = Card::new();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    assert_eq!(prepared.queues(), [3]);
    let right = &card.pair.right;
    for address in [IpAddr::V4(right.v4()), right.v6().into()] {
        let before = card.counters();
        let (left, right) = connect(&card, address, PORT);
        carry(&left, &right);
        end(left, right);
        let count = arrived(&before, &card.counters());
        assert!(count[3] > MIB as u64, "{address}: {count:?}");
        assert!(count[..3].iter().all(|bytes| *bytes < 4_096), "{address}: {count:?}");
    }
    // Packets without a rule stay away from it.
    let before = settled(&card);
    for port in 9_000..9_016 {
        let (left, right) = connect(&card, right.v4().into(), port);
        carry(&left, &right);
    }
    let count = arrived(&before, &card.counters());
    assert_eq!(count[3], 0, "{count:?}");
    assert!(count[..3].iter().sum::<u64>() > 16 * MIB as u64, "{count:?}");
}

#[test]
fn a_port_is_spread_over_queues_by_a_context_and_the_host_keeps_to_its_own() {
    /// Of the device's key.
    const KEY_LEN: usize = 52;
    let card = Card::new();
    // By this key the last bit of a port decides which of two queues it is; the kernel's own key may have all ports
    // of a range lead to one.
    let key = ["5a"; KEY_LEN].join(":");
    card.sh(&format!("ethtool -X {} hkey {key}", card.name()));
    let before = card.settings();
    let spread = Plan { spread: true, ..plan(2) };
    let prepared = card.prepare(&spread).expect("is fit");
    let context = |nic: &Nic| nic.tables.iter().find(|table| table.context != 0).cloned();
    let ours = context(&card.look()).expect("is made");
    assert_eq!(ours.queues(), [2, 3].into());
    let right = &card.pair.right;
    for address in [IpAddr::V4(right.v4()), right.v6().into()] {
        let before = card.counters();
        for from in 20_000..20_016 {
            let (left, right) = connect_from(&card, from, address, PORT);
            carry(&left, &right);
            end(left, right);
        }
        let count = arrived(&before, &card.counters());
        assert!(count[2] > MIB as u64 && count[3] > MIB as u64, "{address}: {count:?}");
        assert!(count[..2].iter().all(|bytes| *bytes < 100_000), "{address}: {count:?}");
        let before = settled(&card);
        for port in 9_000..9_008 {
            let (left, right) = connect(&card, address, port);
            carry(&left, &right);
        }
        let count = arrived(&before, &card.counters());
        assert_eq!(count[2..4], [0, 0], "{address}: {count:?}");
    }
    // Another plan that looks for queues finds them taken.
    for queue in [2, 3] {
        let why = card.look().use_of(queue).expect("taken");
        assert!(why.contains("is what rule"), "{why}");
    }
    // As after a kill, only the record is left.
    prepared.keep().expect("writes");
    let undone = card.restore(card.name()).expect("is there");
    assert!(undone.put_back.iter().any(|what| what == "RSS context 1"), "{undone:?}");
    assert_eq!((context(&card.look()), card.settings()), (None, before));
    card.nothing_is_written_down();
}

/// A guest's virtio-net device has a table of RSS at most.
#[test]
fn the_kernel_tells_which_drivers_have_contexts() {
    let card = Card::new();
    assert!(card.look().rss_contexts);
    let loopback = Nic::look("lo").expect("is there");
    assert!(!loopback.rss_contexts, "{loopback:?}");
    for nic in Nic::all().expect("reads") {
        if nic.driver.as_deref() == Some("virtio_net") {
            assert!(!nic.rss_contexts, "{nic:?}");
        }
    }
}

#[test]
fn contexts_that_others_changed_stay() {
    let card = Card::new();
    let prepared = card.prepare(&Plan { spread: true, ..plan(2) }).expect("is fit");
    card.sh(&format!("ethtool -X {} context 1 equal 2", card.name()));
    let undone = prepared.undo().expect("puts the rest back");
    assert!(undone.left.iter().any(|left| left.contains("RSS context 1")), "{undone:?}");
    assert_eq!(card.look().tables.len(), 2);
}

#[test]
fn one_connection_is_led_to_its_queue_while_its_guard_lives() {
    let card = Card::new();
    let before = card.settings();
    let prepared = card.prepare(&plan(2)).expect("is fit");
    let set_aside = card.settings();
    let (left, right) = connect(&card, card.pair.right.v4().into(), 9_000);
    let ends = [right.local_addr(), right.peer_addr()].map(|end| end.expect("has one"));
    let flow = Flow::connection(ends[0], ends[1]).expect("of one version");

    let error = prepared.steer(flow, 1).expect_err("is the host's").to_string();
    assert!(error.contains("queue 1") && error.contains("not set aside"), "{error}");
    let steered = prepared.steer(flow, 3).expect("has room");
    assert_eq!(steered.queue(), 3);
    let again = prepared.steer(flow, 3).expect("is so already");
    let error = prepared.steer(flow, 2).expect_err("is led to another").to_string();
    assert!(error.contains("does not lead to queue 2"), "{error}");
    let count = card.counters();
    carry(&left, &right);
    let arrived_at = arrived(&count, &card.counters());
    assert!(arrived_at[3] > MIB as u64, "{arrived_at:?}");

    drop(steered);
    assert_ne!(card.settings(), set_aside, "the rule goes with the last guard of the flow");
    drop(again);
    assert_eq!(card.settings(), set_aside);
    let count = card.counters();
    carry(&left, &right);
    assert_eq!(arrived(&count, &card.counters())[2..4], [0, 0]);

    // A connection that the rule of its port leads.
    let port = prepared.steer(Flow::port(Ip::V4, ends[0].port()), 3).expect("has room");
    let one = prepared.steer(flow, 3).expect("is so already");
    drop(port);
    let count = card.counters();
    carry(&left, &right);
    assert!(arrived(&count, &card.counters())[3] > MIB as u64);
    drop(one);
    assert_eq!(card.settings(), set_aside);

    // One that outlives the guard of the whole.
    let late = prepared.steer(flow, 3).expect("has room");
    drop(prepared);
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
    drop(late);
    assert_eq!(card.settings(), before);
}

#[test]
fn what_arrives_at_a_prepared_queue_is_not_copied() {
    let card = Card::new();
    let before = card.settings();
    let prepared = card.prepare(&plan(1)).expect("is fit");
    let (left, right) = connect(&card, card.pair.right.v4().into(), PORT);
    let bound = card.inside(|| Receiver::bind(card.look().index, 3, 1_024, 4_096));
    let mut receiver = bound.expect("binds");
    thread::scope(|scope| {
        scope.spawn(move || {
            (&left).write_all(&[7; MIB]).expect("sends");
            left.shutdown(Shutdown::Write).expect("ends");
        });
        let mut received = 0;
        let taken = receiver.receive(&right, |span| {
            assert!(span.iter().all(|byte| *byte == 7));
            received += span.len();
        });
        taken.expect("receives");
        assert_eq!(received, MIB);
    });
    assert_eq!(receiver.copied(), (0, 0));

    // As long as it is bound, the host's own traffic must not come back to it.
    let set_aside = card.settings();
    let error = prepared.undo().expect_err("is bound").to_string();
    assert!(error.contains("still bound") && error.contains("queue 3"), "{error}");
    assert_eq!(card.settings(), set_aside);
    let error = card.prepare(&plan(1)).expect_err("is not put back").to_string();
    assert!(error.contains("handoff nic restore"), "{error}");
    // The kernel lets go of a ring later; putting back waits for that.
    drop(receiver);
    let undone = card.restore(card.name()).expect("is free");
    assert_eq!((undone.left.len(), undone.gone), (0, false));
    assert_eq!(card.settings(), before);
    card.nothing_is_written_down();
    assert!(matches!(card.restore(card.name()), Err(Error::NotPrepared { .. })));
}
