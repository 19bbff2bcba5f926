//! One payload, and parts of it, on many sockets at once.

use std::net::{IpAddr, TcpStream, UdpSocket};
use std::thread;

use handoff::{Driver, Engine, Frozen, Region, Socket, Wait};
use handoff_testbed::Pair;

use crate::LONG;
use crate::readers::Readers;
use crate::traffic::{
    self, attached, engines_apart, filled, pattern, tcp, with_each_engine, within,
};

const LEN: usize = 48 << 10;
const MTU: u32 = 9000;
/// The size of a datagram that is not cut into fragments: for fragments, Linux 6.18 sometimes reports the return
/// seconds later, over a device like this one (seen with a program of its own).
const WHOLE: usize = 8000;

/// Sends one payload, and two parts of it, on every socket at once; the payload is free after that.
fn to_all(driver: &Driver, sockets: Vec<Socket>, payload: Frozen) {
    let (seed, len) = (usize::from(payload[0]), payload.len());
    let mut under_way = Vec::new();
    for socket in &sockets {
        under_way.push(socket.message(payload.clone()).header(b"head").send().unwrap());
    }
    let mut parts = Vec::new();
    for socket in &sockets {
        let both = vec![payload.part(..100), payload.part(len - 7..)];
        parts.push(socket.send(both).unwrap());
    }
    driver
        .block_on(async {
            for sending in under_way {
                let finished = sending.await.unwrap();
                assert_eq!(finished.sent.unwrap(), len + 4);
                assert_eq!(finished.receipt.tally.total(), len as u64 + 4);
                assert_eq!(finished.buffer.len(), len);
            }
            for sending in parts {
                assert_eq!(sending.await.unwrap().sent.unwrap(), 107);
            }
        })
        .unwrap();
    let mut buffer = payload.try_unfreeze().expect("all loans are over");
    assert_eq!(usize::from(buffer[0]), seed);
    buffer.fill(0);
    drop(sockets);
    // Lazy closes happen now.
    driver.turn(Wait::No).unwrap();
}

fn streams(
    driver: &Driver,
    engine: Engine,
    count: usize,
    connect: &dyn Fn() -> (TcpStream, TcpStream),
) {
    let mut readers = Readers::new();
    let sockets = (0..count).map(|_| {
        let (near, far) = connect();
        readers.add(far);

        attached(driver, near, engine)
    });
    let sockets: Vec<_> = sockets.collect();
    let mut region = Region::anonymous(LEN).unwrap();
    if engine != Engine::Copy && driver.ring_unavailable().is_none() {
        driver.register(&region).unwrap();
    }
    let bytes = pattern(count, LEN);
    to_all(driver, sockets, filled(&mut region, count, LEN).freeze());
    for got in readers.end() {
        let expected = [b"head", &bytes[..], &bytes[..100], &bytes[LEN - 7..]].concat();
        traffic::assert_same(&got, &expected);
    }
}

fn datagrams(
    driver: &Driver,
    engine: Engine,
    (count, payload): (usize, usize),
    near: &dyn Fn() -> UdpSocket,
    far: IpAddr,
    bind: &dyn Fn(IpAddr) -> UdpSocket,
) {
    let fars: Vec<_> = (0..count).map(|_| bind(far)).collect();
    let sockets = fars.iter().map(|far| {
        let near = near();
        near.connect(far.local_addr().unwrap()).unwrap();

        attached(driver, near, engine)
    });
    let sockets: Vec<_> = sockets.collect();
    let readers: Vec<_> = fars
        .into_iter()
        .map(|far| {
            thread::spawn(move || {
                let mut got = vec![0; payload + 100];
                [0, 1].map(|_| {
                    let len = far.recv(&mut got).unwrap();
                    got[..len].to_vec()
                })
            })
        })
        .collect();
    let mut region = Region::anonymous(payload).unwrap();
    let bytes = pattern(count, payload);
    to_all(driver, sockets, filled(&mut region, count, payload).freeze());
    for reader in readers {
        let [whole, parts] = reader.join().unwrap();
        // Two datagrams over a device with several queues may overtake each other.
        let (whole, parts) =
            if whole.len() > parts.len() { (whole, parts) } else { (parts, whole) };
        traffic::assert_same(&whole, &[b"head", &bytes[..]].concat());
        traffic::assert_same(&parts, &[&bytes[..100], &bytes[payload - 7..]].concat());
    }
}

#[test]
fn one_payload_to_many_by_every_engine() {
    with_each_engine(LONG, |driver, engine| {
        for count in [1, 7] {
            streams(&driver, engine, count, &|| tcp("127.0.0.1"));
            let bind = |address| UdpSocket::bind((address, 0)).unwrap();
            let here = IpAddr::from([127, 0, 0, 1]);
            datagrams(&driver, engine, (count, LEN), &|| bind(here), here, &bind);
        }
    });
}

#[test]
fn one_payload_to_many_over_veth() {
    within(LONG, || {
        let pair = match Pair::new(MTU) {
            Ok(pair) => pair,
            Err(error) => {
                return traffic::skip("one_payload_to_many_over_veth", &error.to_string());
            }
        };
        let (left, right) = (&pair.left, &pair.right);
        let connect = || pair.connection().unwrap();
        let near = || left.namespace().run(|| UdpSocket::bind((left.v4(), 0))).unwrap().unwrap();
        let bind =
            |address| right.namespace().run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        for (driver, engine) in engines_apart() {
            streams(&driver, engine, 5, &connect);
            datagrams(&driver, engine, (5, WHOLE), &near, IpAddr::from(right.v4()), &bind);
        }
    });
}
