use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread;

use handoff_testbed::Pair;
use handoff_testbed::helpers::{bytes_at, eventually};

use crate::device::{CANCEL_ALL, Lending, NOWAIT, SOURCE, TARGET, connection, in_memory, write};

const MIB: usize = 1 << 20;

/// Lends a stream to its end, and passes each lend on.
fn drain(lending: &mut Lending, id: u16, mut pass: impl FnMut(&mut Lending, u32, usize)) -> usize {
    let mut position = 0;
    loop {
        let lent = lending.run(lending.get(1, id, 0, 100_000));
        assert!(lent >= 0, "get: {lent}");
        if lent == 0 {
            return position;
        }
        pass(lending, lent as u32, position);
        assert_eq!(lending.run(lending.put(1)), 0);
        position += lent as usize;
    }
}

#[test]
fn a_stream_goes_to_a_file() {
    let mut lending = Lending::new();
    let (mut from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let sender = thread::spawn(move || from.write_all(&bytes_at(0, MIB)).expect("sends"));
    let target = in_memory();
    let bytes = drain(&mut lending, id, |lending, bytes, position| {
        let done = lending.run(write(1, &target, 0, bytes, position as u64));
        assert_eq!(done, bytes as i32);
    });
    sender.join().expect("ends");
    assert_eq!(bytes, MIB);
    let mut content = vec![0; MIB];
    target.read_exact_at(&mut content, 0).expect("reads");
    assert!(content == bytes_at(0, MIB), "content differs");
    let query = lending.until_all_are_back();
    assert_eq!(query.lent_bytes, MIB as u64);
    assert!(query.from_stream > 0 && query.bytes == 0, "{query:?}");
}

#[test]
fn a_stream_goes_to_another_over_software_nics() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let (mut from, to) = pair.connection().expect("the hosts connect");
    let (out, mut far) = connection();

    let mut lending = Lending::new();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let target = lending.device.bind(&out, TARGET).expect("binds");
    let sender = thread::spawn(move || from.write_all(&bytes_at(0, MIB)).expect("sends"));
    let receiver = thread::spawn(move || {
        let mut received = Vec::new();
        far.read_to_end(&mut received).expect("receives");
        received
    });
    let bytes = drain(&mut lending, id, |lending, bytes, _| {
        let mut sent = 0;
        while sent < bytes {
            let result = lending.run(lending.send(1, target, sent.into(), bytes - sent, 0));
            assert!(result > 0, "{result}");
            sent += result as u32;
        }
    });
    assert_eq!(bytes, MIB);
    sender.join().expect("ends");
    out.shutdown(Shutdown::Write).expect("ends");
    assert!(receiver.join().expect("ends") == bytes_at(0, MIB), "what arrived differs");
    lending.until_all_are_back();
}

#[test]
fn a_lend_of_a_nics_memory_outlives_the_nic() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let (mut from, to) = pair.connection().expect("the hosts connect");
    let mut lending = Lending::new();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    from.write_all(&bytes_at(0, 50_000)).expect("sends");
    // The stream has them all before the NICs go.
    let mut lent = Vec::new();
    while lent.iter().sum::<i32>() < 50_000 {
        let bytes = lending.run(lending.get(lent.len() as u16, id, 0, 50_000));
        assert!(bytes > 0, "{bytes}");
        lent.push(bytes);
    }
    drop((from, to, pair));
    let mut at = 0;
    for (slot, bytes) in lent.iter().enumerate() {
        let target = in_memory();
        assert_eq!(lending.write(slot as u16, &target, *bytes as u32), *bytes);
        let mut content = vec![0; *bytes as usize];
        target.read_exact_at(&mut content, 0).expect("reads");
        assert!(content == bytes_at(at, *bytes as usize), "content differs");
        at += *bytes as usize;
        assert_eq!(lending.run(lending.put(slot as u16)), 0);
    }
    lending.until_all_are_back();
}

