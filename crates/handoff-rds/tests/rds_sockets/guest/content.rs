//! What arrives is what was sent, in both modes, both families, both directions.

use handoff::Outcome;
use handoff_rds::End;
use handoff_rds::kernel::{Information, Mode, Queue, Queued};
use handoff_testbed::PairEnd;

use crate::peers::{Peers, Timeout, bind, complete, pattern, receive};

const SIZES: [usize; 7] = [0, 1, 100, 4096, 4097, 65_000, 106_496];

fn exchange(v6: bool) {
    let peers = Peers::new();
    let [left, right] = [&peers.pair.left, &peers.pair.right]
        .map(|end| bind(end, if v6 { end.v6().into() } else { end.v4().into() }, 4000));
    for (from, to) in [(&left, &right), (&right, &left)] {
        for mode in [Mode::Lend, Mode::Copy] {
            for (number, len) in (0..).zip(SIZES) {
                let sent = pattern(number, len);
                let address = sent.as_ptr();
                from.send(to.local_addr(), (sent, number), 70 + number, mode).expect("is accepted");
                let received = receive(to);
                assert_eq!(received.from, from.local_addr());
                assert!(received.payload == pattern(number, len), "{len} bytes, {mode:?}");
                let back = complete(from, 1).remove(0);
                assert_eq!((back.cookie, back.to), (70 + number, to.local_addr()));
                assert_eq!((back.payload.0.as_ptr(), back.payload.1), (address, number));
                let lent = mode == Mode::Lend && len > 0;
                assert_eq!(back.end, if lent { End::Acknowledged } else { End::Taken });
                let outcome = match (lent, len) {
                    (true, _) => Outcome::Unknown,
                    (false, 0) => Outcome::ZeroCopy,
                    (false, _) => Outcome::Copied,
                };
                assert_eq!(back.tally.outcome(), outcome);
            }
        }
    }
    assert_eq!(left.statistics().lent, SIZES.len() as u64 - 1);
    assert_eq!(left.statistics().copied, SIZES.len() as u64 + 1);
}

#[test]
fn over_ipv4() {
    exchange(false);
}

#[test]
fn over_ipv6() {
    exchange(true);
}

#[test]
fn to_the_own_namespace_and_to_named_peers_is_copied() {
    let peers = Peers::new();
    let [one, two, far] = [peers.left(4000), peers.left(4001), peers.right(4000)];
    one.send(far.local_addr(), (vec![7; 5000], 0), 1, Mode::Lend).expect("is accepted");
    let back = complete(&one, 1).remove(0);
    assert_eq!((back.end, back.tally.copied), (End::Acknowledged, 0));
    // The pages are still those that the receiver is about to read.
    assert_eq!(receive(&far).payload, [7; 5000]);
    drop(back);
    one.copy_to(far.local_addr().ip(), true);
    for (to, from) in [(&two, 8), (&far, 9)] {
        one.send(to.local_addr(), (vec![from; 5000], 0), 2, Mode::Lend).expect("is accepted");
        let mut back = complete(&one, 1).remove(0);
        assert_eq!((back.end, back.tally.copied), (End::Taken, 5000));
        back.payload.0.fill(0);
        assert_eq!(receive(to).payload, [from; 5000]);
    }
}

#[test]
fn the_kernel_tells_of_its_connections_sockets_and_queues() {
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    left.send(right.local_addr(), (vec![1; 77], 0), 0, Mode::Copy).expect("is accepted");
    let asking = |end: &PairEnd| {
        let opened = end.namespace().run(Information::open);
        opened.expect("enters").expect("is there")
    };
    let kernel = asking(&peers.pair.right);
    let ours = |it: &Queued| (it.local, it.peer) == (right.local_addr(), left.local_addr());
    let unread = || {
        let all = kernel.messages(Queue::Unread).expect("tells");
        all.into_iter().filter(ours).map(|it| it.len).collect::<Vec<_>>()
    };
    let mut timeout = Timeout::new();
    while unread() != [77] {
        let all = kernel.messages(Queue::Unread);
        assert!(!timeout.is_over(), "{all:?}");
    }
    receive(&right);
    assert!(unread().is_empty());

    let kernel = asking(&peers.pair.left);
    let [a, b, c, _] = peers.pair.left.v4().octets();
    let nobody = (std::net::Ipv4Addr::new(a, b, c, 77), 4000).into();
    left.send(nobody, (vec![1; 88], 0), 0, Mode::Copy).expect("is accepted");
    let waiting = kernel.messages(Queue::Waiting).expect("tells");
    let there = Queued { local: left.local_addr(), peer: nobody, len: 88 };
    assert!(waiting.contains(&there), "{waiting:?}");

    let connections = kernel.connections().expect("tells");
    let there = |it: &&handoff_rds::kernel::Connection| it.peer == right.local_addr().ip();
    let ours: Vec<_> = connections.iter().filter(there).collect();
    assert!(ours.iter().any(|it| it.connected && it.next_sent > 1), "{connections:?}");
    let sockets = kernel.sockets().expect("tells");
    assert_eq!(sockets.iter().map(|it| it.address).collect::<Vec<_>>(), [left.local_addr()]);
    assert!(sockets[0].send_buffer > 0 && sockets[0].receive_buffer > 0, "{sockets:?}");
    let counters = kernel.counters().expect("tells");
    let queued = counters.iter().find(|counter| counter.name == "send_queued");
    assert!(queued.is_some_and(|counter| counter.value > 0), "{counters:?}");
}
