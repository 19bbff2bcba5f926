//! Our engine and the kernel's sockets.

use handoff::{Engine as Sending, Tally};
use handoff_lab::topology::{Pair, load};
use handoff_rds::End;
use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::wire::HEADER_LEN;

use crate::hosts::{Buffers, LONG, host, pattern, receive_all, send_all};

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
    for (number, size) in sizes().enumerate() {
        let received = loop {
            match kernel.receive().expect("receives") {
                Some(received) => break received,
                None => assert!(kernel.wait_readable(LONG).expect("waits"), "{number}"),
            }
        };
        assert!(received.payload == pattern(number as u32, size), "message {number}");
    }
    let deadline = std::time::Instant::now() + LONG;
    for (number, size) in sizes().enumerate() {
        let mut payload = pattern(number as u32, size);
        while let Err(refused) = kernel.send((left, 4000).into(), payload, 0, Mode::Copy) {
            assert!(refused.error.is_temporary(), "{}", refused.error);
            assert!(std::time::Instant::now() < deadline, "{number}: {}", refused.error);
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
