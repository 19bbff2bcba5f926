//! Sent bytes arrive, and lent pages come back when they have been read.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Pair, PairEnd};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType};

use crate::testbed::{
    MIB, PORT, connect, counters, exchange, listen, pair, refused, run, set_fault, stream_of,
};

/// `IORING_SEND_ZC_REPORT_USAGE`: the notification says whether the kernel has copied.
const REPORT_USAGE: u16 = 1 << 3;

/// The next packet that comes to this socket, and its length.
fn receive(socket: &impl AsFd, packet: &mut [u8]) -> usize {
    eventually("a packet arrives", || {
        match rustix::net::recv(socket, &mut *packet, RecvFlags::DONTWAIT) {
            Ok((length, _)) => Some(length),
            Err(error) => (error != Errno::AGAIN).then(|| panic!("receiving: {error}")),
        }
    })
}

#[test]
fn streams_cross_both_ways() {
    for mtu in [1_500, 9_000] {
        let pair = pair(mtu);
        exchange(&pair, pair.right.v4(), MIB);
        exchange(&pair, pair.right.v6(), MIB);
        let count = counters(&pair.right);
        assert_eq!(count["dma_refused"] + count["too_long"], 0, "{count:?}");
    }
}

#[test]
fn only_packets_above_the_threshold_are_split() {
    let pair = pair(1_500);
    let end = &pair.right;
    let device = end.device();
    run(end, &format!("ethtool -G {device} tcp-data-split on hds-thresh 256"));
    let output = run(end, &format!("ethtool -g {device}"));
    let told: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("HDS thresh:")).collect();
    assert_eq!(told.iter().map(|it| it.trim()).collect::<Vec<_>>(), ["1024", "256"], "{output}");
    let listener = listen(end, end.v4());
    let mut left = connect(&pair.left, end.v4());
    let (mut right, _) = listener.accept().expect("accepts");
    for (bytes, split) in [(256, false), (257, true)] {
        let sent = stream_of(bytes);
        left.write_all(&sent).expect("sends");
        let mut received = vec![0; bytes];
        right.read_exact(&mut received).expect("receives");
        assert!(received == sent, "{bytes} bytes differ");
        let count = counters(end);
        let is_split = |name: &str| name.ends_with("_rx_split");
        let all: u64 =
            count.iter().filter(|(name, _)| is_split(name)).map(|(_, count)| count).sum();
        // TCP may send it again.
        assert_eq!(all > 0, split, "{bytes} bytes: {count:?}");
    }
    refused(end, &format!("ethtool -G {device} hds-thresh 1025"));
}

#[test]
fn datagrams_of_all_sizes_cross() {
    let pair = pair(65_535);
    let open = |end: &PairEnd| {
        let bound = end.namespace().run(|| UdpSocket::bind((end.v4(), 0)));
        bound.expect("enters").expect("binds")
    };
    let (from, to) = (open(&pair.left), open(&pair.right));
    for bytes in [0, 1, 17, 213, 214, 215, 1_472, 4_310, 65_507] {
        let sent = stream_of(bytes);
        from.send_to(&sent, to.local_addr().expect("bound")).expect("sends");
        let mut buffer = vec![0; 65_536];
        let received = receive(&to, &mut buffer);
        assert!(buffer[..received] == sent, "{bytes} bytes differ");
    }
}

#[test]
fn lent_memory_is_back_when_the_engine_has_read_it() {
    const DELAY: Duration = Duration::from_millis(300);
    let pair = pair(65_535);
    let open = |end: &PairEnd| {
        let bound = end.namespace().run(|| UdpSocket::bind((end.v4(), 0)));
        bound.expect("enters").expect("binds")
    };
    let (from, to) = (open(&pair.left), open(&pair.right));
    from.connect(to.local_addr().expect("bound")).expect("connects");
    set_fault(&pair.right, "delay", DELAY.as_micros() as u32);

    let mut ring = IoUring::new(4).expect("a ring");
    let mut lent = stream_of(32_768);
    let request = opcode::SendZc::new(Fd(from.as_raw_fd()), lent.as_ptr(), lent.len() as u32)
        .zc_flags(REPORT_USAGE)
        .build();
    let begin = Instant::now();
    // SAFETY: the memory is not touched before the notification below has come.
    unsafe { ring.submission().push(&request) }.expect("room");
    ring.submit().expect("submits");
    let sent = ring.completion().next().expect("the send waits for nobody");
    assert_eq!(sent.result(), 32_768);
    assert!(cqueue::more(sent.flags()));
    ring.submit_and_wait(1).expect("waits");
    let back = ring.completion().next().expect("a notification");
    assert!(cqueue::notif(back.flags()));
    assert_eq!(back.result(), 0, "copied");
    assert!(begin.elapsed() >= DELAY, "back after {:?}", begin.elapsed());
    // A reader that still had it would read this.
    lent.fill(0);
    let mut received = vec![0; 65_536];
    let length = receive(&to, &mut received);
    assert!(received[..length] == stream_of(32_768), "what arrived differs");
}

