//! Our engine and the kernel's sockets.

use std::process::Command;

use handoff::{Engine as Sending, Tally};
use handoff_rds::End;
use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::wire::{HEADER_LEN, MAX_LANES, PORT};
use handoff_testbed::{Pair, PairEnd, load};

use crate::hosts::{Buffers, Setup, host, host_with, pattern, receive_all, send_all};
use crate::timeout::{STEP, Timeout};

const COUNT: usize = 200;

fn sizes() -> impl Iterator<Item = usize> {
    [4, 100, 3000, 40_000, 100_000].into_iter().cycle().take(COUNT)
}

/// Ours has the smaller address; with the larger it would need the port that the kernel has taken.
fn with_the_kernel(pair: &Pair, sending: Sending) -> Tally {
    load("rds_tcp", &[]).expect("the lab's kernel has it");
    let [left, right] = [pair.left.v4(), pair.right.v4()];
    let kernel = pair.right.namespace().run(|| Socket::bind((right, 4000).into()));
    let kernel: Socket<Vec<u8>> = kernel.expect("enters").expect("binds");
    let ours = host(&pair.left, left.into(), sending, move |own| async move {
        assert!(own.engine.not_listening().is_some_and(|why| why.contains("rds_tcp")));
        let socket = own.engine.bind(4000).expect("is free");
        let to = (right, 4000).into();
        let tally = send_all(&socket, to, &mut Buffers::new(16, 100_000), sizes()).await;
        receive_all(&socket, sizes()).await;
        tally
    });
    let mut timeout = Timeout::new();
    for (number, size) in sizes().enumerate() {
        let received = loop {
            if let Some(received) = kernel.receive().expect("receives") {
                break received;
            }
            kernel.wait_readable(STEP).expect("waits");
            assert!(!timeout.is_over(), "{number}");
        };
        assert!(received.payload == pattern(number as u32, size), "message {number}");
    }
    for (number, size) in sizes().enumerate() {
        let mut payload = pattern(number as u32, size);
        while let Err(refused) = kernel.send((left, 4000).into(), payload, 0, Mode::Copy) {
            assert!(refused.error.is_temporary(), "{}", refused.error);
            assert!(!timeout.is_over(), "{number}: {}", refused.error);
            kernel.wait_writable(std::time::Duration::from_millis(20)).expect("waits");
            payload = refused.payload;
        }
    }
    let tally = ours.join().expect("talks");
    let mut batch = Vec::new();
    kernel.completions(COUNT, &mut batch).expect("reads");
    assert!(batch.len() == COUNT && batch.iter().all(|back| back.end == End::Taken));
    tally
}

/// Bytes of all payloads, and of the headers before them.
fn bytes() -> (u64, u64) {
    (sizes().sum::<usize>() as u64, (COUNT * HEADER_LEN) as u64)
}

#[test]
fn over_veth_the_kernel_copies() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    let tally = with_the_kernel(&pair, Sending::UringZc);
    let (payload, headers) = bytes();
    let copied = Tally { copied: payload + headers, ..Tally::default() };
    assert_eq!(tally, copied);
}

#[test]
fn over_a_card_hardly_any_payload_is_copied_on_the_way_to_it() {
    let pair = Pair::wire(9000).expect("the lab's kernel has the module");
    let (payload, headers) = bytes();
    let tally = with_the_kernel(&pair, Sending::UringZc);
    assert_eq!((tally.total(), tally.unknown), (payload + headers, 0));
    // The kernel reports a send as copied, too, when all its bytes joined the packet of the one before.
    assert!(tally.zero_copy > payload / 10 * 9, "{tally:?} of {payload}");
}

/// The kernel has RDS's port in every namespace, and would be taken for us by a peer that connects.
/// Connections to it are led to this one.
pub(super) const LED_TO: u16 = PORT + 1;

pub(super) fn lead_away_from_the_kernel(end: &PairEnd) {
    end.redirect(PORT, LED_TO).expect("the lab's kernel can");
}

/// Resets all connections.
pub(super) fn cut_all(ours: &PairEnd) {
    let mut ss = Command::new("ss");
    ss.args(["-K", "-t", &format!("dport = {PORT} or sport = {LED_TO}")]);
    // It complains of sockets that it does not end, such as those that listen.
    ours.namespace().attach(&mut ss).output().expect("ss is installed");
}

/// Messages both ways, with all connections reset now and then; nothing is lost, doubled or reordered.
fn cut_under_load(ours: &PairEnd, theirs: &PairEnd, lanes: u8) {
    const CUTS: usize = 5;

    load("rds_tcp", &[]).expect("the lab's kernel has it");
    lead_away_from_the_kernel(ours);
    let to = (theirs.v4(), 4000).into();
    let back = (ours.v4(), 4000).into();
    let kernel = theirs.namespace().run(|| Socket::bind((theirs.v4(), 4000).into()));
    let kernel: Socket<Vec<u8>> = kernel.expect("enters").expect("binds");
    // Never congested, which is another test's matter.
    kernel.set_receive_buffer(64 << 20).expect("is root");
    let setup = Setup { sending: Sending::UringZc, lanes, port: LED_TO, ..Setup::default() };
    let talking = host_with(ours, ours.v4().into(), setup, move |own| async move {
        assert_eq!(own.engine.not_listening(), None);
        let socket = own.engine.bind(4000).expect("is free");
        let mut buffers = Buffers::new(16, 100_000);
        let sending = send_all(&socket, to, &mut buffers, sizes());
        futures_util::future::join(sending, receive_all(&socket, sizes())).await;
        let connections = own.engine.statistics().connections;
        assert!(connections > u64::from(lanes), "{connections}: none was cut");
    });
    let (mut received, mut sent) = (0, 0);
    let mut timeout = Timeout::new();
    while received < COUNT || sent < COUNT {
        assert!(!timeout.is_over(), "{received} received, {sent} sent");
        let size = |number| sizes().nth(number).expect("one of them");
        if let Some(message) = kernel.receive().expect("receives") {
            let expected = pattern(received as u32, size(received));
            assert!(message.payload == expected, "message {received}");
            received += 1;
            if received % (COUNT / CUTS) == COUNT / CUTS / 2 {
                cut_all(ours);
            }
            continue;
        }
        if sent < COUNT {
            let payload = pattern(sent as u32, size(sent));
            match kernel.send(back, payload, 0, Mode::Copy) {
                Ok(()) => sent += 1,
                Err(refused) => assert!(refused.error.is_temporary(), "{}", refused.error),
            }
        }
        kernel.wait_readable(std::time::Duration::from_millis(1)).expect("waits");
    }
    talking.join().expect("talks");
}

#[test]
fn cuts_lose_nothing_where_we_connect() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    cut_under_load(&pair.left, &pair.right, MAX_LANES);
}

#[test]
fn cuts_lose_nothing_where_the_kernel_connects() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    cut_under_load(&pair.right, &pair.left, MAX_LANES);
}

#[test]
fn cuts_lose_nothing_on_one_lane() {
    let pair = Pair::new(9000).expect("the lab's kernel has veth");
    cut_under_load(&pair.left, &pair.right, 1);
}
