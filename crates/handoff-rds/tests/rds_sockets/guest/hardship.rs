//! Cables that are pulled, and sockets that end too early.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use handoff_rds::kernel::{Mode, Socket};

use crate::peers::{LONG, Peers, Timeout, complete, pattern, receive, send_waiting};

#[test]
fn a_cable_pulled_and_plugged_loses_doubles_and_reorders_nothing() {
    const COUNT: u32 = 400;
    const BYTES: usize = 5000;
    const OUTAGE: Duration = Duration::from_millis(300);
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            for number in 0..COUNT {
                assert!(receive(&right).payload == pattern(number, BYTES), "message {number}");
            }
        });
        for number in 0..COUNT {
            if number == 100 || number == 250 {
                peers.set_link("down");
                // By another thread: this one may be in a call that the kernel does not end before the
                // cable is back (docs/rds.md). What is left to send is more than the buffer takes.
                scope.spawn(|| {
                    thread::sleep(OUTAGE);
                    let mut timeout = Timeout::new();
                    while left.unacknowledged().expect("tells") == 0 {
                        assert!(!timeout.is_over(), "nothing waits for the cable");
                        thread::sleep(Duration::from_millis(5));
                    }
                    peers.set_link("up");
                });
            }
            send_waiting(&left, right.local_addr(), (pattern(number, BYTES), number), 0, || {});
        }
        receiver.join().expect("receives");
    });
    let mut numbers: Vec<u32> =
        complete(&left, COUNT as usize).iter().map(|back| back.payload.1).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..COUNT), "each once");
}

#[test]
fn a_socket_that_closes_waits_until_peers_have_its_copied_messages() {
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    let to = left.local_addr();
    peers.set_link("down");
    for number in 0..3 {
        let payload = (pattern(number, 5000), number);
        right.send(to, payload, number, Mode::Copy).expect("is accepted");
    }
    assert_eq!(right.unacknowledged().expect("tells"), 3);
    let (closing, closed) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || closing.send(right.close(LONG).expect("closes")));
        let early = closed.recv_timeout(Duration::from_millis(300)).ok();
        assert!(early.is_none(), "closed before the peer had the messages");
        peers.set_link("up");
        for number in 0..3 {
            assert!(receive(&left).payload == pattern(number, 5000), "message {number}");
        }
        let end = closed.recv().expect("closes");
        assert_eq!((end.completions.len(), end.unacknowledged), (3, 0));
    });
}

/// Counts those that are gone.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn what_the_kernel_holds_is_never_freed() {
    let peers = Peers::new();
    let gone = Arc::new(AtomicUsize::new(0));
    let right = peers.right(4000);
    let left = || {
        let end = &peers.pair.left;
        let local = (end.v4(), 0).into();
        end.namespace().run(|| Socket::bind(local)).expect("enters").expect("binds")
    };
    let [dropped, closed, patient]: [Socket<(Vec<u8>, Counted)>; 3] = [left(), left(), left()];
    peers.set_link("down");
    for socket in [&dropped, &closed, &patient] {
        for cookie in 0..3 {
            let payload = (vec![6; 10_000], Counted(gone.clone()));
            let sent = socket.send(right.local_addr(), payload, cookie, Mode::Lend);
            sent.map_err(|refused| refused.error).expect("is queued");
        }
        assert_eq!(socket.lent(), 3);
    }
    drop(dropped);
    let end = closed.close(Duration::from_millis(50)).expect("closes");
    assert_eq!((end.completions.len(), end.unacknowledged, end.leaked), (0, 3, 3));
    assert_eq!(gone.load(Relaxed), 0);
    peers.set_link("up");
    let end = patient.close(LONG).expect("closes");
    assert_eq!((end.completions.len(), end.unacknowledged, end.leaked), (3, 0, 0));
    // The receiver is on the same host, so what it has not read yet are the payloads' own pages.
    (0..3).for_each(|_| assert_eq!(receive(&right).payload, [6; 10_000]));
    drop(end);
    assert_eq!(gone.load(Relaxed), 3);
}
