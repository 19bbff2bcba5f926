//! What cannot be bound or received, and what to do then.

use std::io::Write;

use handoff::{Driver, Error, Region, RxBinding, RxQueue};

use crate::rx_queue::receiving::{
    MIB, PAGE, QUEUE, area, bound, driver, exchange, receiver, whole,
};
use crate::rx_queue::testbed::{QUEUES, Testbed, stream_of};

#[test]
fn where_the_kernel_cannot_add_areas_the_nic_has_all_memory_from_the_beginning() {
    let (testbed, driver) = (Testbed::new(1_500), driver());
    let inside = || {
        let binding = RxBinding::new(testbed.pair.right.device(), QUEUE)?.grows_from(600 * PAGE);
        driver.rx_queue(area(1_024), &binding)
    };
    let queue = testbed.pair.right.namespace().run(inside).expect("enters").expect("binds");
    assert_eq!((queue.chunks(), queue.chunks_limit()), (1_024, 1_024));
    assert_eq!(exchange(&testbed, &driver, &queue, false, MIB), whole(MIB));
    assert_eq!((queue.growth(), queue.growth_stopped()), (Vec::new(), None));
}

#[test]
fn refusals_say_what_to_do() {
    let (testbed, driver) = (Testbed::new(1_500), driver());
    let queue = bound(&testbed, &driver, 1_024);
    let refusal = |result: handoff::Result<RxQueue>| match result.expect_err("refused") {
        Error::EngineUnavailable { engine: "zcrx", reason } => reason,
        other => panic!("{other:?}"),
    };
    let again = refusal(testbed.bind(&driver, QUEUE, area(1_024), None));
    assert!(again.contains("bound already"), "{again}");
    let missing = refusal(testbed.bind(&driver, 60, area(1_024), None));
    assert!(missing.contains("no rx queue 60"), "{missing}");
    let pieces = refusal(testbed.bind(&driver, QUEUES[1], area(5_000), Some(64 << 10)));
    assert!(pieces.contains("huge pages"), "{pieces}");
    let plain = Driver::new().expect("a driver");
    let error = testbed.bind(&plain, QUEUES[1], area(1_024), None).expect_err("refused");
    assert!(error.to_string().contains("zero_copy_receive"), "{error}");
    let used = {
        let mut used = area(1_024);
        used.take(1).expect("room");
        testbed.bind(&driver, QUEUES[1], used, None).expect_err("refused")
    };
    assert!(used.to_string().contains("whole region"), "{used}");
    let small = refusal(testbed.bind(&driver, QUEUES[1], area(64), None));
    assert!(small.contains("the NIC's ring alone"), "{small}");
    let reserved = Region::reserved((4 << 30) + PAGE).expect("address space");
    let large = refusal(testbed.bind(&driver, QUEUES[1], reserved, None));
    assert!(large.contains("misplaces") && large.contains("take less memory"), "{large}");
    // Plain receive cannot have the bytes of a bound queue.
    let (mut left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
    left.write_all(&stream_of(1_000)).expect("sends");
    let pool = driver.pool(area(1_024), PAGE).expect("a pool");
    let mut receiver = receiver(&driver, far, &pool);
    let first = driver.block_on(async { receiver.next_span().await }).expect("runs");
    let error = first.expect("told").expect_err("an error").to_string();
    assert!(error.contains("memory of an rx queue"), "{error}");
    // Datagrams neither.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
    let mut receiver = driver.socket(socket).expect("attaches").receive(&queue).expect("starts");
    let first = driver.block_on(async { receiver.next_span().await }).expect("runs");
    let error = first.expect("told").expect_err("an error").to_string();
    assert!(error.contains("TCP"), "{error}");
}

/// What the card puts there is ciphered.
#[cfg(feature = "tls")]
#[test]
fn a_tls_connection_receives_from_no_rx_queue() {
    let (testbed, driver) = (Testbed::new(1_500), driver());
    let queue = bound(&testbed, &driver, 1_024);
    for ciphering in [handoff::tls::Ciphering::User, handoff::tls::Ciphering::Kernel] {
        let (near, _far) = crate::tls::fixture::pair(&driver, ciphering);
        let error = near.receive(&queue).map(drop).expect_err("ciphered bytes").to_string();
        assert!(error.contains("TLS"), "{error}");
    }
}
