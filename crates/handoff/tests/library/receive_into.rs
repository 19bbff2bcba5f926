//! Receiving into a chosen buffer: every byte in its place, one receiver at a time, no silent loss.

use std::future::poll_fn;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use handoff::{
    Append, Buffer, Driver, Error, PayloadMut, Region, SharedRegion, Socket, Transfer, Wait,
};
use handoff_sys::tcp::bytes_acked;

use crate::traffic::{assert_same, await_bytes, pattern, tcp, udp_pair, with_each_driver};

const LONG: Duration = Duration::from_secs(60);
const MESSAGES: usize = 10_000;
const HEADER: usize = 6;

fn connected(driver: &Driver) -> (Socket, TcpStream) {
    let (near, far) = tcp("127.0.0.1");
    (driver.socket(near).unwrap(), far)
}

/// The length of the message with this number: odd, mostly small, some larger than what comes at once.
fn len_of(number: usize) -> usize {
    match number % 1_000 {
        999 => 300_001,
        500 => 0,
        small => (small * 37 % 2_001) | 1,
    }
}

/// Sends all messages in pieces that ignore the messages' ends.
fn send_messages(mut far: TcpStream) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        for number in 0..MESSAGES {
            bytes.extend((len_of(number) as u32).to_le_bytes());
            bytes.extend((number as u16).to_le_bytes());
            bytes.extend(pattern(number, len_of(number)));
            while bytes.len() > 7_777 {
                far.write_all(&bytes[..7_777]).unwrap();
                bytes.drain(..7_777);
            }
        }
        far.write_all(&bytes).unwrap();
    })
}

/// Receives header and payload of each message into buffers from `take`, checks them, and sees the stream's
/// end.
fn receive_messages<B: PayloadMut>(
    driver: &Driver,
    socket: &Socket,
    mut take: impl FnMut(usize) -> B,
    bytes_of: impl Fn(&B) -> Vec<u8>,
) {
    let receiving = async {
        for number in 0..MESSAGES {
            let header = socket.receive_exact(take(HEADER)).unwrap().await.unwrap();
            assert_eq!(header.result.unwrap(), HEADER);
            let header = bytes_of(&header.buffer);
            let len = u32::from_le_bytes(*header.first_chunk().unwrap()) as usize;
            assert_eq!(len, len_of(number));
            assert_eq!(header[4..], (number as u16).to_le_bytes());
            let payload = socket.receive_exact(take(len)).unwrap().await.unwrap();
            assert_eq!(payload.result.unwrap(), len);
            assert_same(&bytes_of(&payload.buffer), &pattern(number, len));
        }
        socket.receive_into(take(1)).unwrap().await.unwrap().result.unwrap()
    };
    assert_eq!(driver.block_on(receiving).unwrap(), 0);
}

/// Runs it on drivers of both kinds, with everything registered that they can register.
fn on_each<B: PayloadMut>(
    open: impl Fn(&Driver) -> Box<dyn FnMut(usize) -> B> + Send + 'static,
    bytes_of: impl Fn(&B) -> Vec<u8> + Send + 'static,
) {
    with_each_driver(LONG, move |driver| {
        let (socket, far) = connected(&driver);
        let sender = send_messages(far);
        receive_messages(&driver, &socket, open(&driver), &bytes_of);
        sender.join().unwrap();
        assert_eq!(driver.in_flight(), 0);
    });
}

fn registered(driver: &Driver, len: usize) -> Region {
    let region = Region::anonymous(len).unwrap();
    if driver.ring_unavailable().is_none() {
        driver.register(&region).unwrap();
    }
    region
}

#[test]
fn messages_land_in_registered_memory_header_and_payload_apart() {
    const LEN: usize = 1 << 20;
    on_each(
        |driver| {
            let driver = driver.clone();
            let mut region = registered(&driver, LEN);
            let mut used = 0;
            Box::new(move |len| {
                used += len + 64;
                if used > LEN {
                    driver.unregister(&region).ok();
                    (region, used) = (registered(&driver, LEN), len + 64);
                }
                region.take(len).unwrap()
            })
        },
        |buffer: &Buffer| buffer.to_vec(),
    );
}

