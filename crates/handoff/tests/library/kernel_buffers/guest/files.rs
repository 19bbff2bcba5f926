//! Files lend, and files and sockets take.

use std::os::unix::fs::FileExt;

use handoff::{Engine, Error, Outcome, RwFlags};
use handoff_testbed::Pair;
use handoff_testbed::helpers::bytes_at;

use crate::kernel_buffers::testbed::{Lending, connection, direct, filled, on_disk, read_all};

const LEN: usize = (1 << 20) + 4_321;

#[test]
fn a_file_goes_to_a_socket_over_software_nics() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let (from, to) = pair.connection().expect("the hosts connect");
    let received = read_all(to);
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, LEN)).expect("lends");
    let socket = lending.driver.socket(from).expect("attaches");
    socket.set_engine(Engine::UringZc).expect("has a ring");
    lending.run(async {
        let mut offset = 0;
        while let Some(lease) =
            source.get_at(offset, 256 << 10).expect("asks").await.expect("lends")
        {
            offset += lease.len() as u64;
            let finished = socket.send(lease).expect("is taken").await.unwrap();
            finished.sent.expect("is sent");
            assert_eq!(finished.receipt.outcome(), Outcome::ZeroCopy);
        }
        assert_eq!(offset, LEN as u64);
    });
    drop(socket);
    assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
    let stats = lending.until_all_are_back();
    assert_eq!((stats.lent_bytes, stats.copied_bytes), (LEN as u64, 0));
}

#[test]
fn a_file_goes_to_a_file_past_the_page_cache() {
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, 1 << 20)).expect("lends");
    let sink = direct(&directory, "sink");
    let file = lending.driver.file(sink.try_clone().expect("clones")).expect("attaches");
    assert!(file.is_direct());
    lending.run(async {
        let mut offset = 0;
        while let Some(lease) =
            source.get_at(offset, 128 << 10).expect("asks").await.expect("lends")
        {
            let len = lease.len();
            // The thread that would poll has no address for it.
            let refused = file.write_at_with(lease, offset, RwFlags::HIPRI).expect_err("no call");
            assert!(matches!(refused.error, Error::Invalid(_)), "{}", refused.error);
            let lease = refused.buffer;
            let written = file.write_at(lease, offset).expect("is taken").await.unwrap();
            assert_eq!(written.result.expect("is written"), len);
            offset += len as u64;
        }
    });
    let mut content = vec![0; 1 << 20];
    std::fs::File::open(directory.path().join("sink"))
        .expect("opens")
        .read_exact_at(&mut content, 0)
        .expect("reads");
    assert!(content == bytes_at(0, 1 << 20), "content differs");
    lending.until_all_are_back();
}

#[test]
fn a_lease_is_kept_and_its_parts_are_sent_at_once() {
    let (from, to) = connection();
    let received = read_all(to);
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, 1 << 16)).expect("lends");
    let socket = lending.driver.socket(from).expect("attaches");
    lending.run(async {
        let lease = source.get_at(0, 1 << 16).expect("asks").await.expect("lends");
        let lease = lease.expect("the file is not empty");
        let parts = [lease.part(..), lease.part(100..1_000), lease.part(65_000..), lease];
        let sendings = parts.map(|part| socket.send(part).expect("is taken"));
        for sending in sendings {
            sending.await.unwrap().sent.expect("is sent");
        }
    });
    drop(socket);
    let whole = bytes_at(0, 1 << 16);
    let expected = [&whole[..], &whole[100..1_000], &whole[65_000..], &whole[..]].concat();
    assert!(received.join().expect("ends") == expected, "what arrived differs");
    assert_eq!(lending.until_all_are_back().lent, 1);
}

#[test]
fn a_header_goes_before_a_lease_on_a_stream() {
    let (from, to) = connection();
    let received = read_all(to);
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, 9_000)).expect("lends");
    let socket = lending.driver.socket(from).expect("attaches");
    lending.run(async {
        for _ in 0..3 {
            let lease = source.get_at(10, 8_000).expect("asks").await.expect("lends");
            let message = socket.message(lease.expect("not the end")).header(b"before");
            assert_eq!(
                message.send().expect("is taken").await.unwrap().sent.expect("is sent"),
                8_006
            );
        }
    });
    drop(socket);
    let expected = [b"before".as_slice(), &bytes_at(10, 8_000)].concat().repeat(3);
    assert!(received.join().expect("ends") == expected, "what arrived differs");
}