#[test]
fn a_get_waits_for_data_and_the_ring_goes_on() {
    let mut lending = Lending::new();
    let (mut from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let gets: Vec<_> =
        (0..3).map(|slot| lending.get(slot, id, 0, 10).user_data(slot.into())).collect();
    lending.submit(&gets);
    assert_eq!(lending.device.query().waiting, 3);
    let other = crate::device::NULL;
    assert_eq!(lending.run(lending.get(9, other, 0, 8)), 8);
    from.write_all(&bytes_at(0, 25)).expect("sends");
    // In order, each what the one before has left.
    let done: Vec<_> =
        lending.wait(3).iter().map(|entry| (entry.user_data(), entry.result())).collect();
    assert_eq!(done, [(0, 10), (1, 10), (2, 5)]);
    for (slot, bytes) in done {
        let target = in_memory();
        assert_eq!(lending.write(slot as u16, &target, bytes as u32), bytes);
        let mut content = vec![0; bytes as usize];
        target.read_exact_at(&mut content, 0).expect("reads");
        assert_eq!(content, bytes_at(slot as usize * 10, bytes as usize));
    }
    drop(from);
    assert_eq!(lending.run(lending.get(5, id, 0, 10)), 0);
    assert_eq!(lending.device.query().waiting, 0);
}

#[test]
fn a_linked_write_waits_with_its_get() {
    let mut lending = Lending::new();
    let (mut from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let target = in_memory();
    let writer = thread::spawn(move || {
        from.write_all(&bytes_at(0, 5_000)).expect("sends");
        from
    });
    let results = lending.chain(&[
        lending.get(1, id, 0, 1_000),
        write(1, &target, 0, 1_000, 0),
        lending.put(1),
    ]);
    assert_eq!(results, [1_000, 1_000, 0]);
    drop(writer.join().expect("ends"));
    let mut content = [0; 1_000];
    target.read_exact_at(&mut content, 0).expect("reads");
    assert!(content[..] == bytes_at(0, 1_000));
}

#[test]
fn what_cannot_be_lent_stays_in_the_stream() {
    let mut lending = Lending::new();
    let (mut from, mut to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    assert_eq!(lending.run(lending.get(1, crate::device::NULL, 0, 8)), 8);
    from.write_all(&bytes_at(0, 100)).expect("sends");
    assert_eq!(lending.run(lending.get(1, id, 0, 50)), -libc::EBUSY);
    assert_eq!(lending.run(lending.get(40_000, id, 0, 50)), -libc::EINVAL);
    assert_eq!(lending.run(lending.get(2, id, 0, 50)), 50);
    let mut rest = [0; 50];
    to.read_exact(&mut rest).expect("reads");
    assert_eq!(rest[..], bytes_at(50, 50));
    assert_eq!(lending.run(lending.get_with(3, id, 0, 50, NOWAIT)), -libc::EAGAIN);
}

#[test]
fn waiting_ends_by_cancel_unbind_and_error() {
    let mut lending = Lending::new();
    let (from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let get = |slot: u16, lending: &Lending| {
        lending.get(slot, id, 0, 10).user_data(100 + u64::from(slot))
    };
    lending.submit(&[get(0, &lending), get(1, &lending), get(2, &lending), get(3, &lending)]);
    assert_eq!(lending.run(lending.cancel(101, 0).user_data(1)), 1);
    let canceled = &lending.wait(1)[0];
    assert_eq!((canceled.user_data(), canceled.result()), (101, -libc::ECANCELED));
    assert_eq!(lending.run(lending.cancel(101, 0)), -libc::ENOENT);
    // Does not concern another ring's.
    let other = Lending::with(crate::device::Device(
        lending.device.0.try_clone().expect("the same open file"),
    ));
    let mut other = other;
    assert_eq!(other.run(other.cancel(0, CANCEL_ALL)), -libc::ENOENT);
    assert_eq!(lending.run(lending.cancel(0, CANCEL_ALL)), 3);
    assert!(lending.wait(3).iter().all(|entry| entry.result() == -libc::ECANCELED));

    lending.submit(&[get(0, &lending), get(1, &lending)]);
    lending.device.unbind(id).expect("unbinds");
    assert!(lending.wait(2).iter().all(|entry| entry.result() == -libc::ECANCELED));
    assert_eq!(lending.run(lending.get(0, id, 0, 10)), -libc::EBADF);

    let id = lending.device.bind(&to, SOURCE).expect("binds");
    lending.submit(&[lending.get(0, id, 0, 10)]);
    socket_reset(from);
    assert_eq!(lending.wait(1)[0].result(), -libc::ECONNRESET);
    assert_eq!(lending.device.query().waiting, 0);
}

/// Closes a connection so that the other end gets an error.
fn socket_reset(socket: TcpStream) {
    let linger = Some(std::time::Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&socket, linger).expect("sets");
}

#[test]
fn a_ring_that_goes_leaves_nothing_waiting() {
    let (_from, to) = connection();
    let mut lending = Lending::new();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    lending.submit(&[lending.get(0, id, 0, 10), lending.get(1, id, 0, 10)]);
    assert_eq!(lending.device.query().waiting, 2);
    let Lending { ring, device } = lending;
    drop(ring);
    eventually("nobody waits", || (device.query().waiting == 0).then_some(()));
}

#[test]
fn what_is_in_no_page_is_copied_and_counted() {
    let pair = Pair::new(1_500).expect("a pair of interfaces");
    // Packets in one piece, which is not of whole pages.
    pair.left.ethtool("-K", &["tx-scatter-gather", "off"]).expect("is set");
    let (mut from, to) = pair.connection().expect("the hosts connect");
    let mut lending = Lending::new();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let sender = thread::spawn(move || from.write_all(&bytes_at(0, 100_000)).expect("sends"));
    let target = in_memory();
    let bytes = drain(&mut lending, id, |lending, bytes, position| {
        let done = lending.run(write(1, &target, 0, bytes, position as u64));
        assert_eq!(done, bytes as i32);
    });
    sender.join().expect("ends");
    assert_eq!(bytes, 100_000);
    let mut content = vec![0; 100_000];
    target.read_exact_at(&mut content, 0).expect("reads");
    assert!(content == bytes_at(0, 100_000), "content differs");
    assert!(lending.until_all_are_back().copied_bytes > 0);
}

#[test]
fn workers_and_other_rings_serve_streams_too() {
    let rings = [
        io_uring::IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(128),
        io_uring::IoUring::builder().setup_sqpoll(10).build(128),
        io_uring::IoUring::builder().setup_iopoll().build(128),
    ];
    for ring in rings {
        let ring = ring.expect("a ring");
        ring.submitter().register_buffers_sparse(8).expect("a table");
        let mut lending = Lending { ring, device: crate::device::Device::open() };
        let (mut from, to) = connection();
        let id = lending.device.bind(&to, SOURCE).expect("binds");
        let by_a_worker = io_uring::squeue::Flags::ASYNC;
        // One waits at first, and one finds data, each inline and in a worker.
        for (slot, flags) in [(0, io_uring::squeue::Flags::empty()), (1, by_a_worker)] {
            lending.submit(&[lending.get(slot, id, 0, 10).flags(flags)]);
            eventually("it waits", || (lending.device.query().waiting == 1).then_some(()));
            from.write_all(&[1; 20]).expect("sends");
            assert_eq!(lending.wait(1)[0].result(), 10);
            assert_eq!(lending.run(lending.get(slot + 2, id, 0, 10).flags(flags)), 10);
        }
        lending.submit(&[lending.get(7, id, 0, 10).flags(by_a_worker)]);
        eventually("it waits", || (lending.device.query().waiting == 1).then_some(()));
        assert_eq!(lending.run(lending.cancel(0, CANCEL_ALL).user_data(1)), 1);
        assert_eq!(lending.wait(1)[0].result(), -libc::ECANCELED);
        for slot in 0..4 {
            assert_eq!(lending.run(lending.put(slot).flags(by_a_worker)), 0);
        }
        lending.until_all_are_back();
    }
}

#[test]
fn urgent_data_is_not_passed_over() {
    let mut lending = Lending::new();
    let (mut from, mut to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    from.write_all(&bytes_at(0, 5)).expect("sends");
    rustix::net::send(&from, b"!", rustix::net::SendFlags::OOB).expect("sends");
    from.write_all(&bytes_at(5, 5)).expect("sends");
    let first = lending.run(lending.get(1, id, 0, 100));
    assert_eq!(first, 5);
    assert_eq!(lending.run(lending.get(2, id, 0, 100)), -libc::EBADMSG);
    // A reader that reads past it clears the way.
    let mut one = [0];
    to.read_exact(&mut one).expect("reads");
    assert_eq!(one[..], bytes_at(5, 1));
    assert_eq!(lending.run(lending.get(2, id, 0, 100)), 4);
}
