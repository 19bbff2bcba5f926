//! Batches of completions: of all sizes, with cookies that repeat, looked at and taken.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use handoff_rds::End;
use handoff_rds::kernel::{Mode, Socket};

use crate::peers::{Numbered, Peers, Timeout, complete, pattern, receive, send_waiting};

const BYTES: usize = 200;

/// Sends `count` messages with cookies that repeat, while a thread receives and checks them.
fn send_all(from: &Socket<Numbered>, to: &Socket<Numbered>, count: u32) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                assert!(receive(to).payload == pattern(number, BYTES), "message {number}");
            }
        });
        for number in 0..count {
            let payload = (pattern(number, BYTES), number);
            send_waiting(from, to.local_addr(), payload, number % 7, || {});
        }
    });
}

fn batch_of(count: u32) {
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    left.set_send_buffer(1 << 20).expect("sets");
    send_all(&left, &right, count);
    // Looking changes nothing, whether the array is too small, or has room for more.
    let few = complete(&left, 1);
    let mut cookies = [u32::MAX; 3];
    let rest = count as usize - 1;
    let mut timeout = Timeout::new();
    while left.peek_completions(&mut cookies).expect("looks") < rest {
        assert!(!timeout.is_over(), "not all came back");
        left.wait_readable(std::time::Duration::from_millis(50)).expect("waits");
    }
    assert_eq!(left.peek_completions(&mut cookies).expect("looks"), rest);
    let mut batch = few;
    let mut size = 1;
    while batch.len() < count as usize {
        size = size * 3 % 1009 + 1;
        let mut next = [0];
        left.peek_completions(&mut next).expect("looks");
        let before = batch.len();
        let taken = left.completions(size, &mut batch).expect("takes");
        assert_eq!(taken, size.min(count as usize - before));
        assert_eq!(batch[before].cookie, next[0]);
    }
    assert_eq!(left.completions(1, &mut batch).expect("takes"), 0);
    let mut numbers: Vec<u32> = batch.iter().map(|back| back.payload.1).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count), "each once");
    for back in batch {
        assert_eq!(back.cookie, back.payload.1 % 7);
        assert_eq!(back.end, End::Acknowledged);
        assert!(back.payload.0 == pattern(back.payload.1, BYTES));
    }
    let counted = left.statistics();
    assert_eq!((counted.lent, counted.returned), (count.into(), count.into()));
    assert_eq!(left.lent(), 0);
    println!("{count} completions in {} calls", counted.reaps);
}

#[test]
fn one() {
    batch_of(1);
}

#[test]
fn as_many_as_the_kernel_gives_at_a_time_and_one_more() {
    batch_of(8);
    batch_of(9);
}

#[test]
fn a_thousand() {
    batch_of(1000);
}

#[test]
fn ten_thousand() {
    batch_of(10_000);
}

#[test]
fn messages_that_wait_stay_while_completions_are_taken() {
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    for number in 0..20 {
        let payload = (pattern(number, BYTES), number);
        right.send(left.local_addr(), payload, number, Mode::Copy).expect("is accepted");
    }
    left.wait_readable(crate::peers::LONG).expect("waits");
    for number in 0..20 {
        let payload = (pattern(number, BYTES), number);
        left.send(right.local_addr(), payload, number, Mode::Lend).expect("is accepted");
    }
    assert_eq!(complete(&left, 20).len(), 20);
    for number in 0..20 {
        assert!(receive(&left).payload == pattern(number, BYTES), "message {number}");
    }
}

#[test]
fn threads_send_receive_and_take_on_one_socket() {
    const THREADS: u32 = 4;
    const EACH: u32 = 300;
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    let sending = AtomicBool::new(true);
    let batches = thread::scope(|scope| {
        let senders: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (left, to) = (&left, right.local_addr());
                scope.spawn(move || {
                    for number in thread * EACH..(thread + 1) * EACH {
                        send_waiting(left, to, (pattern(number, BYTES), number), 5, || {});
                    }
                })
            })
            .collect();
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    (0..THREADS * EACH / 2).map(|_| receive(&right).payload).collect::<Vec<_>>()
                })
            })
            .collect();
        let takers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut batch = Vec::new();
                    while sending.load(Relaxed) || left.lent() > 0 {
                        if left.completions(50, &mut batch).expect("takes") == 0 {
                            let wait = std::time::Duration::from_millis(20);
                            left.wait_readable(wait).expect("waits");
                        }
                    }
                    batch
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().expect("sends"));
        sending.store(false, Relaxed);
        let mut received: Vec<_> =
            receivers.into_iter().flat_map(|receiver| receiver.join().expect("receives")).collect();
        let mut sent: Vec<_> = (0..THREADS * EACH).map(|number| pattern(number, BYTES)).collect();
        received.sort();
        sent.sort();
        assert!(received == sent);
        takers.into_iter().flat_map(|taker| taker.join().expect("takes")).collect::<Vec<_>>()
    });
    let mut rest = Vec::new();
    left.completions(usize::MAX, &mut rest).expect("takes");
    let all = batches.iter().chain(&rest);
    let mut numbers: Vec<u32> = all.map(|back| back.payload.1).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..THREADS * EACH), "each once");
}
