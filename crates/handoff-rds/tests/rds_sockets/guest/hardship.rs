//! Cables that are pulled, and sockets that end too early.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use handoff_rds::kernel::{Mode, Socket};

use crate::peers::{LONG, Peers, complete, pattern, receive, send_waiting};

#[test]
fn a_cable_pulled_and_plugged_loses_doubles_and_reorders_nothing() {
    const COUNT: u32 = 400;
    const BYTES: usize = 5000;
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            for number in 0..COUNT {
                assert!(receive(&right).payload == pattern(number, BYTES), "message {number}");
            }
        });
        let mut pulled = None;
        for number in 0..COUNT {
            if number == 100 || number == 250 {
                peers.set_link("down");
                pulled = Some(Instant::now());
            }
            // The buffer is full soon, and then nothing goes on before the cable is back.
            send_waiting(&left, right.local_addr(), (pattern(number, BYTES), number), 0, || {
                if pulled.is_some_and(|at| at.elapsed() > Duration::from_millis(300)) {
                    peers.set_link("up");
                    pulled = None;
                }
            });
        }
        assert!(pulled.is_none(), "the buffer was never full");
        receiver.join().expect("receives");
    });
    let mut numbers: Vec<u32> =
        complete(&left, COUNT as usize).iter().map(|back| back.payload.1).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..COUNT), "each once");
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
    let (batch, leaked) = closed.close(Duration::from_millis(50)).expect("closes");
    assert_eq!((batch.len(), leaked), (0, 3));
    assert_eq!(gone.load(Relaxed), 0);
    peers.set_link("up");
    let (batch, leaked) = patient.close(LONG).expect("closes");
    assert_eq!((batch.len(), leaked), (3, 0));
    // The receiver is on the same host, so what it has not read yet are the payloads' own pages.
    (0..3).for_each(|_| assert_eq!(receive(&right).payload, [6; 10_000]));
    drop(batch);
    assert_eq!(gone.load(Relaxed), 3);
}
