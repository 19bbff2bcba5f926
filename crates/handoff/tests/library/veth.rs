//! Every engine over a veth pair between two namespaces: what arrives is what was lent. Needs root, or a
//! kernel that lets users make namespaces.

use std::future::IntoFuture;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use handoff::{
    Buffer, Driver, Engine, Message, Outcome, Pages, Payload, Region, RingUse, SharedBuffer,
    SharedRegion, Socket,
};
use handoff_testbed::{Pair, PairEnd};

use crate::traffic::{self, attached, patience, pattern, read_all, within};

const LONG: Duration = Duration::from_secs(30);

fn pair(test: &str) -> Option<Pair> {
    match Pair::new(9000) {
        Ok(pair) => Some(pair),
        Err(error) => {
            traffic::skip(test, &error.to_string());
            None
        }
    }
}

fn address(end: &PairEnd, v6: bool) -> IpAddr {
    if v6 { end.v6().into() } else { end.v4().into() }
}

/// Where the lent bytes come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Heap,
    Base,
    Registered,
    Huge,
    HugeRegistered,
    Memfd,
    MemfdRegistered,
}

const MEMORIES: [Memory; 7] = [
    Memory::Heap,
    Memory::Base,
    Memory::Registered,
    Memory::Huge,
    Memory::HugeRegistered,
    Memory::Memfd,
    Memory::MemfdRegistered,
];

/// One way to send, and the sizes of its payloads.
#[derive(Clone, Copy, Debug)]
struct Way {
    ring: RingUse,
    engine: Engine,
    v6: bool,
    memory: Memory,
    pieces: usize,
    header: usize,
}

/// All pairs of an engine with another property, and every value of that property beside a changing mix.
fn ways() -> Vec<Way> {
    let engines = [
        (RingUse::Prefer, Engine::Auto),
        (RingUse::Prefer, Engine::UringZc),
        (RingUse::Prefer, Engine::MsgZerocopy),
        (RingUse::Prefer, Engine::Copy),
        (RingUse::Avoid, Engine::Auto),
        (RingUse::Avoid, Engine::MsgZerocopy),
        (RingUse::Avoid, Engine::Copy),
    ];
    let mut ways = Vec::new();
    for (row, (ring, engine)) in engines.into_iter().enumerate() {
        for (column, memory) in MEMORIES.into_iter().enumerate() {
            let place = row + column;
            let (pieces, header) = ([1, 3, 0][place % 3], [0, 64, 5][(row + column / 3) % 3]);
            let way = Way { ring, engine, v6: place % 2 == 1, memory, pieces, header };
            // 0 pieces stand for one buffer outside of a vector, 1 for a vector of one.
            ways.push(way);
            if engine == Engine::UringZc {
                ways.push(Way {
                    v6: !way.v6,
                    pieces: (pieces + 1) % 4,
                    header: 64 - header,
                    ..way
                });
            }
        }
    }
    ways
}

fn cut(len: usize, pieces: usize) -> Vec<usize> {
    let pieces = pieces.max(1);
    (0..pieces).map(|piece| len * (piece + 1) / pieces - len * piece / pieces).collect()
}

/// Sends one payload as told. A fragmented datagram returns only once the peer took it.
fn deliver<B: Payload>(
    driver: &Driver,
    message: Message<'_, B>,
    way: Way,
    to: Option<SocketAddr>,
    header: &[u8],
    take: &mut dyn FnMut(),
) -> usize {
    let message = message.header(header);
    let message = match to {
        Some(address) => message.to(address),
        None => message,
    };
    let (sent, loan) = message.send().unwrap().split();
    let sent = driver.block_on(sent).unwrap().unwrap_or_else(|error| panic!("{way:?}: {error}"));
    take();
    let returned = driver.block_on(loan).unwrap().unwrap();
    assert_eq!(returned.receipt.tally.total(), sent as u64, "{way:?}");
    // Bytes delivered on the same host are copied on their way in, whoever sends them.
    if sent > 64 {
        assert_ne!(returned.receipt.outcome(), Outcome::ZeroCopy, "{way:?}");
    }
    sent
}

struct Sender {
    driver: Driver,
    way: Way,
    region: Option<Region>,
    shared: Option<SharedRegion>,
}

impl Sender {
    fn new(way: Way, room: usize) -> Self {
        let driver = Driver::builder().ring(way.ring).build().unwrap();
        let ring = driver.ring_unavailable().is_none();
        let mut sender = Self { driver, way, region: None, shared: None };
        match way.memory {
            Memory::Heap => {}
            Memory::Memfd | Memory::MemfdRegistered => {
                let region = SharedRegion::memfd(room).unwrap();
                if ring && way.memory == Memory::MemfdRegistered {
                    sender.driver.register(&region).unwrap();
                }
                sender.shared = Some(region);
            }
            _ => {
                let huge = matches!(way.memory, Memory::Huge | Memory::HugeRegistered);
                let region =
                    if huge { Region::huge(room) } else { Region::anonymous(room) }.unwrap();
                if let Pages::BaseInsteadOfHuge(reason) = region.pages() {
                    traffic::skip("huge pages over veth", reason);
                }
                let registered = matches!(way.memory, Memory::Registered | Memory::HugeRegistered);
                if ring && registered {
                    sender.driver.register(&region).unwrap();
                }
                sender.region = Some(region);
            }
        }
        sender
    }