#[test]
fn messages_land_in_other_memory() {
    on_each(|_| Box::new(|len| Buffer::from(vec![0xee; len])), |buffer: &Buffer| buffer.to_vec());
}

#[test]
fn messages_land_behind_what_a_vector_has() {
    const BEGIN: &[u8] = b"begins";
    with_each_driver(LONG, |driver| {
        let (socket, far) = connected(&driver);
        let sender = send_messages(far);
        let receiving = async {
            for number in 0..MESSAGES {
                let header =
                    socket.receive_exact(Append::to(vec![], HEADER)).unwrap().await.unwrap();
                assert_eq!(header.result.unwrap(), HEADER);
                let header = header.buffer.into_vec();
                let len = u32::from_le_bytes(*header.first_chunk().unwrap()) as usize;
                assert_eq!(len, len_of(number));
                // In two parts; the second continues where the first has ended.
                let payload = Append::to(BEGIN.to_vec(), len / 3);
                let payload = socket.receive_exact(payload).unwrap().await.unwrap();
                assert_eq!(payload.result.unwrap(), len / 3);
                assert_eq!(payload.buffer.room(), 0);
                let payload = Append::to(payload.buffer.into_vec(), len - len / 3);
                let payload = socket.receive_exact(payload).unwrap().await.unwrap();
                assert_eq!(payload.result.unwrap(), len - len / 3);
                let payload = payload.buffer.into_vec();
                let (begin, rest) = payload.split_at(BEGIN.len());
                assert_eq!(begin, BEGIN);
                assert_same(rest, &pattern(number, len));
            }
        };
        driver.block_on(receiving).unwrap();
        sender.join().unwrap();
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn a_vector_has_just_what_came_whatever_ended_its_receive() {
    with_each_driver(LONG, |driver| {
        for came in [0, 5, 5_000] {
            let (socket, mut far) = connected(&driver);
            far.write_all(&pattern(1, came)).unwrap();
            await_bytes(&socket, came);
            let first = socket.receive_exact(Append::to(b"ab".to_vec(), 10_000)).unwrap();
            turn(&driver);
            first.cancel();
            let first = driver.block_on(first).unwrap().unwrap();
            let Err(Error::Canceled { done }) = first.result else { panic!("{first:?}") };
            assert_eq!((done, first.buffer.room()), (came, 10_000 - came));
            far.write_all(&pattern(2, 7)).unwrap();
            drop(far);
            // What is left of the room goes on.
            let second =
                driver.block_on(socket.receive_exact(first.buffer).unwrap()).unwrap().unwrap();
            assert!(
                matches!(second.result, Err(Error::StreamEnded { received: 7, .. })),
                "{second:?}"
            );
            let all = [b"ab", &pattern(1, came)[..], &pattern(2, 7)].concat();
            assert_same(&second.buffer.into_vec(), &all);
            let refused = socket.receive_into(Append::to(all.clone(), 0)).unwrap_err();
            assert_same(&refused.buffer.into_vec(), &all);
        }
        let (socket, mut far) = connected(&driver);
        let mut dropped = socket.receive_exact(Append::to(Vec::new(), 10_000)).unwrap();
        let begun =
            poll_fn(|context| Poll::Ready(Pin::new(&mut dropped).poll(context).is_pending()));
        assert!(driver.block_on(begun).unwrap());
        far.write_all(&[1; 50]).unwrap();
        drop(dropped);
        drop(socket);
        turn(&driver);
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn messages_land_in_several_buffers_one_after_another() {
    on_each(
        |_| {
            Box::new(|len| {
                let lens = [len / 3, 0, len - len / 3, 0];
                lens.map(|len| Buffer::from(vec![0xee; len])).into_iter().collect()
            })
        },
        |buffers: &Vec<Buffer>| buffers.iter().flat_map(|it| it.to_vec()).collect(),
    );
}

#[test]
fn messages_land_in_memory_that_others_map() {
    with_each_driver(LONG, |driver| {
        let mut region = SharedRegion::memfd(1 << 20).unwrap();
        if driver.ring_unavailable().is_none() {
            driver.register(&region).unwrap();
        }
        let (socket, mut far) = connected(&driver);
        far.write_all(&pattern(4, 5_000)).unwrap();
        for part in pattern(4, 5_000).chunks(1_250) {
            let buffer = region.take(1_250).unwrap();
            let over = driver.block_on(socket.receive_exact(buffer).unwrap()).unwrap().unwrap();
            assert_eq!(over.result.unwrap(), 1_250);
            let mut got = vec![0; 1_250];
            over.buffer.view().read(0, &mut got);
            assert_same(&got, part);
        }
    });
}

#[test]
fn a_socket_that_does_not_block_is_waited_for() {
    with_each_driver(LONG, |driver| {
        let (near, mut far) = tcp("127.0.0.1");
        near.set_nonblocking(true).unwrap();
        let socket = driver.socket(near).unwrap();
        let mut region = registered(&driver, 1 << 16);
        let sender = thread::spawn(move || {
            for part in pattern(3, 9_000).chunks(3_000) {
                far.write_all(part).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        for buffer in [region.take(4_000).unwrap(), Buffer::from(vec![0; 5_000])] {
            let (len, all) = (buffer.len(), pattern(3, 9_000));
            let expected = if len == 4_000 { &all[..4_000] } else { &all[4_000..] };
            let over = driver.block_on(socket.receive_exact(buffer).unwrap()).unwrap().unwrap();
            assert_eq!(over.result.unwrap(), len);
            assert_same(&over.buffer, expected);
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_stream_that_ends_too_early_says_how_much_came() {
    with_each_driver(LONG, |driver| {
        for came in [0, 1, 70_000] {
            let (socket, mut far) = connected(&driver);
            far.write_all(&pattern(1, came)).unwrap();
            drop(far);
            let mut region = registered(&driver, 1 << 20);
            let wait = socket.receive_exact(region.take(100_000).unwrap()).unwrap();
            let over = driver.block_on(wait).unwrap().unwrap();
            let error = over.result.unwrap_err();
            assert!(
                matches!(error, Error::StreamEnded { received, wanted: 100_000 } if received == came),
                "{error}"
            );
            assert_same(&over.buffer[..came], &pattern(1, came));
            // And so again.
            let end = driver.block_on(socket.receive_into(over.buffer).unwrap()).unwrap().unwrap();
            assert_eq!(end.result.unwrap(), 0);
        }
    });
}

#[test]
fn nothing_is_waited_for_where_nothing_is_wanted() {
    with_each_driver(LONG, |driver| {
        let (socket, _far) = connected(&driver);
        let none = driver.block_on(socket.receive_exact(Buffer::from(vec![])).unwrap());
        assert_eq!(none.unwrap().unwrap().result.unwrap(), 0);
        let refused = socket.receive_into(Buffer::from(vec![])).unwrap_err();
        assert!(refused.error.to_string().contains("room for a byte"), "{}", refused.error);
    });
}

#[test]
fn a_second_receiver_of_any_kind_is_refused() {
    with_each_driver(LONG, |driver| {
        let (socket, mut far) = connected(&driver);
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let buffer = || Buffer::from(vec![0; 9]);
        let refused = |socket: &Socket| {
            for refused in [socket.receive_into(buffer()), socket.receive_exact(buffer())] {
                let error = refused.unwrap_err().error;
                assert!(error.to_string().contains("has a receiver"), "{error}");
            }
            assert!(socket.receive(&pool).is_err());
        };
        let first = socket.receive_exact(buffer()).unwrap();
        refused(&socket);
        // A clone is of the same socket.
        refused(&socket.clone());
        far.write_all(&pattern(1, 9)).unwrap();
        let first = driver.block_on(first).unwrap().unwrap();
        assert_same(&first.buffer, &pattern(1, 9));
        let spans = socket.receive(&pool).unwrap();
        refused(&socket);
        drop(spans);
        drop(socket.receive_into(buffer()).unwrap());
    });
}

/// Turns the driver until the receive has something, or often enough for that.
fn turn(driver: &Driver) {
    for _ in 0..20 {
        driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn a_cancelled_receive_gives_back_what_it_has_and_the_stream_goes_on() {
    with_each_driver(LONG, |driver| {
        for came in [0, 5, 5_000] {
            let (socket, mut far) = connected(&driver);
            let mut region = registered(&driver, 1 << 16);
            let first = socket.receive_exact(region.take(10_000).unwrap()).unwrap();
            far.write_all(&pattern(2, came)).unwrap();
            turn(&driver);
            first.cancel();
            let over = driver.block_on(first).unwrap().unwrap();
            let Err(Error::Canceled { done }) = over.result else { panic!("{over:?}") };
            assert!(done <= came, "{done}");
            assert_same(&over.buffer[..done], &pattern(2, came)[..done]);
            far.write_all(&pattern(3, 100)).unwrap();
            let rest = [&pattern(2, came)[done..], &pattern(3, 100)].concat();
            let buffer = region.take(rest.len()).unwrap();
            let next = driver.block_on(socket.receive_exact(buffer).unwrap()).unwrap().unwrap();
            assert_eq!(next.result.unwrap(), rest.len());
            assert_same(&next.buffer, &rest);
        }
    });
}

#[test]
fn a_receive_that_is_over_can_be_cancelled() {
    with_each_driver(LONG, |driver| {
        let (socket, mut far) = connected(&driver);
        far.write_all(b"all").unwrap();
        await_bytes(&socket, 3);
        let over = socket.receive_exact(Buffer::from(vec![0; 3])).unwrap();
        turn(&driver);
        over.cancel();
        assert_eq!(driver.block_on(over).unwrap().unwrap().result.unwrap(), 3);
    });
}

#[test]
fn what_a_dropped_receive_had_taken_is_told_to_whoever_receives_next() {
    with_each_driver(LONG, |driver| {
        for (wanted, came) in [(10_000, 500), (500, 500)] {
            let (socket, mut far) = connected(&driver);
            let mut first = socket.receive_exact(Buffer::from(vec![0; wanted])).unwrap();
            let poll =
                poll_fn(|context| Poll::Ready(Pin::new(&mut first).poll(context).is_pending()));
            assert!(driver.block_on(poll).unwrap());
            let acknowledged = || bytes_acked(far.as_fd()).unwrap();
            let before = acknowledged();
            (&far).write_all(&pattern(2, came)).unwrap();
            while acknowledged() < before + came as u64 {
                driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
            }
            turn(&driver);
            drop(first);
            let next = socket.receive_exact(Buffer::from(vec![0; 10]));
            let error = match next {
                Ok(next) => {
                    far.write_all(&pattern(2, 10)).unwrap();
                    driver.block_on(next).unwrap().unwrap().result.unwrap_err()
                }
                Err(refused) => refused.error,
            };
            assert!(matches!(error, Error::ReceivedLost { bytes } if bytes == came), "{error}");
            // And so for every later one.
            let later = socket.receive_into(Buffer::from(vec![0; 10])).unwrap_err();
            assert!(matches!(later.error, Error::ReceivedLost { .. }), "{}", later.error);
            let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
            assert!(matches!(socket.receive(&pool), Err(Error::ReceivedLost { .. })));
        }
    });
}

#[test]
fn what_comes_after_a_dropped_receive_is_the_next_ones() {
    with_each_driver(LONG, |driver| {
        let (socket, mut far) = connected(&driver);
        let mut region = registered(&driver, 1 << 20);
        for round in 0..200 {
            let dropped: Transfer<Buffer> = match round % 2 {
                0 => socket.receive_exact(region.take(50).unwrap()),
                _ => socket.receive_into(Buffer::from(vec![0; 50])),
            }
            .unwrap();
            if round % 3 > 0 {
                driver.turn(Wait::No).unwrap();
            }
            drop(dropped);
            let next = socket.receive_exact(region.take(60).unwrap()).unwrap();
            let third = socket.receive_exact(Buffer::from(vec![0; 1])).unwrap_err();
            assert!(third.error.to_string().contains("has a receiver"), "{}", third.error);
            if round % 5 == 0 {
                // This one waits for the end of the first, and is dropped as well.
                drop(next);
                let next = socket.receive_exact(region.take(60).unwrap()).unwrap();
                far.write_all(&pattern(round, 60)).unwrap();
                assert_same(&driver.block_on(next).unwrap().unwrap().buffer, &pattern(round, 60));
                continue;
            }
            far.write_all(&pattern(round, 60)).unwrap();
            let next = driver.block_on(next).unwrap().unwrap();
            assert_eq!(next.result.unwrap(), 60);
            assert_same(&next.buffer, &pattern(round, 60));
        }
        drop(socket);
        turn(&driver);
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn a_receive_without_a_driver_says_so() {
    with_each_driver(LONG, |driver| {
        let (socket, _far) = connected(&driver);
        drop(socket.receive_exact(Buffer::from(vec![0; 5])).unwrap());
        let waiting = socket.receive_exact(Buffer::from(vec![0; 5])).unwrap();
        drop(driver);
        let over = waiting.try_take().expect("it has ended with the driver");
        assert!(matches!(over.result, Err(Error::DriverGone | Error::Canceled { .. })));
        assert_eq!(over.buffer.len(), 5);
        let refused = socket.receive_exact(over.buffer).unwrap_err();
        assert!(matches!(refused.error, Error::DriverGone), "{}", refused.error);
    });
}

#[test]
fn a_datagram_is_cut_at_the_buffers_length() {
    with_each_driver(LONG, |driver| {
        let (far, near) = udp_pair();
        let socket = driver.socket(near).unwrap();
        let mut region = registered(&driver, 1 << 16);
        for (sent, room) in [(100, 100), (100, 40), (40, 100), (0, 100)] {
            far.send(&pattern(5, sent)).unwrap();
            for buffer in [region.take(room).unwrap(), Buffer::from(vec![0; room])] {
                let receive = socket.receive_into(buffer).unwrap();
                let over = driver.block_on(receive).unwrap().unwrap();
                let came = sent.min(room);
                assert_eq!(over.result.unwrap(), came);
                assert_same(&over.buffer[..came], &pattern(5, came));
                far.send(&pattern(5, sent)).unwrap();
            }
            let _ = driver.block_on(socket.receive_into(Buffer::from(vec![0; 1])).unwrap());
        }
        let refused = socket.receive_exact(Buffer::from(vec![0; 5])).unwrap_err();
        assert!(refused.error.to_string().contains("datagram"), "{}", refused.error);
    });
}

#[test]
fn a_connection_that_is_reset_is_an_error() {
    with_each_driver(LONG, |driver| {
        let (near, far) = tcp("127.0.0.1");
        (&near).write_all(b"unread").unwrap();
        let socket = driver.socket(near).unwrap();
        let waiting = socket.receive_exact(Buffer::from(vec![0; 5])).unwrap();
        // Closed with bytes unread: a reset.
        far.peek(&mut [0]).unwrap();
        drop(far);
        let over = driver.block_on(waiting).unwrap().unwrap();
        assert_eq!(over.result.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        let (socket, far) = connected(&driver);
        far.shutdown(Shutdown::Write).unwrap();
        let over = driver.block_on(socket.receive_into(Buffer::from(vec![0; 5])).unwrap());
        assert_eq!(over.unwrap().unwrap().result.unwrap(), 0);
    });
}
