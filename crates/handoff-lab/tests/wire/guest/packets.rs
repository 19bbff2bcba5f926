//! What is sent arrives, and what was lent comes back when it has been read.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use handoff_lab::topology::PairEnd;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};

use crate::bed::{MIB, counters, exchange, pair, set_fault, stream_of};

/// `IORING_SEND_ZC_REPORT_USAGE`: the notification says whether the kernel has copied.
const REPORT_USAGE: u16 = 1 << 3;

#[test]
fn streams_cross_both_ways() {
    for mtu in [1_500, 9_000] {
        let pair = pair(mtu);
        exchange(&pair, pair.right.v4(), MIB);
        exchange(&pair, pair.right.v6(), MIB);
        let count = counters(&pair.right);
        assert_eq!(count["dma_refused"] + count["too_long"], 0, "{count:?}");
    }
}

#[test]
fn datagrams_of_all_sizes_cross() {
    let pair = pair(65_535);
    let open = |end: &PairEnd| {
        let bound = end.namespace().run(|| UdpSocket::bind((end.v4(), 0)));
        bound.expect("enters").expect("binds")
    };
    let (from, to) = (open(&pair.left), open(&pair.right));
    to.set_read_timeout(Some(Duration::from_secs(5))).expect("sets");
    for bytes in [0, 1, 17, 213, 214, 215, 1_472, 4_310, 65_507] {
        let sent = stream_of(bytes);
        from.send_to(&sent, to.local_addr().expect("bound")).expect("sends");
        let mut buffer = vec![0; 65_536];
        let received = to.recv(&mut buffer).expect("arrives");
        assert!(buffer[..received] == sent, "{bytes} bytes differ");
    }
}

#[test]
fn lent_memory_is_back_when_the_engine_has_read_it() {
    const DELAY: Duration = Duration::from_millis(300);
    let pair = pair(65_535);
    let open = |end: &PairEnd| {
        let bound = end.namespace().run(|| UdpSocket::bind((end.v4(), 0)));
        bound.expect("enters").expect("binds")
    };
    let (from, to) = (open(&pair.left), open(&pair.right));
    from.connect(to.local_addr().expect("bound")).expect("connects");
    set_fault(&pair.right, "delay", DELAY.as_micros() as u32);

    let mut ring = IoUring::new(4).expect("a ring");
    let mut lent = stream_of(32_768);
    let request = opcode::SendZc::new(Fd(from.as_raw_fd()), lent.as_ptr(), lent.len() as u32)
        .zc_flags(REPORT_USAGE)
        .build();
    let begin = Instant::now();
    // SAFETY: the memory is not touched before the notification below has come.
    unsafe { ring.submission().push(&request) }.expect("room");
    ring.submit_and_wait(1).expect("submits");
    let sent = ring.completion().next().expect("a completion");
    assert_eq!(sent.result(), 32_768);
    assert!(cqueue::more(sent.flags()));
    assert!(begin.elapsed() < DELAY, "sent only after {:?}", begin.elapsed());
    ring.submit_and_wait(1).expect("waits");
    let back = ring.completion().next().expect("a notification");
    assert!(cqueue::notif(back.flags()));
    assert_eq!(back.result(), 0, "copied");
    assert!(begin.elapsed() >= DELAY, "back after {:?}", begin.elapsed());
    // Whoever still read it would read this.
    lent.fill(0);
    let mut received = vec![0; 65_536];
    let length = to.recv(&mut received).expect("arrives");
    assert!(received[..length] == stream_of(32_768), "what arrived differs");
}