    fn buffer(&mut self, bytes: &[u8]) -> Buffer {
        let Some(region) = &mut self.region else { return Buffer::from(bytes.to_vec()) };
        let mut buffer = region.take(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn shared_buffer(&mut self, bytes: &[u8]) -> SharedBuffer {
        let buffer = self.shared.as_mut().unwrap().take(bytes.len()).unwrap();
        buffer.view().write(0, bytes);
        buffer
    }

    fn send(
        &mut self,
        socket: &Socket,
        payload: &[u8],
        to: Option<SocketAddr>,
        header: &[u8],
        take: &mut dyn FnMut(),
    ) {
        let way = self.way;
        let driver = self.driver.clone();
        let mut parts = Vec::new();
        let mut start = 0;
        for len in cut(payload.len(), way.pieces) {
            parts.push(&payload[start..start + len]);
            start += len;
        }
        let sent = match (self.shared.is_some(), way.pieces) {
            (false, 0) => {
                let buffer = self.buffer(payload);
                deliver(&driver, socket.message(buffer), way, to, header, take)
            }
            (false, _) => {
                let buffers: Vec<_> = parts.iter().map(|part| self.buffer(part)).collect();
                deliver(&driver, socket.message(buffers), way, to, header, take)
            }
            (true, 0) => {
                let buffer = self.shared_buffer(payload);
                deliver(&driver, socket.message(buffer), way, to, header, take)
            }
            (true, _) => {
                let buffers: Vec<_> = parts.iter().map(|part| self.shared_buffer(part)).collect();
                deliver(&driver, socket.message(buffers), way, to, header, take)
            }
        };
        assert_eq!(sent, payload.len() + header.len(), "{way:?}");
    }
}

#[test]
fn streams_arrive_whole() {
    let Some(pair) = pair("streams_arrive_whole") else { return };
    within(LONG, move || {
        let _inside = pair.left.namespace().enter_thread().unwrap();
        for (number, way) in ways().into_iter().enumerate() {
            let mut sizes = vec![0, 1, 4095, 70_001];
            sizes.push(if number % 8 == 0 { 4 << 20 } else { 200_000 });
            let to = address(&pair.right, way.v6);
            let listener =
                pair.right.namespace().run(|| TcpListener::bind((to, 0)).unwrap()).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            let reader = read_all(far);
            let mut sender = Sender::new(way, sizes.iter().sum::<usize>() + (64 << 10));
            let socket = sender.driver.socket(near).unwrap();
            socket.set_engine(way.engine).unwrap();
            let mut expected = Vec::new();
            for (seed, size) in sizes.into_iter().enumerate() {
                let (header, payload) = (pattern(seed + 9, way.header), pattern(seed, size));
                expected.extend_from_slice(&header);
                expected.extend_from_slice(&payload);
                sender.send(&socket, &payload, None, &header, &mut || {});
            }
            drop(socket);
            assert!(reader.join().unwrap() == expected, "{way:?}");
        }
    });
}

#[test]
fn datagrams_arrive_whole() {
    let Some(pair) = pair("datagrams_arrive_whole") else { return };
    within(LONG, move || {
        let _inside = pair.left.namespace().enter_thread().unwrap();
        for (number, way) in ways().into_iter().enumerate() {
            let connected = number % 3 != 0;
            let bind = |end: &PairEnd| {
                let local = address(end, way.v6);
                end.namespace().run(|| UdpSocket::bind((local, 0)).unwrap()).unwrap()
            };
            let (near, far) = (bind(&pair.left), bind(&pair.right));
            far.set_read_timeout(Some(patience(Duration::from_secs(2)))).unwrap();
            let mut to = Some(far.local_addr().unwrap());
            if connected {
                near.connect(to.take().unwrap()).unwrap();
            }
            // More than 17 pages in one datagram are the subject of another test.
            let sizes = [0, 1, 1472, 8900, 30_000, 60_000];
            let mut sender = Sender::new(way, sizes.iter().sum::<usize>() + (64 << 10));
            let socket = sender.driver.socket(near).unwrap();
            socket.set_engine(way.engine).unwrap();
            let mut space = vec![0; 1 << 16];
            for (seed, size) in sizes.into_iter().enumerate() {
                let (header, payload) = (pattern(seed + 9, way.header), pattern(seed, size));
                let expected = [&header[..], &payload[..]].concat();
                let mut take = || {
                    let got = far
                        .recv(&mut space)
                        .unwrap_or_else(|error| panic!("{way:?} {size}: {error}"));
                    assert!(space[..got] == expected, "{way:?} {size}");
                };
                sender.send(&socket, &payload, to, &header, &mut take);
            }
        }
    });
}

#[test]
fn a_datagram_that_is_too_long_names_the_limit() {
    let Some(pair) = pair("a_datagram_that_is_too_long_names_the_limit") else { return };
    within(LONG, move || {
        let _inside = pair.left.namespace().enter_thread().unwrap();
        for (driver, engine) in traffic::engines_apart() {
            for (v6, most) in [(false, 65_507), (true, 65_527)] {
                let to = SocketAddr::new(address(&pair.right, v6), 9);
                let near = UdpSocket::bind((address(&pair.left, v6), 0)).unwrap();
                near.connect(to).unwrap();
                let socket = attached(&driver, near, engine);
                for len in [most + 1, 100_000] {
                    let mut region = Region::anonymous(len).unwrap();
                    let buffer = region.take(len).unwrap();
                    let finished = driver
                        .block_on(socket.send(buffer).unwrap().into_future())
                        .unwrap()
                        .unwrap();
                    let error = finished.sent.unwrap_err();
                    assert!(error.to_string().contains(&most.to_string()), "{engine}: {error}");
                    assert_eq!(finished.buffer.len(), len);
                    assert_eq!(finished.receipt.tally.total(), 0, "{engine}");
                }
            }
        }
    });
}
