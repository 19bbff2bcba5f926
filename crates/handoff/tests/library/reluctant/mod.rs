//! Peers that acknowledge and take nothing, take a byte now and then, or vanish: none of them decides how long a buffer, a
//! descriptor or an operation is held. Over veth, since loopback copies. Needs root, or a kernel that lets users make
//! namespaces.

mod driverless;
mod fuse;
mod unclaimed;

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, RingUse, Sending, Socket, Wait};
use handoff_testbed::Pair;
use socket2::{SockFilter, SockRef};

use crate::traffic::{self, attached, engines, pattern, within};

const LONG: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(5);
/// The kernel takes some of these, and the peer nearly nothing.
const TAKEN: usize = 16 << 10;
/// The kernel takes a part of this.
const STALLED: usize = 4 << 20;

/// What a peer does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Peer {
    /// Acknowledges that it has no room.
    TakesNothing,
    /// Makes room for a byte now and then.
    TakesAByte,
    /// Is there no more.
    Vanishes,
}

const PEERS: [Peer; 3] = [Peer::TakesNothing, Peer::TakesAByte, Peer::Vanishes];

struct Road(Pair);

impl Road {
    fn new(test: &str) -> Option<Self> {
        match Pair::new(9000) {
            Ok(pair) => Some(Self(pair)),
            Err(error) => {
                traffic::skip(test, &error.to_string());
                None
            }
        }
    }

    /// Our end, and that of a peer with so much room.
    fn connection(&self, room: usize) -> (TcpStream, TcpStream) {
        self.connection_to(self.0.right.v4().into(), room)
    }

    /// The same to an address of the peer's.
    fn connection_to(&self, peer: IpAddr, room: usize) -> (TcpStream, TcpStream) {
        let Pair { left, right, .. } = &self.0;
        let listen = || {
            let listener = TcpListener::bind((peer, 0)).unwrap();
            SockRef::from(&listener).set_recv_buffer_size(room).unwrap();
            listener
        };
        let listener = right.namespace().run(listen).unwrap();
        let address = listener.local_addr().unwrap();
        let near = left.namespace().run(|| TcpStream::connect(address).unwrap()).unwrap();
        SockRef::from(&near).set_send_buffer_size(1 << 20).unwrap();
        (near, listener.accept().unwrap().0)
    }
}

/// Runs a test with each engine, against each kind of peer.
fn with_each(
    test: &str,
    builder: impl Fn(RingUse) -> Driver + Send + 'static,
    run: impl Fn(Driver, Engine, Peer, (TcpStream, TcpStream)) + Send + 'static,
) {
    let Some(road) = Road::new(test) else { return };
    within(LONG, move || {
        for ring in [RingUse::Prefer, RingUse::Avoid] {
            for engine in engines(&builder(ring)) {
                for peer in PEERS {
                    eprintln!("{engine}, {ring:?}, {peer:?}");
                    run(builder(ring), engine, peer, road.connection(4096));
                }
            }
        }
    });
}

fn driver(ring: RingUse) -> Driver {
    Driver::builder().ring(ring).build().unwrap()
}

fn hasty(ring: RingUse) -> Driver {
    Driver::builder().ring(ring).linger(20 * STEP).build().unwrap()
}

/// Sends that the kernel takes, and that are on loan afterwards where the engine lends.
fn taken(driver: &Driver, socket: &Socket) -> Vec<Sending<Buffer>> {
    let sendings: Vec<_> =
        (0..2).map(|seed| socket.send(Buffer::from(pattern(seed, TAKEN))).unwrap()).collect();
    driver.block_on(socket.flush()).unwrap().unwrap();
    sendings
}

/// The peer behaves for some turns of the driver.
fn behave(driver: &Driver, peer: Peer, far: &mut TcpStream) {
    if peer == Peer::Vanishes {
        // Packets do not reach it.
        let none = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
        SockRef::from(&*far).attach_filter(&[none]).unwrap();
    }
    for _ in 0..10 {
        if peer == Peer::TakesAByte {
            far.read_exact(&mut [0]).unwrap();
        }
        driver.turn(Wait::AtMost(STEP)).unwrap();
    }
}

/// What the peer has got ends with a reset, if it is told.
fn check_reset(peer: Peer, far: &mut TcpStream) {
    if peer != Peer::Vanishes {
        let error = far.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

/// Turns until the driver has nothing.
fn until_free(driver: &Driver) {
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(STEP)).unwrap();
    }
}

