//! Sockets: lent, copied, and copied on the way in.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use handoff_meter::Report;
use handoff_testbed::{Discard, Namespace, Pair};
use io_uring::{IoUring, cqueue, opcode, types};

use crate::counting::{Counting, EXT4, PIECE, SIZE, TMPFS, assert_near, counting, myself};
use crate::files::{filled_file_in, read_all, rewind, write_all};

/// One after the other, since attaching takes longer than any of them.
#[test]
fn sockets_copy_what_they_should() {
    let counting = counting!(myself());
    sendfile_to_a_device_that_ends_packets_copies_nothing(&counting);
    send_zc_to_a_device_that_ends_packets_copies_nothing(&counting);
    plain_send_to_the_same_device_copies_each_byte(&counting);
    send_zc_over_loopback_is_copied_on_its_way_in(&counting);
    tcp_over_loopback_copies_in_and_out(&counting);
    a_copy_with_a_checksum_is_counted_once(&counting);
}

fn sendfile_to_a_device_that_ends_packets_copies_nothing(counting: &Counting) {
    let sink = Discard::new().expect("a guest has them");
    let socket = connected(sink.namespace(), (sink.v4(), 9).into());
    for directory in [TMPFS, EXT4] {
        let mut file = filled_file_in(directory);
        let counted = counting.during(|| {
            for _ in 0..SIZE / PIECE {
                let sent = rustix::fs::sendfile(&socket, &file, None, PIECE).expect("sent");
                assert_eq!(sent, PIECE);
            }
        });
        rewind(&mut file);
        assert_near(directory, counted.copied_bytes, 0);
        assert_near(directory, counted.moved_bytes, 2 * SIZE);
    }
}

fn send_zc_to_a_device_that_ends_packets_copies_nothing(counting: &Counting) {
    let sink = Discard::new().expect("a guest has them");
    let socket = connected(sink.namespace(), (sink.v4(), 9).into());
    let counted = counting.during(|| send_zc(&socket));
    assert_near("copied", counted.copied_bytes, 0);
    assert_near("moved", counted.moved_bytes, SIZE);
}

fn plain_send_to_the_same_device_copies_each_byte(counting: &Counting) {
    let sink = Discard::new().expect("a guest has them");
    let socket = connected(sink.namespace(), (sink.v4(), 9).into());
    let piece = vec![7; PIECE];
    let counted = counting.during(|| {
        for _ in 0..SIZE / PIECE {
            assert_eq!(socket.send(&piece).expect("sent"), PIECE);
        }
    });
    assert_near("copied", counted.copied_bytes, SIZE);
    assert_near("moved", counted.moved_bytes, SIZE);
}

fn send_zc_over_loopback_is_copied_on_its_way_in(counting: &Counting) {
    let namespace = Namespace::new().expect("a guest has them");
    // Never read: what arrives is dropped when its queue is full, after the copy.
    let receiver =
        namespace.run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).expect("run").expect("bound");
    let socket = connected(&namespace, receiver.local_addr().expect("bound"));
    let counted = counting.during(|| send_zc(&socket));
    assert_near("copied", counted.copied_bytes + counted.unattributed_bytes, SIZE);
    assert_near("moved", counted.moved_bytes, SIZE);
    let report = counting.report();
    // By whatever thread runs the loopback.
    let places = report.places.iter().chain(&report.unattributed_places);
    let orphaned = places.filter(|place| place.function == "skb_copy_ubufs").map(|it| it.bytes);
    assert_near("orphaned", orphaned.sum(), SIZE);
}

fn tcp_over_loopback_copies_in_and_out(counting: &Counting) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let address = listener.local_addr().expect("bound");
    let counted = counting.during(|| {
        let receiver = thread::spawn(move || read_all(&mut listener.accept().expect("peer").0));
        write_all(&mut TcpStream::connect(address).expect("connected"));
        receiver.join().expect("all was read");
    });
    assert_near("copied", counted.copied_bytes, 2 * SIZE);
    assert_near("moved", counted.moved_bytes, 2 * SIZE);
}

fn a_copy_with_a_checksum_is_counted_once(counting: &Counting) {
    // Datagrams that are cut into fragments are summed while they are copied.
    let pair = Pair::new(1_500).expect("a guest has them");
    let receiver = pair.right.namespace().run(|| UdpSocket::bind((pair.right.v4(), 0)));
    let receiver = receiver.expect("run").expect("bound");
    let socket = connected(pair.left.namespace(), receiver.local_addr().expect("bound"));
    let piece = vec![7; PIECE];
    let before = counting.report();
    counting.during(|| {
        for _ in 0..SIZE / PIECE {
            assert_eq!(socket.send(&piece).expect("sent"), PIECE);
        }
    });
    let after = counting.report();
    let by = |function: &str| {
        let of = |report: &Report| {
            let places = report.places.iter().filter(|place| place.function == function);
            places.map(|place| place.bytes).sum::<u64>()
        };
        of(&after) - of(&before)
    };
    assert_near("summed", by("csum_and_copy_from_iter_full"), SIZE);
    assert_near("not summed", by("_copy_from_iter"), 0);
}

fn connected(namespace: &Namespace, to: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let socket = socket.expect("run").expect("bound");
    socket.connect(to).expect("connected");
    socket
}

/// Sends one piece after the other, each after the one before has come back.
fn send_zc(socket: &impl AsFd) {
    let mut ring = IoUring::new(4).expect("a ring");
    let piece = vec![7; PIECE];
    for _ in 0..SIZE / PIECE {
        let send = opcode::SendZc::new(
            types::Fd(socket.as_fd().as_raw_fd()),
            piece.as_ptr(),
            u32::try_from(PIECE).expect("small"),
        )
        .build();
        // SAFETY: buffer and socket outlive both completions, which are awaited next.
        unsafe { ring.submission().push(&send) }.expect("room");
        let mut returned = false;
        while !returned {
            ring.submit_and_wait(1).expect("submitted");
            for completion in ring.completion() {
                if cqueue::notif(completion.flags()) {
                    returned = true;
                } else {
                    assert_eq!(completion.result(), PIECE as i32);
                    assert!(cqueue::more(completion.flags()), "a notification follows");
                }
            }
        }
    }
}
