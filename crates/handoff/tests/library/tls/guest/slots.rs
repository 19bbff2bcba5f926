//! Registered memory goes to kernel TLS by its slot: one send at a time, each to its end.

use std::future::IntoFuture as _;
use std::io::ErrorKind;
use std::net::Shutdown;

use handoff::tls::Ciphering;
use handoff::{Buffer, Driver, Error, Outcome, Region};

use crate::tls::fixture::{end_in_time, pair, slow_reader, to_peer_over};
use crate::traffic::{assert_same, filled, narrow_tcp, pattern};

#[test]
fn registered_memory_goes_with_the_next_turn_and_other_memory_at_once() {
    let driver = Driver::new().expect("a driver");
    assert_eq!(driver.ring_unavailable(), None);
    let (near, far) = pair(&driver, Ciphering::Kernel);
    let mut region = Region::anonymous(1 << 16).expect("memory");
    let (sent, _) = near.send(filled(&mut region, 1, 100)).expect("accepted").split();
    assert_eq!(sent.try_take().expect("by a call").expect("sent"), 100);
    let mut region = Region::anonymous(1 << 16).expect("memory");
    driver.register(&region).expect("registered");
    let (sent, loan) = near.send(filled(&mut region, 2, 100)).expect("accepted").split();
    let sent = sent.try_take().expect_err("by a request of the ring");
    let done = driver.block_on(async {
        assert_eq!(sent.await?, 100);
        let back = loan.await?;
        assert_eq!(back.receipt.outcome(), Outcome::Ciphered);
        let got = far.receive_exact(Buffer::from(vec![0; 200])).expect("accepted").await?;
        got.result?;
        Ok::<_, Error>(got.buffer)
    });
    let got = done.expect("driven").expect("sent");
    assert_same(&got[..100], &pattern(1, 100));
    assert_same(&got[100..], &pattern(2, 100));
}

#[test]
fn sends_by_slots_and_by_calls_keep_their_order_where_there_is_little_room() {
    let driver = Driver::new().expect("a driver");
    let (socket, (go_on, peer)) =
        to_peer_over(&driver, Ciphering::Kernel, narrow_tcp(), slow_reader);
    let mut region = Region::anonymous(4 << 20).expect("memory");
    driver.register(&region).expect("registered");
    let mut all = Vec::new();
    let mut sendings = Vec::new();
    for number in 0..40 {
        let len = [70_000, 16_384, 1, 33_333, 100_000][number % 5];
        all.extend(pattern(number, len));
        let buffer = match number % 3 {
            2 => Buffer::from(pattern(number, len)),
            _ => filled(&mut region, number, len),
        };
        sendings.push(socket.send(buffer).expect("accepted"));
    }
    go_on.send(()).expect("it waits");
    let done = driver.block_on(async {
        for sending in sendings {
            let finished = sending.await?;
            finished.sent?;
            assert_eq!(finished.receipt.outcome(), Outcome::Ciphered);
        }
        end_in_time(&socket).await
    });
    done.expect("driven").expect("sent");
    assert_same(&peer.join().expect("joins").expect("a proper end"), &all);
}

#[test]
fn a_send_by_its_slot_that_is_cancelled_midway_is_no_end() {
    let driver = Driver::new().expect("a driver");
    let (socket, (go_on, peer)) =
        to_peer_over(&driver, Ciphering::Kernel, narrow_tcp(), slow_reader);
    let mut region = Region::anonymous(8 << 20).expect("memory");
    driver.register(&region).expect("registered");
    let buffer = filled(&mut region, 1, 8 << 20);
    let done = driver.block_on(async {
        let sending = socket.send(buffer).expect("accepted").into_future();
        let time = std::time::Duration::from_millis(100);
        let finished = driver.cancel_after(time, sending).await?;
        assert!(matches!(finished.sent, Err(Error::Canceled { .. })), "{:?}", finished.sent);
        assert_eq!(finished.buffer.len(), 8 << 20, "it is back");
        let refused = socket.send(Buffer::from(vec![1])).map(drop).expect_err("broken");
        assert!(matches!(refused.error, Error::StreamBroken { .. }), "{}", refused.error);
        go_on.send(()).expect("it waits");
        socket.shutdown(Shutdown::Write)
    });
    done.expect("driven").expect("ended");
    assert_eq!(
        peer.join().expect("joins").map(|it| it.len()).expect_err("no whole stream"),
        ErrorKind::UnexpectedEof
    );
}
