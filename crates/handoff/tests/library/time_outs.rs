//! A time-out at every stage of everything that you can wait for: what it reports, and that it loses nothing.
//! Connections and listeners are in `connections`; ends by the clock that report a count are in `deadlines`.

use std::fmt::Debug;
use std::future::{Future, IntoFuture as _};
use std::io::Write;
use std::time::Duration;

use handoff::{
    Buffer, BufferPool, Driver, Engine, Error, OnLoan, Payload, Region, Route, RouteEngine, Sent,
    Socket, Wait,
};
use socket2::SockRef;

use crate::traffic::{
    assert_same, attached, await_bytes, drivers, engines_apart, filled, narrow_tcp, pattern,
    read_all, stay_on_one_processor, tcp, udp_pair, with_each_driver, with_each_engine, within,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);
/// More than the buffers of a narrow connection hold.
const BLOCKED: usize = 1 << 20;

/// Waits for so long, in vain.
fn gives_up<F: Future<Output: Debug>>(driver: &Driver, time: Duration, future: F) {
    let gave_up = driver.block_on(driver.timeout(time, future)).unwrap();
    assert!(matches!(gave_up, Err(Error::TimedOut { after }) if after == time), "{gave_up:?}");
}

fn buffer(seed: usize, len: usize) -> Buffer {
    Buffer::from(pattern(seed, len))
}

/// Two sends to a peer that does not read: one in the kernel, and one that waits behind it.
fn two<B: Payload>(socket: &Socket, make: impl Fn(usize, usize) -> B) -> [(Sent, OnLoan<B>); 2] {
    [(2, BLOCKED), (3, 500)].map(|(seed, len)| socket.send(make(seed, len)).unwrap().split())
}

/// If you drop a send, or its buffer, the send goes on: all bytes arrive, and the buffers come back.
fn sends_go_on<B: Payload + Debug>(
    make: impl Fn(usize, usize) -> B + Copy,
    bytes: impl Fn(&B) -> Vec<u8>,
) {
    for (driver, engine) in engines_apart() {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let [(first, mut blocked), (second, mut behind)] = two(&socket, make);
        gives_up(&driver, SHORT, second);
        gives_up(&driver, SHORT, first);
        gives_up(&driver, SHORT, &mut behind);
        gives_up(&driver, SHORT, &mut blocked);
        let reader = read_all(far);
        for (loan, seed, len) in [(blocked, 2, BLOCKED), (behind, 3, 500)] {
            let back = driver.block_on(loan).unwrap().unwrap();
            assert_eq!(back.receipt.tally.total(), len as u64, "{engine}");
            assert_same(&bytes(&back.buffer), &pattern(seed, len));
        }
        drop(socket);
        assert_same(&reader.join().unwrap(), &[pattern(2, BLOCKED), pattern(3, 500)].concat());
        assert_eq!(driver.in_flight(), 0, "{engine}");
    }
}

#[test]
fn a_send_that_is_given_up_goes_on() {
    within(LONG, || sends_go_on(buffer, |buffer| buffer.to_vec()));
}

#[test]
fn a_frozen_send_that_is_given_up_goes_on() {
    let whole = |seed, len| buffer(seed, len).freeze();
    within(LONG, move || sends_go_on(whole, |frozen| frozen.to_vec()));
}

#[test]
fn a_send_of_several_buffers_that_is_given_up_goes_on() {
    let halves = |seed, len| {
        let mut head = buffer(seed, len);
        let tail = head.split_to(len / 2);
        vec![tail, head]
    };
    within(LONG, move || {
        sends_go_on(halves, |both: &Vec<Buffer>| {
            both.iter().flat_map(|part| part.to_vec()).collect()
        })
    });
}

/// A waiting send that a time-out cancels goes whole, if the kernel has it already, or not at all; the sends behind
/// it go in both cases.
#[test]
fn a_waiting_send_that_a_time_out_cancels_leaves_the_stream_whole() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let [(first, blocked), (second, behind)] = two(&socket, buffer);
        gives_up(&driver, SHORT, second.cancel_on_drop());
        let (third, last) = socket.send(buffer(4, 300)).unwrap().split();
        let reader = read_all(far);
        assert_eq!(driver.block_on(first).unwrap().unwrap(), BLOCKED, "{engine}");
        assert_eq!(driver.block_on(third).unwrap().unwrap(), 300, "{engine}");
        for (loan, seed, len) in [(blocked, 2, BLOCKED), (behind, 3, 500), (last, 4, 300)] {
            assert_same(&driver.block_on(loan).unwrap().unwrap().buffer, &pattern(seed, len));
        }
        drop(socket);
        let got = reader.join().unwrap();
        let (begin, rest) = got.split_at(BLOCKED);
        assert_same(begin, &pattern(2, BLOCKED));
        let (between, end) = rest.split_at(rest.len() - 300);
        assert!(between.is_empty() || between == pattern(3, 500), "{engine}: {between:?}");
        assert_same(end, &pattern(4, 300));
    });
}

