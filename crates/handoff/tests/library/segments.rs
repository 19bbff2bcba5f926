//! One lent buffer as several datagrams: every engine, whole pieces with the rest in the last, in order; and
//! sends that cannot go this way.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, Message, Payload, Region, Socket};
use handoff_testbed::{Pair, PairEnd};
use socket2::SockRef;

use crate::traffic::{
    self, assert_same, attached, engines_apart, filled, pattern, stay_on_one_processor, tcp,
    udp_pair, with_each_engine, within,
};

const LONG: Duration = Duration::from_secs(60);
/// An empty datagram ends a reader.
const END: &[u8] = b"";

/// Takes datagrams until an empty one comes.
struct Reader {
    far: UdpSocket,
    datagrams: JoinHandle<Vec<Vec<u8>>>,
}

impl Reader {
    fn new(far: UdpSocket) -> Self {
        // The socket is charged much more than the bytes for small datagrams.
        SockRef::from(&far).set_recv_buffer_size(8 << 20).unwrap();
        let socket = far.try_clone().unwrap();
        let datagrams = thread::spawn(move || {
            let (mut all, mut space) = (Vec::new(), vec![0; 70_000]);
            loop {
                let len = socket.recv(&mut space).unwrap();
                if len == END.len() {
                    return all;
                }
                all.push(space[..len].to_vec());
            }
        });
        Self { far, datagrams }
    }
}

/// Sends as told; the far end gets pieces of so many bytes.
fn deliver<B: Payload>(
    driver: &Driver,
    socket: &Socket,
    far: UdpSocket,
    message: Message<'_, B>,
    segment: usize,
    expected: &[u8],
) -> B {
    // They come in their order, and the end last.
    stay_on_one_processor();
    let reader = Reader::new(far);
    let sending = message.segment(segment).send().unwrap();
    let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
    assert_eq!(finished.sent.unwrap(), expected.len());
    assert_eq!(finished.receipt.tally.total(), expected.len() as u64);
    let end = driver.block_on(async { socket.send(Buffer::from(END.to_vec())).unwrap().await });
    end.unwrap().unwrap().sent.unwrap();
    let datagrams = reader.datagrams.join().unwrap();
    let lens: Vec<_> = datagrams.iter().map(Vec::len).collect();
    let whole: Vec<_> = expected.chunks(segment).map(<[u8]>::len).collect();
    assert_eq!(lens, whole, "pieces of {segment} of {}", expected.len());
    assert_same(&datagrams.concat(), expected);
    drop(reader.far);
    finished.buffer
}

/// Sizes and pieces: less than a piece, one, some and a rest, more than the kernel takes at once by bytes and
/// by number.
const CASES: [(usize, usize); 8] = [
    (1, 1200),
    (1200, 1200),
    (12_000, 1200),
    (60_001, 1200),
    (100_000, 1400),
    (3000, 10),
    (64, 1),
    (61_441, 1452),
];

fn all_ways(
    driver: &Driver,
    engine: Engine,
    near: &dyn Fn() -> UdpSocket,
    far: &dyn Fn() -> UdpSocket,
) {
    for (case, (len, segment)) in CASES.into_iter().enumerate() {
        let (near, far) = (near(), far());
        // All pieces of a case fit, since their reader may not run meanwhile.
        SockRef::from(&far).set_recv_buffer_size(1 << 20).unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let socket = attached(driver, near, engine);
        let mut region = Region::anonymous(len + 128).unwrap();
        // Away from a page's start, so that it touches as many pages as it can.
        let _before = region.take(64).unwrap();
        if case % 2 == 0 && driver.ring_unavailable().is_none() {
            driver.register(&region).unwrap();
        }
        let mut buffer = filled(&mut region, case, len);
        let bytes = pattern(case, len);
        let again = || far.try_clone().unwrap();
        buffer = deliver(driver, &socket, again(), socket.message(buffer), segment, &bytes);
        let headed = socket.message(buffer).header(b"a header");
        let expected = [b"a header", &bytes[..]].concat();
        buffer = deliver(driver, &socket, again(), headed, segment, &expected);
        let head = buffer.split_to(len / 3);
        let both =
            deliver(driver, &socket, again(), socket.message(vec![head, buffer]), segment, &bytes);
        let mut both = both.into_iter();
        let (mut head, rest) = (both.next().unwrap(), both.next().unwrap());
        head.join(rest).unwrap();
        let frozen = head.freeze();
        let part = frozen.part(len / 5..);
        deliver(driver, &socket, again(), socket.message(part), segment, &bytes[len / 5..]);
    }
}

#[test]
fn pieces_arrive_whole_by_every_engine() {
    with_each_engine(LONG, |driver, engine| {
        for address in ["127.0.0.1", "::1"] {
            let Ok(_) = UdpSocket::bind((address, 0)) else { continue };
            let bind = || UdpSocket::bind((address, 0)).unwrap();
            all_ways(&driver, engine, &bind, &bind);
        }
    });
}

fn bind(end: &PairEnd, v6: bool) -> UdpSocket {
    let address: IpAddr = if v6 { end.v6().into() } else { end.v4().into() };
    end.namespace().run(|| UdpSocket::bind((address, 0))).unwrap().unwrap()
}

#[test]
fn pieces_arrive_whole_over_veth() {
    within(LONG, || {
        let test = "pieces_arrive_whole_over_veth";
        let pair = match Pair::new(1500) {
            Ok(pair) => pair,
            Err(error) => return traffic::skip(test, &error.to_string()),
        };
        for (driver, engine) in engines_apart() {
            for v6 in [false, true] {
                all_ways(&driver, engine, &|| bind(&pair.left, v6), &|| bind(&pair.right, v6));
            }
        }
    });
}

