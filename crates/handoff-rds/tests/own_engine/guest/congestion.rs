//! Receivers that are congested again and again, while connections are cut.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::{join, join_all};
use handoff_rds::kernel::{Information, Mode, Queue, Socket};
use handoff_rds::wire::MAX_LANES;
use handoff_testbed::{Pair, PairEnd, load};

use super::kernel::{LED_TO, cut_all, lead_away_from_the_kernel};
use crate::hosts::{Buffers, Own, Setup, host_with, pattern, send_all};
use crate::timeout::Timeout;

/// Bytes of a message.
const LEN: usize = 30_000;
/// Ports of ours that send, by as many lanes.
const SENDERS: std::ops::Range<u16> = 4000..4004;
/// Messages from each of them, and to ours.
const COUNT: usize = 32;
/// Bytes that a port holds before it is congested, on both sides.
const RECEIVE: u32 = 150_000;
/// Messages that are read in one go before there is another cut.
const FLOOD: usize = 2 * RECEIVE as usize / LEN;
/// The port that receives, on both sides.
const PORT: u16 = 5000;

fn sizes() -> impl Iterator<Item = usize> {
    std::iter::repeat_n(LEN, COUNT)
}

/// Takes nothing until it is congested or nothing more will come, and then all that is there.
async fn take_in_floods(own: &Own) {
    let socket = own.engine.bind(PORT).expect("is free");
    let mut taken = 0;
    while taken < COUNT {
        let counted = own.engine.statistics();
        if counted.held_bytes <= RECEIVE.into() && counted.received < COUNT as u64 {
            own.engine.changed().await;
            continue;
        }
        while let Some(received) = socket.try_receive() {
            let came = (0..COUNT).find(|number| received.payload == pattern(*number as u32, LEN));
            assert_eq!(came, Some(taken), "{:?}", own.engine.statistics());
            taken += 1;
        }
    }
}

/// The kernel's side, which is read from when it holds more than it should, just after a cut.
struct Kernel<'a> {
    socket: Socket<Vec<u8>>,
    ours: &'a PairEnd,
    information: Information,
    sent: usize,
    /// Of each sender.
    received: BTreeMap<SocketAddr, usize>,
    cuts: usize,
}

impl Kernel<'_> {
    fn is_congested(&self) -> bool {
        let unread = self.information.messages(Queue::Unread).expect("tells");
        let held = unread.iter().filter(|message| message.local.port() == PORT);
        held.map(|message| message.len).sum::<u32>() > RECEIVE
    }

    fn received(&self) -> usize {
        self.received.values().sum()
    }

    fn send(&mut self) {
        while self.sent < COUNT {
            let payload = pattern(self.sent as u32, LEN);
            match self.socket.send((self.ours.v4(), PORT).into(), payload, 0, Mode::Copy) {
                Ok(()) => self.sent += 1,
                Err(refused) => {
                    assert!(refused.error.is_temporary(), "{}", refused.error);
                    return;
                }
            }
        }
    }

    /// Reads all that is there. A sender that keeps up makes that long, and is cut now and then.
    fn read(&mut self) {
        let mut flood = 0;
        while let Some(message) = self.socket.receive().expect("receives") {
            flood += 1;
            if flood % FLOOD == 0 {
                self.cuts += 1;
                cut_all(self.ours);
            }
            let number = self.received.entry(message.from).or_default();
            let came = (0..COUNT).find(|number| message.payload == pattern(*number as u32, LEN));
            assert_eq!(came, Some(*number), "of {}", message.from);
            *number += 1;
        }
    }

    fn turn(&mut self) {
        self.send();
        let all = SENDERS.len() * COUNT;
        if self.is_congested() {
            self.cuts += 1;
            cut_all(self.ours);
            self.read();
        } else if self.received() + RECEIVE as usize / LEN >= all {
            self.read();
        }
        self.socket.wait_writable(Duration::from_millis(1)).expect("waits");
    }
}

fn cut_while_congested(ours: &PairEnd, theirs: &PairEnd, lanes: u8) {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    lead_away_from_the_kernel(ours);
    let to = (theirs.v4(), PORT).into();
    let opened = theirs.namespace().run(|| {
        let socket = Socket::bind((theirs.v4(), PORT).into())?;
        socket.set_receive_buffer(RECEIVE as usize)?;
        Ok::<_, handoff_rds::Error>((socket, Information::open()?))
    });
    let (socket, information) = opened.expect("enters").expect("binds");
    let mut kernel =
        Kernel { socket, ours, information, sent: 0, received: BTreeMap::new(), cuts: 0 };
    let setup = Setup { lanes, port: LED_TO, receive: RECEIVE.into(), ..Setup::default() };
    let talking = host_with(ours, ours.v4().into(), setup, move |own| async move {
        let senders = SENDERS.map(|port| {
            let socket = own.engine.bind(port).expect("is free");
            async move { send_all(&socket, to, &mut Buffers::new(4, LEN), sizes()).await }
        });
        join(join_all(senders), take_in_floods(&own)).await;
        own.engine.statistics()
    });
    let mut timeout = Timeout::new();
    while !talking.is_finished() {
        let (sent, received, cuts) = (kernel.sent, kernel.received(), kernel.cuts);
        assert!(!timeout.is_over(), "{received} received, {sent} sent, {cuts} cuts");
        kernel.turn();
    }
    let counted = talking.join().expect("talks");
    println!("{} cuts, {counted:?}", kernel.cuts);
    assert_eq!((kernel.received(), kernel.sent), (SENDERS.len() * COUNT, COUNT));
    // Where the kernel's side reads as fast as we send, no send is refused.
    assert!(kernel.cuts > 3, "{} cuts, {counted:?}", kernel.cuts);
}

#[test]
fn congestion_passes_where_we_connect() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    cut_while_congested(&pair.left, &pair.right, MAX_LANES);
}

#[test]
fn congestion_passes_where_the_kernel_connects() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    cut_while_congested(&pair.right, &pair.left, MAX_LANES);
}

#[test]
fn congestion_passes_on_one_lane() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    cut_while_congested(&pair.left, &pair.right, 1);
}