/// The kernel has taken the bytes, and they cannot leave: the peer's window is closed.
#[test]
fn a_loan_that_is_given_up_comes_back_to_its_pool() {
    const LEN: usize = 8_000;
    with_each_engine(LONG, |driver, engine| {
        if !matches!(engine, Engine::UringZc | Engine::MsgZerocopy) {
            return;
        }
        let (mut near, far) = narrow_tcp();
        SockRef::from(&near).set_send_buffer_size(4 << 20).unwrap();
        let before = pattern(1, 160 << 10);
        near.write_all(&before).unwrap();
        let pool = BufferPool::new(Region::anonymous(2 * LEN).unwrap(), LEN).unwrap();
        let socket = attached(&driver, near, engine);
        let send = |seed| {
            let mut buffer = pool.try_get().unwrap();
            buffer.copy_from_slice(&pattern(seed, LEN));
            socket.send(buffer).unwrap().split()
        };
        let [(first, mut kept), (second, dropped)] = [send(2), send(3)];
        assert_eq!(driver.block_on(first).unwrap().unwrap(), LEN, "{engine}");
        assert_eq!(driver.block_on(second).unwrap().unwrap(), LEN, "{engine}");
        gives_up(&driver, SHORT, &mut kept);
        gives_up(&driver, SHORT, dropped);
        gives_up(&driver, SHORT, pool.get());
        assert_eq!(pool.free(), 0, "{engine}: the kernel has both");
        let reader = read_all(far);
        let back = driver.block_on(kept).unwrap().unwrap();
        assert_same(&back.buffer, &pattern(2, LEN));
        // Nobody else has it, and the dropped wait blocks nobody.
        let other = driver.block_on(pool.get()).unwrap();
        assert_eq!(pool.free(), 0);
        drop((back, other, socket));
        assert_eq!(pool.free(), 2, "{engine}");
        assert_same(&reader.join().unwrap(), &[before, pattern(2, LEN), pattern(3, LEN)].concat());
    });
}

/// Datagrams arrive whole and in order, up to those that were cancelled, if any were.
#[test]
fn segments_that_are_given_up_arrive_as_whole_pieces() {
    const PIECE: usize = 1_200;
    // More than the kernel takes at once.
    const LEN: usize = 100_000;
    with_each_engine(LONG, |driver, engine| {
        stay_on_one_processor();
        for cancels in [false, true] {
            let (near, far) = udp_pair();
            SockRef::from(&far).set_recv_buffer_size(8 << 20).unwrap();
            let socket = attached(&driver, near, engine);
            let message = socket.message(buffer(5, LEN)).segment(PIECE);
            let (sent, loan) = message.send().unwrap().split();
            let sent = if cancels { sent.cancel_on_drop() } else { sent };
            // Without a ring it may have gone at once.
            let time_out = driver.timeout(Duration::ZERO, sent);
            let in_time = driver.block_on(time_out).unwrap();
            let back = driver.block_on(loan).unwrap().unwrap();
            assert_same(&back.buffer, &pattern(5, LEN));
            let last = Buffer::from(b"!".to_vec());
            let last = driver.block_on(socket.send(last).unwrap().into_future()).unwrap().unwrap();
            assert_eq!(last.sent.unwrap(), 1);
            let (mut got, mut space) = (Vec::new(), [0; PIECE + 1]);
            loop {
                let len = far.recv(&mut space).unwrap();
                if space[..len] == *b"!" {
                    break;
                }
                got.extend_from_slice(&space[..len]);
                assert!(len == PIECE || got.len() == LEN, "{engine}: a piece of {len}");
            }
            let whole = !cancels || in_time.is_ok();
            assert!(!whole || got.len() == LEN, "{engine}: {} of {LEN} bytes", got.len());
            assert_same(&got, &pattern(5, LEN)[..got.len()]);
        }
    });
}