/// Sends from left to right a message that the kernel must cut into datagrams of `piece` bytes.
pub(super) fn send_cut(pair: &Pair, to: &UdpSocket, piece: u16, bytes: &[u8]) {
    let to = to.local_addr().expect("bound");
    let any: IpAddr =
        if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = pair.left.namespace().run(|| UdpSocket::bind((any, 0)));
    let from = from.expect("enters").expect("binds");
    let piece = c_int::from(piece);
    // SAFETY: the option is an integer that outlives the call.
    let set = unsafe {
        libc::setsockopt(
            from.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const piece).cast(),
            size_of_val(&piece) as u32,
        )
    };
    assert_eq!(set, 0);
    assert_eq!(from.send_to(bytes, to).expect("sends"), bytes.len());
}

#[test]
fn datagrams_sent_as_one_are_cut_by_the_nic() {
    const PIECE: usize = 1_200;
    const FRAMES: usize = 8;
    let pair = pair(1_500);
    for address in [IpAddr::from(pair.right.v4()), pair.right.v6().into()] {
        let to = pair.right.namespace().run(|| UdpSocket::bind((address, 0)));
        let to = to.expect("enters").expect("binds");
        let sent = stream_of(20 * PIECE + 77);
        let sum = |of: &str| {
            let counters = counters(&pair.left);
            counters.iter().filter(|c| c.0.ends_with(of)).map(|c| c.1).sum::<u64>()
        };
        let before = [sum("tx_packets"), sum("tx_gso_packets")];
        for _ in 0..FRAMES {
            send_cut(&pair, &to, PIECE as u16, &sent);
            let mut buffer = [0; 2 * PIECE];
            for piece in sent.chunks(PIECE) {
                let length = receive(&to, &mut buffer);
                assert!(buffer[..length] == *piece, "{length} bytes differ from {}", piece.len());
            }
        }
        // They may arrive before they are counted as sent.
        let frames = eventually("all are counted", || {
            let frames = sum("tx_gso_packets") - before[1];
            (frames >= FRAMES as u64).then_some(frames)
        });
        let packets = sum("tx_packets") - before[0];
        assert_eq!(frames, FRAMES as u64, "frames that the NIC cut");
        // Neighbours are resolved meanwhile.
        let cut = (FRAMES * sent.chunks(PIECE).len()) as u64;
        assert!((cut..cut + FRAMES as u64).contains(&packets), "{packets} packets of {cut}");
    }
    assert_eq!(counters(&pair.right)["malformed"], 0);
}

/// A frame of TCP over IPv6 in IPv4, whose outer header has such an identification: it stands where
/// IPv6 has its length.
fn encapsulated(identification: u16) -> Vec<u8> {
    const PAYLOAD: usize = 200;
    let mut frame = vec![0xff; 12];
    frame.extend([0x08, 0x00]);
    let bytes = |count: usize| (count as u16).to_be_bytes();
    frame.extend([0x45, 0]);
    frame.extend(bytes(20 + 40 + 20 + PAYLOAD));
    frame.extend(identification.to_be_bytes());
    frame.extend([0, 0, 64, 41, 0, 0]);
    frame.extend([198, 51, 100, 1, 198, 51, 100, 2]);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(bytes(20 + PAYLOAD));
    frame.extend([6, 64]);
    frame.extend([0xfd; 32]);
    frame.extend([0x10, 0, PORT.to_be_bytes()[0], PORT.to_be_bytes()[1]]);
    frame.extend([0; 8]);
    frame.extend([5 << 4, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.extend(stream_of(PAYLOAD));
    frame
}

#[test]
fn a_packet_in_another_arrives_whole_and_is_none_of_the_rules_for_it() {
    let pair = pair(1_500);
    let (from, to) = (&pair.left, &pair.right);
    run(to, &format!("ethtool -N {} flow-type tcp6 dst-port {PORT} action 2", to.device()));
    let protocol = NonZeroU32::new(u32::from(0x0800_u16.to_be())).map(Protocol::from_raw);
    let open = || rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol);
    let tap = to.namespace().run(open).expect("enters").expect("opens");
    let out = from.namespace().run(open).expect("enters").expect("opens");
    let name = from.device();
    let index = from.namespace().run(|| rustix::net::netdevice::name_to_index(&out, name));
    let index = index.expect("enters").expect("is there");
    let address = link_address(index);
    for identification in [100, 0, u16::MAX] {
        let sent = encapsulated(identification);
        // SAFETY: the call reads the frame and the address.
        let done = unsafe {
            libc::sendto(
                out.as_raw_fd(),
                sent.as_ptr().cast(),
                sent.len(),
                0,
                (&raw const address).cast(),
                size_of_val(&address) as u32,
            )
        };
        assert_eq!(done, sent.len() as isize);
        let mut frame = vec![0; 2_000];
        let arrived = loop {
            let length = receive(&tap, &mut frame);
            if frame[23] == 41 {
                break &frame[..length];
            }
        };
        assert!(arrived == sent, "{identification}: {} bytes of {}", arrived.len(), sent.len());
    }
    assert_eq!(counters(to)["by_rule"], 0);
}

fn link_address(index: u32) -> libc::sockaddr_ll {
    // SAFETY: all zeros is a value of this structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = 0x0800_u16.to_be();
    address.sll_ifindex = index as i32;
    address
}
