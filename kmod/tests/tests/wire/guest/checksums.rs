//! Checksums of packets as they arrive, whoever made them.

use std::net::UdpSocket;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use handoff_testbed::PairEnd;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType};

use super::packets::send_cut;
use crate::testbed::{MIB, exchange, pair, run, stream_of};

/// The Internet checksum: 0 over what contains a right one.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !sum as u16
}

/// Whether the checksums of a frame's IPv4 and TCP or UDP headers are right; `None` if it has none.
fn checksums_are_right(frame: &[u8]) -> Option<bool> {
    let packet = frame.get(14..)?;
    let length = u16::from_be_bytes([*packet.get(2)?, packet[3]]) as usize;
    let (header, segment) = packet.get(..length)?.split_at(usize::from(packet[0] & 15) * 4);
    if !matches!(header[9], 6 | 17) {
        return None;
    }
    let pseudo = [0, header[9], (segment.len() >> 8) as u8, segment.len() as u8];
    let whole = checksum(&[&header[12..20], &pseudo, segment]);
    let there = header[9] == 6 || segment[6..8] != [0, 0];
    Some(checksum(&[header]) == 0 && whole == 0 && there)
}

/// Looks at all packets that arrive of some traffic, as tcpdump does, until so many have come and no more do; returns
/// how many packets of TCP and UDP with payload came, and how many had a wrong checksum.
fn capture(end: &PairEnd, least: u32, traffic: impl FnOnce()) -> (u32, u32) {
    const IPV4: u16 = 0x0800;
    let protocol = NonZeroU32::new(u32::from(IPV4.to_be())).map(Protocol::from_raw);
    let open = || rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol);
    let tap = end.namespace().run(open).expect("enters").expect("opens");
    let quiet = Some(Duration::from_secs(1));
    sockopt::set_socket_timeout(&tap, Timeout::Recv, quiet).expect("sets");
    sockopt::set_socket_recv_buffer_size_force(&tap, 16 * MIB).expect("sets");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let seen = scope.spawn(|| {
            let (mut packets, mut wrong, mut waits) = (0, 0, 0);
            let mut frame = vec![0; 65_536];
            loop {
                let is_last = over.load(Relaxed);
                match rustix::net::recv(&tap, &mut frame[..], RecvFlags::empty()) {
                    Ok((length, _)) => {
                        let right = checksums_are_right(&frame[..length]);
                        packets += u32::from(right.is_some() && length > 1_000);
                        wrong += u32::from(right == Some(false));
                    }
                    Err(_) if is_last && (packets >= least || waits > 20) => {
                        return (packets, wrong);
                    }
                    Err(_) => waits += u32::from(is_last),
                }
            }
        });
        let done = catch_unwind(AssertUnwindSafe(traffic));
        over.store(true, Relaxed);
        let seen = seen.join().expect("ends");
        done.unwrap_or_else(|panic| resume_unwind(panic));
        seen
    })
}

#[test]
fn checksums_on_the_wire_are_right() {
    const LEAST: u32 = 300;
    const DATAGRAMS: u32 = 8 * 40;
    let pair = pair(1_500);
    // Merged packets have no checksum of their own.
    run(&pair.right, &format!("ethtool -K {} gro off", pair.right.device()));
    // Made by the stack, by the engine for each packet, and by the engine for the parts of a frame.
    for offloads in ["tx off", "tx on tso off", "tso on"] {
        run(&pair.left, &format!("ethtool -K {} {offloads}", pair.left.device()));
        let (packets, wrong) =
            capture(&pair.right, LEAST, || exchange(&pair, pair.right.v4(), MIB));
        assert!(packets >= LEAST, "{offloads}: only {packets} packets were seen");
        assert_eq!(wrong, 0, "{offloads}: of {packets} packets");
    }
    let to = pair.right.namespace().run(|| UdpSocket::bind((pair.right.v4(), 0)));
    let to = to.expect("enters").expect("binds");
    let (packets, wrong) = capture(&pair.right, DATAGRAMS, || {
        for _ in 0..8 {
            send_cut(&pair, &to, 1_201, &stream_of(40 * 1_201));
        }
    });
    assert_eq!((packets, wrong), (DATAGRAMS, 0), "datagrams");
}