#[test]
fn an_aborted_connection_gives_everything_back() {
    const NAME: &str = "an_aborted_connection_gives_everything_back";
    with_each(NAME, driver, |driver, engine, peer, (near, mut far)| {
        let socket = attached(&driver, near, engine);
        let mut sendings = taken(&driver, &socket);
        sendings.push(socket.send(Buffer::from(pattern(2, STALLED))).unwrap());
        let receiving = socket.receive_into(Buffer::from(vec![0; 9])).unwrap();
        behave(&driver, peer, &mut far);
        socket.abort();
        driver
            .block_on(async {
                for (seed, sending) in sendings.into_iter().enumerate() {
                    let finished = sending.await.unwrap();
                    let len = if seed < 2 { TAKEN } else { STALLED };
                    assert!(finished.buffer[..] == pattern(seed, len));
                    assert_eq!(finished.sent.is_ok(), seed < 2, "{:?}", finished.sent);
                }
                assert!(receiving.await.unwrap().result.is_err());
            })
            .unwrap();
        assert_eq!(driver.in_flight(), 0);
        let refused = socket.send(Buffer::from(vec![1])).unwrap_err();
        assert!(matches!(refused.error, Error::StreamBroken { .. }), "{}", refused.error);
        check_reset(peer, &mut far);
    });
}

#[test]
fn a_send_that_is_cut_with_its_connection_leaves_nothing() {
    const NAME: &str = "a_send_that_is_cut_with_its_connection_leaves_nothing";
    with_each(NAME, hasty, |driver, engine, peer, (near, mut far)| {
        let socket = attached(&driver, near, engine);
        let sendings = taken(&driver, &socket);
        let (sent, on_loan) = socket.send(Buffer::from(pattern(2, STALLED))).unwrap().split();
        let sent = sent.cancel_on_drop();
        behave(&driver, peer, &mut far);
        drop((sendings, sent, on_loan, socket));
        until_free(&driver);
        if engine != Engine::Copy {
            check_reset(peer, &mut far);
        }
    });
}

#[test]
fn a_connection_that_nobody_holds_has_its_time() {
    const NAME: &str = "a_connection_that_nobody_holds_has_its_time";
    with_each(NAME, hasty, |driver, engine, peer, (near, mut far)| {
        let socket = attached(&driver, near, engine);
        drop(taken(&driver, &socket));
        // Nobody waits for it: it goes on by itself.
        drop(socket.send(Buffer::from(pattern(2, STALLED))).unwrap());
        drop(socket);
        behave(&driver, peer, &mut far);
        until_free(&driver);
        check_reset(peer, &mut far);
    });
}

#[test]
fn who_keeps_taking_gets_all_of_a_connection_that_nobody_holds() {
    let Some(road) = Road::new("who_keeps_taking_gets_all_of_a_connection_that_nobody_holds")
    else {
        return;
    };
    within(LONG, move || {
        for ring in [RingUse::Prefer, RingUse::Avoid] {
            let linger = 40 * STEP;
            let driver = Driver::builder().ring(ring).linger(linger).build().unwrap();
            let (near, mut far) = road.connection(64 << 10);
            let socket = driver.socket(near).unwrap();
            drop(socket.send(Buffer::from(pattern(0, STALLED))).unwrap());
            drop(socket);
            far.set_nonblocking(true).unwrap();
            // So slowly that its time comes several times.
            let (mut got, mut chunk) = (Vec::new(), vec![0; 16 << 10]);
            loop {
                driver.turn(Wait::AtMost(STEP)).unwrap();
                match far.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(len) => got.extend_from_slice(&chunk[..len]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                }
            }
            assert!(got == pattern(0, STALLED), "{} bytes came", got.len());
            assert_eq!(driver.in_flight(), 0);
        }
    });
}

#[test]
fn a_driver_that_goes_resets_what_it_cuts() {
    const NAME: &str = "a_driver_that_goes_resets_what_it_cuts";
    with_each(NAME, driver, |driver, engine, peer, (near, mut far)| {
        let socket = attached(&driver, near, engine);
        let sendings = taken(&driver, &socket);
        let stalled = socket.send(Buffer::from(pattern(2, STALLED))).unwrap();
        behave(&driver, peer, &mut far);
        drop(driver);
        let refused = socket.send(Buffer::from(vec![1])).unwrap_err();
        assert!(matches!(refused.error, Error::DriverGone), "{}", refused.error);
        drop((sendings, stalled, socket));
        if engine != Engine::Copy {
            check_reset(peer, &mut far);
        }
    });
}