#[test]
fn copying_is_told() {
    let (from, to) = connection();
    let received = read_all(to);
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, LEN)).expect("lends");
    let socket = lending.driver.socket(from).expect("attaches");
    socket.set_engine(Engine::Copy).expect("always works");
    lending.run(async {
        let mut offset = 0;
        while let Some(lease) = source.get_at(offset, 1 << 20).expect("asks").await.expect("lends")
        {
            offset += lease.len() as u64;
            let finished = socket.send(lease).expect("is taken").await.unwrap();
            finished.sent.expect("is sent");
            assert_eq!(finished.receipt.outcome(), Outcome::Copied);
        }
    });
    drop(socket);
    assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
    lending.until_all_are_back();
}

#[test]
fn new_pages_are_filled_and_sent() {
    let (from, to) = connection();
    let received = read_all(to);
    let directory = on_disk();
    let lending = Lending::new();
    drop(filled(&directory, 1 << 16));
    let path = directory.path().join("source");
    let direct = std::os::unix::fs::OpenOptionsExt::custom_flags(
        std::fs::OpenOptions::new().read(true),
        libc::O_DIRECT,
    )
    .open(path)
    .expect("opens");
    let file = lending.driver.file(direct).expect("attaches");
    let socket = lending.driver.socket(from).expect("attaches");
    lending.run(async {
        let pages = lending.getbuf.fresh(1 << 17).expect("asks").await.expect("lends");
        let read = file.read_at(pages, 4_096).expect("is taken").await.unwrap();
        let len = read.result.expect("is read");
        assert_eq!(len, (1 << 16) - 4_096, "the file ends before the pages do");
        socket
            .send(read.buffer.freeze(len))
            .expect("is taken")
            .await
            .unwrap()
            .sent
            .expect("is sent");
    });
    drop(socket);
    let expected = bytes_at(4_096, (1 << 16) - 4_096);
    assert!(received.join().expect("ends") == expected, "what arrived differs");
    lending.until_all_are_back();
}

#[test]
fn datagrams_take_leases() {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
    let address = receiver.local_addr().expect("bound");
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, 9_000)).expect("lends");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
    let socket = lending.driver.socket(socket).expect("attaches");
    let lease = lending
        .run(source.get_at(1_000, 8_000).expect("asks"))
        .expect("lends")
        .expect("not the end");
    for engine in [Engine::UringZc, Engine::Copy] {
        socket.set_engine(engine).expect("works");
        let sending = socket.message(lease.clone()).to(address).send().expect("is taken");
        let finished = lending.run(async { sending.await }).unwrap();
        assert_eq!(finished.sent.expect("is sent"), 8_000);
        let mut datagram = vec![0; 10_000];
        let (len, _) = receiver.recv_from(&mut datagram).expect("arrives");
        assert!(datagram[..len] == bytes_at(1_000, 8_000), "what arrived differs: {engine}");
    }
    let refused = socket.message(lease).to(address).header(b"x").send().expect_err("is refused");
    assert!(refused.error.to_string().contains("datagram"), "{}", refused.error);
}

/// A cipher reads memory, and a lease has none that it could read.
#[cfg(feature = "tls")]
#[test]
fn no_lease_goes_over_tls_and_it_comes_back_with_the_refusal() {
    let directory = on_disk();
    let lending = Lending::new();
    let source = lending.getbuf.source(filled(&directory, LEN)).expect("lends");
    for ciphering in [handoff::tls::Ciphering::User, handoff::tls::Ciphering::Kernel] {
        let (near, _far) = crate::tls::fixture::pair(&lending.driver, ciphering);
        lending.run(async {
            let lease = source.get_at(0, 256 << 10).expect("asks").await.expect("lends");
            let refused = near.send(lease.expect("has bytes")).expect_err("in the clear");
            assert!(refused.error.to_string().contains("over TLS"), "{}", refused.error);
            assert!(!refused.buffer.is_empty());
        });
    }
    lending.until_all_are_back();
}
