//! Spans of TLS connections: what was deciphered lies in chunks of a pool.

use std::future::IntoFuture as _;
use std::net::Shutdown;

use futures_lite::future::{poll_once, try_zip};
use handoff::tls::Ciphering;
use handoff::{Buffer, Driver, Error, Pool, ReceiveEngine, Receiver, Region, Tally};

use super::exchange::LENGTHS;
use super::fixture::{BOTH, Echo, HEAD, Side, connection, message, pair, to_peer, writer};
use crate::traffic::{assert_same, drivers, pattern};

fn pool(driver: &Driver, chunk: usize, chunks: usize) -> Pool {
    driver.pool(Region::anonymous(chunk * chunks).expect("memory"), chunk).expect("a pool")
}

/// Takes so many bytes.
async fn take(receiver: &mut Receiver, len: usize) -> handoff::Result<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < len {
        let span = receiver.next_span().await.expect("it goes on");
        got.extend_from_slice(&span?);
    }
    Ok(got)
}

/// Messages come back in spans, as far as a peer goes that may change its keys, and so does its end.
fn spans_come(
    driver: &Driver,
    ciphering: Ciphering,
    (chunk, chunks): (usize, usize),
    how: Echo,
) -> Tally {
    let (socket, _, peer) = connection(driver, Side::Client, ciphering, BOTH, how);
    let pool = pool(driver, chunk, chunks);
    let mut sum = 0;
    let tally = driver.block_on(async {
        // The first bytes of the first message go into a buffer; what was deciphered with them comes in spans.
        let first = message(0, 5_000);
        socket.send(Buffer::from(first.clone())).expect("accepted").await?.sent?;
        let head = socket.receive_exact(Buffer::from(vec![0; HEAD])).expect("accepted").await?;
        assert_eq!(head.result?, HEAD);
        let mut receiver = socket.receive(&pool)?;
        assert_same(&take(&mut receiver, 5_000).await?, &first[HEAD..]);
        sum += 5_000;
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let bytes = message(number, len);
            let sending = socket.send(Buffer::from(bytes.clone())).expect("accepted");
            let taking = take(&mut receiver, bytes.len());
            let (sent, got) = try_zip(sending.into_future(), taking).await?;
            assert_eq!(sent.sent?, bytes.len());
            assert_same(&got, &bytes);
            sum += got.len() as u64;
        }
        socket.shutdown(Shutdown::Write)?;
        let end = receiver.next_span().await;
        match (how.cuts_off, end) {
            (false, None) => {}
            (true, Some(Err(Error::Tls { reason }))) if reason.contains("close-notify") => {}
            (_, end) => panic!("{how:?}: {end:?}"),
        }
        assert!(receiver.next_span().await.is_none(), "the end is told once");
        assert_eq!(pool.held(), 0);
        Ok::<_, Error>(receiver.tally())
    });
    let tally = tally.expect("driven").expect("everything arrives");
    assert_eq!(tally.total(), sum);
    drop(socket);
    peer.join().expect("the peer is content");
    tally
}

/// By pools of many chunks and of few, of long ones and short ones.
pub(super) fn everything_comes_in_spans(
    driver: &Driver,
    ciphering: Ciphering,
    check: impl Fn(Tally, usize),
) {
    for (chunk, chunks) in [(64 << 10, 8), (1_000, 3), (20_000, 1)] {
        for (changes_keys, cuts_off) in [(false, false), (true, true)] {
            let how = Echo { changes_keys, cuts_off };
            check(spans_come(driver, ciphering, (chunk, chunks), how), chunk);
        }
    }
}

/// A receiver that holds all chunks waits; one that is dropped takes nothing along that has not come.
pub(super) fn a_full_pool_makes_a_receiver_wait(driver: &Driver, ciphering: Ciphering) {
    const LEN: usize = 100_000;
    let bytes = pattern(3, LEN);
    let sent = bytes.clone();
    let (socket, peer) =
        to_peer(driver, ciphering, |identity, far| writer(identity, far, sent, false));
    let pool = pool(driver, 10_000, 2);
    let got = driver.block_on(async {
        // Nobody has asked it to begin.
        drop(socket.receive(&pool)?);
        let mut first = socket.receive(&pool)?;
        let mut held = vec![
            first.next_span().await.expect("it goes on")?,
            first.next_span().await.expect("it goes on")?,
        ];
        assert_eq!(pool.held(), 2);
        for _ in 0..3 {
            driver.sleep(std::time::Duration::from_millis(5)).await?;
            assert!(poll_once(first.next_span()).await.is_none(), "there is no chunk");
        }
        let mut got = Vec::new();
        loop {
            for span in held.drain(..) {
                got.extend_from_slice(&span);
            }
            match first.next_span().await {
                Some(span) => held.push(span?),
                None => break,
            }
        }
        Ok::<_, Error>(got)
    });
    assert_same(&got.expect("driven").expect("received"), &bytes);
    drop(socket);
    peer.join().expect("the peer is content");
}

#[test]
fn in_user_space_everything_comes_in_spans_and_is_copied() {
    for driver in drivers() {
        everything_comes_in_spans(&driver, Ciphering::User, |tally, _| {
            assert_eq!(tally, Tally { copied: tally.total(), ..Tally::default() });
        });
    }
}

#[test]
fn in_user_space_a_full_pool_makes_a_receiver_wait() {
    for driver in drivers() {
        a_full_pool_makes_a_receiver_wait(&driver, Ciphering::User);
    }
}

/// Connections in the clear and such that are deciphered here share a pool, and starve neither.
#[test]
fn a_pool_serves_plain_connections_and_deciphered_ones() {
    for driver in drivers() {
        let pool = pool(&driver, 4_096, 2);
        let (near, mut far) = crate::traffic::tcp("127.0.0.1");
        let plain = driver.socket(near).unwrap();
        let (one, other) = pair(&driver, Ciphering::User);
        let done = driver.block_on(async {
            let mut in_clear = plain.receive(&pool)?;
            let mut deciphered = other.receive(&pool)?;
            assert_eq!(deciphered.engine().0, ReceiveEngine::Epoll);
            for round in 0..5 {
                let bytes = pattern(round, 20_000);
                std::io::Write::write_all(&mut far, &bytes).unwrap();
                let sending = one.send(Buffer::from(bytes.clone())).expect("accepted");
                let both = try_zip(take(&mut in_clear, 20_000), take(&mut deciphered, 20_000));
                let (first, second) = both.await?;
                assert_same(&first, &bytes);
                assert_same(&second, &bytes);
                sending.await?.sent?;
            }
            Ok::<_, Error>(())
        });
        done.expect("driven").expect("all came");
    }
}

/// What was deciphered with the bytes before is no more in the socket.
#[test]
fn a_connection_with_deciphered_bytes_is_readable() {
    for driver in drivers() {
        let (near, far) = pair(&driver, Ciphering::User);
        let done = driver.block_on(async {
            near.send(Buffer::from(pattern(1, 100))).expect("accepted").await?.sent?;
            for len in [1, 99] {
                driver.timeout(std::time::Duration::from_secs(20), far.readable()?).await??;
                let buffer = Buffer::from(vec![0; len]);
                far.receive_exact(buffer).expect("accepted").await?.result?;
            }
            assert!(poll_once(far.readable()?).await.is_none());
            Ok::<_, Error>(())
        });
        done.expect("driven").expect("it is told");
    }
}
