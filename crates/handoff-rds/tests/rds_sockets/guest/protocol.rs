//! Our state machine and the kernel's sockets talk to each other.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use handoff_rds::kernel::{Information, Mode, Socket};
use handoff_rds::protocol::Limits;
use handoff_rds::wire::PORT;
use handoff_rds::{End, Error};

use crate::peers::{Numbered, Peers, Timeout, pattern};
use crate::tcp::Driver;

const PORTS: [u16; 4] = [5000, 5001, 5002, 5003];

fn size(number: u32) -> usize {
    [0, 10, 3000, 20_000][number as usize % 4] + 4
}

/// Message `number` begins with its number.
fn payload(number: u32) -> Vec<u8> {
    [&number.to_le_bytes()[..], &pattern(number, size(number) - 4)].concat()
}

/// Checks content and order by sender, and forgets nothing.
#[derive(Default)]
struct Seen(BTreeMap<u16, Vec<u32>>);

impl Seen {
    fn take(&mut self, port: u16, bytes: &[u8]) {
        let number = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        assert!(bytes == payload(number), "message {number}");
        let before = self.0.entry(port).or_default();
        assert!(before.last() < Some(&number), "{number} of port {port} behind {before:?}");
        before.push(number);
    }

    fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

struct Talk {
    driver: Driver,
    kernel: Socket<Numbered>,
    seen: Seen,
    ended: Vec<End>,
}

impl Talk {
    fn drain(&mut self) {
        while let Some(received) = self.kernel.receive().expect("receives") {
            self.seen.take(received.from.port(), &received.payload);
        }
        for port in PORTS {
            let mut batch = Vec::new();
            self.driver.host.completions(port).expect("bound").take(usize::MAX, &mut batch);
            self.ended.extend(batch.into_iter().map(|back| back.end));
        }
    }

    fn send(&mut self, number: u32) {
        let from = PORTS[number as usize / 4 % PORTS.len()];
        let mut message = Driver::message(from, self.kernel.local_addr(), payload(number), number);
        let mut timeout = Timeout::new();
        while let Err(refused) = self.driver.host.send(message) {
            assert!(refused.error.is_temporary(), "{}", refused.error);
            self.driver.turn();
            self.drain();
            let (error, counted) = (refused.error, self.driver.host.statistics());
            let seen = self.seen.len();
            assert!(
                !timeout.is_over(),
                "{number}, {seen}: {error}, {counted:?}, {}",
                self.driver.last_map()
            );
            let to = self.kernel.local_addr();
            message = Driver::message(from, to, refused.payload, number);
        }
    }

    fn settle(&mut self, count: usize) {
        let mut timeout = Timeout::new();
        while self.ended.len() < count || self.seen.len() < count {
            self.driver.turn();
            self.drain();
            let counted = self.driver.host.statistics();
            assert!(!timeout.is_over(), "{} seen, {counted:?}", self.seen.len());
        }
        assert_eq!((self.ended.len(), self.seen.len()), (count, count));
    }
}

fn talk(peers: &Peers, lanes: u8) -> Talk {
    // After a cut the kernel calls by itself, and its like has RDS's port in every namespace: it would talk
    // to that from then on, and leave our connections unread.
    peers.pair.left.redirect(PORT, PORT + 1).expect("the lab's kernel can");
    let limits = Limits { lanes, queued: 200_000, ..Limits::default() };
    let mut driver = Driver::new(&peers.pair.left, 11, limits);
    PORTS.iter().for_each(|port| driver.host.bind(*port).expect("is free"));
    let kernel = peers.right(4000);
    Talk { driver, kernel, seen: Seen::default(), ended: Vec::new() }
}

/// How many maps the kernel has read, of all peers.
fn maps_read() -> u64 {
    let counters = Information::open().and_then(|kernel| kernel.counters()).expect("tells");
    let one = counters.iter().find(|it| it.name == "cong_update_received");
    one.expect("there is such a counter").value
}

/// Many messages both ways.
fn both_ways(lanes: u8) {
    const COUNT: u32 = 400;
    let peers = Peers::new();
    let before = maps_read();
    let mut talk = talk(&peers, lanes);
    for number in 0..COUNT {
        talk.send(number);
    }
    talk.settle(COUNT as usize);
    assert!(talk.ended.iter().all(|end| *end == End::Acknowledged));
    // A lane may be in renewal: the kernel's map of a moment in which we were too fast stood for a second.
    let mut timeout = Timeout::new();
    while talk.driver.connections() != usize::from(lanes) {
        talk.driver.turn();
        assert!(!timeout.is_over(), "{} lanes", talk.driver.connections());
    }
    let counted = talk.driver.host.statistics();
    assert_eq!(counted.restarts, 0, "{counted:?}");
    let (came, sent) = (maps_read() - before, talk.driver.maps_sent());
    assert!(came <= sent, "{came} maps came of {sent}: another host has an address of these");
    // The way back.
    let to = SocketAddr::from((peers.pair.left.v4(), PORTS[0]));
    let (mut sent, mut seen) = (0, Seen::default());
    let kernel = &talk.kernel;
    talk.driver.until(|host| {
        if sent < COUNT {
            match kernel.send(to, (payload(sent), sent), 0, Mode::Copy) {
                Ok(()) => sent += 1,
                Err(refused) => assert!(refused.error.is_temporary(), "{}", refused.error),
            }
        }
        while let Some(received) = host.receive(PORTS[0]) {
            seen.take(received.from.port(), &received.payload);
        }
        seen.len() == COUNT as usize
    });
}

#[test]
fn one_lane() {
    both_ways(1);
}

#[test]
fn eight_lanes() {
    both_ways(8);
}

#[test]
fn the_kernels_congestion_is_honoured_and_ours_by_it() {
    let peers = Peers::new();
    let mut talk = talk(&peers, 8);
    let to = talk.kernel.local_addr();
    let mut accepted = 0;
    // Its socket is not read.
    let mut timeout = Timeout::new();
    loop {
        match talk.driver.host.send(Driver::message(PORTS[0], to, payload(accepted), accepted)) {
            Ok(_) => accepted += 1,
            Err(refused) if matches!(refused.error, Error::Congested(_)) => break,
            Err(refused) => assert!(refused.error.is_temporary(), "{}", refused.error),
        }
        talk.driver.turn();
        assert!(!timeout.is_over(), "{accepted} messages, and no congestion");
    }
    talk.settle(accepted as usize);
    talk.send(accepted);
    talk.settle(accepted as usize + 1);
    // And the other way round: nobody takes what the host holds.
    let own = SocketAddr::from((peers.pair.left.v4(), PORTS[0]));
    let (mut sent, kernel) = (0, &talk.kernel);
    talk.driver.until(|_| match kernel.send(own, (vec![1; 50_000], 0), 0, Mode::Copy) {
        Ok(()) => {
            sent += 1;
            assert!(sent < 1000, "never congested");
            false
        }
        Err(refused) => matches!(refused.error, Error::Congested(_)),
    });
    let mut received = 0;
    talk.driver.until(|host| {
        received += std::iter::from_fn(|| host.receive(PORTS[0])).count();
        received == sent && kernel.send(own, (vec![2], 0), 0, Mode::Copy).is_ok()
    });
}