/// Each piece is a datagram of its own, so it has to fit the path; otherwise nothing is sent, and the
/// socket still works.
#[test]
fn a_piece_longer_than_the_path_takes_is_refused() {
    within(LONG, || {
        let test = "a_piece_longer_than_the_path_takes_is_refused";
        let pair = match Pair::new(1500) {
            Ok(pair) => pair,
            Err(error) => return traffic::skip(test, &error.to_string()),
        };
        for (driver, engine) in engines_apart() {
            let far = bind(&pair.right, false);
            let near = bind(&pair.left, false);
            near.connect(far.local_addr().unwrap()).unwrap();
            let socket = attached(&driver, near, engine);
            let mut region = Region::anonymous(8192).unwrap();
            let buffer = filled(&mut region, 1, 8000);
            let (buffer, error) = refusal(&driver, socket.message(buffer).segment(1473));
            assert!(matches!(error, Error::MessageTooLong { size: 1473, .. }), "{engine}: {error}");
            assert!(
                error.to_string().contains("path to the peer has an MTU of 1500"),
                "{engine}: {error}"
            );
            assert!(error.to_string().contains("1472"), "{engine}: {error}");
            let message = socket.message(buffer);
            deliver(&driver, &socket, far.try_clone().unwrap(), message, 1472, &pattern(1, 8000));
            // The path's limit is unknown for a socket that sends to anybody.
            let socket = attached(&driver, bind(&pair.left, false), engine);
            let buffer = Buffer::from(pattern(1, 8000));
            let message = socket.message(buffer).to(far.local_addr().unwrap());
            let (_, error) = refusal(&driver, message.segment(1473));
            assert!(matches!(error, Error::MessageTooLong { size: 1473, .. }), "{engine}: {error}");
            assert!(error.to_string().contains("at an MTU of 1500"), "{engine}: {error}");
        }
    });
}

/// Sends something that fails and sends nothing.
fn refusal<B: Payload>(driver: &Driver, message: Message<'_, B>) -> (B, Error) {
    let sending = message.send().unwrap();
    let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
    assert_eq!(finished.receipt.tally.total(), 0);
    (finished.buffer, finished.sent.expect_err("it can't go"))
}

/// The kernel answers EINVAL to these as well, and no datagram is too long.
#[test]
fn an_error_is_about_what_is_wrong() {
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    within(LONG, || {
        let set = |near: &UdpSocket, level, name| {
            let on: libc::c_int = 1;
            // SAFETY: the kernel reads an int, which lives through the call.
            let answer = unsafe {
                libc::setsockopt(near.as_raw_fd(), level, name, (&raw const on).cast(), 4)
            };
            assert_eq!(answer, 0);
        };
        for (driver, engine) in engines_apart() {
            for (address, level, name, word) in [
                ("127.0.0.1", libc::SOL_SOCKET, libc::SO_NO_CHECK, "SO_NO_CHECK"),
                ("::1", libc::SOL_UDP, UDP_NO_CHECK6_TX, "UDP_NO_CHECK6_TX"),
            ] {
                let Ok(near) = UdpSocket::bind((address, 0)) else { continue };
                let far = UdpSocket::bind((address, 0)).unwrap();
                set(&near, level, name);
                near.connect(far.local_addr().unwrap()).unwrap();
                let socket = attached(&driver, near, engine);
                let message = socket.message(Buffer::from(pattern(1, 8000)));
                let (_, error) = refusal(&driver, message.segment(1200));
                assert!(matches!(error, Error::Invalid(_)), "{engine}: {error}");
                assert!(error.to_string().contains(word), "{engine}: {error}");
            }
            let near = UdpSocket::bind("127.0.0.1:0").unwrap();
            let socket = attached(&driver, near, engine);
            let message = socket.message(Buffer::from(pattern(1, 8000)));
            let (_, error) = refusal(&driver, message.to(NOBODY).segment(1200));
            assert!(error.to_string().contains("port"), "{engine}: {error}");
        }
    });
}

/// No port has the number 0.
const NOBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A zero-copy message may touch 17 pages, also if its datagrams are short.
#[test]
fn more_pages_than_a_message_may_touch_are_no_matter_of_the_path() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = udp_pair();
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(60 * 8192).unwrap();
        let pieces: Vec<_> = region
            .chunks(8192)
            .into_iter()
            .map(|mut piece| {
                piece.set_len(1000);
                piece
            })
            .collect();
        let expected = pieces.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>();
        let message = socket.message(pieces).segment(1500);
        if matches!(engine, Engine::Copy | Engine::Auto) {
            deliver(&driver, &socket, far, message, 1500, &expected);
            return;
        }
        let (_, error) = refusal(&driver, message);
        assert!(error.to_string().contains("17 pages"), "{engine}: {error}");
        assert!(!error.to_string().contains("MTU"), "{engine}: {error}");
    });
}

#[test]
fn what_cannot_go_in_pieces_comes_back() {
    let driver = Driver::new().unwrap();
    let (stream, _far): (TcpStream, _) = tcp("127.0.0.1");
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (unix, _other) = UnixDatagram::pair().unwrap();
    let of = |socket: Socket, segment, word: &str| {
        let refused = socket.message(Buffer::from(vec![1; 100])).segment(segment).send();
        let refused = refused.unwrap_err();
        assert_eq!(refused.buffer.len(), 100);
        assert!(refused.error.to_string().contains(word), "{}", refused.error);
    };
    of(driver.socket(stream).unwrap(), 10, "UDP");
    of(driver.socket(unix).unwrap(), 10, "UDP");
    let udp = driver.socket(udp).unwrap();
    of(udp.clone(), 0, "65507");
    of(udp, 65_508, "65507");
}