/// A dropped route has moved the beginning of its source, and the socket goes on behind it.
#[test]
fn a_route_that_is_given_up_has_sent_a_beginning() {
    within(LONG, || {
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(&pattern(6, BLOCKED)).unwrap();
        for driver in drivers() {
            for engine in [RouteEngine::Splice, RouteEngine::Memory, RouteEngine::Copy] {
                let (near, far) = narrow_tcp();
                let socket = driver.socket(near).unwrap();
                let file = driver.file(source.try_clone().unwrap()).unwrap();
                let mut route =
                    Route::new(&driver, (&file, 0..BLOCKED as u64), &socket).only(engine);
                let moved = route.progress();
                gives_up(&driver, SHORT, route.run());
                drop(route);
                let least = moved.get() as usize;
                assert!(least < BLOCKED, "{engine}");
                let reader = read_all(far);
                let (sent, loan) = socket.send(buffer(7, 500)).unwrap().split();
                let after = driver.block_on(sent).unwrap().unwrap();
                assert_same(&driver.block_on(loan).unwrap().unwrap().buffer, &pattern(7, 500));
                // The dropped connection attempt ends too, and lets go of the connection.
                while driver.in_flight() > 0 {
                    driver.turn(Wait::AtMost(SHORT)).unwrap();
                }
                drop(socket);
                let got = reader.join().unwrap();
                let (begun, behind) = got.split_at(got.len() - after);
                assert!(begun.len() >= least, "{engine}: {} of {least} bytes", begun.len());
                assert_same(begun, &pattern(6, BLOCKED)[..begun.len()]);
                assert_same(behind, &pattern(7, 500));
            }
        }
    });
}

#[test]
fn a_file_whose_sending_is_given_up_can_be_sent_again() {
    within(LONG, || {
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(&pattern(6, BLOCKED)).unwrap();
        for driver in drivers() {
            let file = driver.file(source.try_clone().unwrap()).unwrap();
            let (near, far) = narrow_tcp();
            let socket = driver.socket(near).unwrap();
            gives_up(&driver, SHORT, socket.send_file(&file, 0..u64::MAX));
            drop((socket, far));
            let (near, far) = tcp("127.0.0.1");
            let (socket, reader) = (driver.socket(near).unwrap(), read_all(far));
            let carried = driver.block_on(socket.send_file(&file, 0..u64::MAX)).unwrap();
            carried.result.unwrap();
            drop(socket);
            assert_same(&reader.join().unwrap(), &pattern(6, BLOCKED));
        }
    });
}

/// A receive dropped before anything came leaves all bytes to the next one, of any kind.
#[test]
fn receives_that_are_given_up_take_nothing_along() {
    with_each_driver(LONG, |driver| {
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(1 << 16).unwrap();
        if driver.ring_unavailable().is_none() {
            driver.register(&region).unwrap();
        }
        let mut room = || filled(&mut region, 0, 1_000);
        gives_up(&driver, SHORT, socket.receive_into(room()).unwrap());
        gives_up(&driver, SHORT, socket.receive_exact(room()).unwrap());
        far.write_all(&pattern(1, 400)).unwrap();
        let over = driver.block_on(socket.receive_into(room()).unwrap()).unwrap().unwrap();
        assert_same(&over.buffer[..over.result.unwrap()], &pattern(1, 400));
        // By reference nothing is dropped, and received bytes stay with it.
        let mut receiving = socket.receive_exact(room()).unwrap();
        far.write_all(&pattern(2, 1_000)[..300]).unwrap();
        gives_up(&driver, SHORT, &mut receiving);
        far.write_all(&pattern(2, 1_000)[300..]).unwrap();
        let over = driver.block_on(receiving).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), 1_000);
        assert_same(&over.buffer, &pattern(2, 1_000));
        // Dropped with a part, it tells the next how much that was.
        far.write_all(&pattern(3, 300)).unwrap();
        await_bytes(&socket, 300);
        let receiving = socket.receive_exact(room()).unwrap();
        driver.turn(Wait::No).unwrap();
        gives_up(&driver, SHORT, receiving);
        let lost = match socket.receive_into(room()) {
            Ok(next) => driver.block_on(next).unwrap().unwrap().result.unwrap_err(),
            Err(refused) => refused.error,
        };
        assert!(matches!(lost, Error::ReceivedLost { bytes: 300 }), "{lost}");
    });
}

#[test]
fn a_receiver_that_is_given_up_for_a_while_loses_nothing() {
    with_each_driver(LONG, |driver| {
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4_096).unwrap();
        let mut receiver = socket.receive(&pool).unwrap();
        for round in 0..3 {
            gives_up(&driver, SHORT, receiver.next_span());
            far.write_all(&pattern(round, 3_000)).unwrap();
            let mut got = Vec::new();
            while got.len() < 3_000 {
                let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
                got.extend_from_slice(&span);
            }
            assert_same(&got, &pattern(round, 3_000));
        }
    });
}
