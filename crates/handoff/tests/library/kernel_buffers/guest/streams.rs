//! Sockets lend what they received, and files and sockets take it.

use std::os::unix::fs::FileExt;

use handoff::{Error, Outcome};
use handoff_testbed::Pair;
use handoff_testbed::helpers::bytes_at;

use crate::kernel_buffers::testbed::{Lending, connection, on_disk, read_all, write_all};

const LEN: usize = (1 << 20) + 777;

#[test]
fn a_stream_goes_to_another_over_software_nics() {
    let first = Pair::wire(1_500).expect("a pair of NICs");
    let second = Pair::wire(1_500).expect("another");
    let (from, to) = first.connection().expect("the hosts connect");
    let (out, far) = second.connection().expect("the hosts connect");
    let sent = write_all(from, LEN);
    let received = read_all(far);
    let lending = Lending::new();
    let source = lending.getbuf.source(&to).expect("lends");
    let socket = lending.driver.socket(out).expect("attaches");
    lending.run(async {
        socket.set_engine(handoff::Engine::UringZc).expect("has a ring");
        let mut passed = 0;
        while let Some(lease) = source.get(128 << 10).expect("asks").await.expect("lends") {
            passed += lease.len();
            let finished = socket.send(lease).expect("is taken").await.unwrap();
            finished.sent.expect("is sent");
            assert_eq!(finished.receipt.outcome(), Outcome::ZeroCopy);
        }
        assert_eq!(passed, LEN);
    });
    drop(socket);
    sent.join().expect("ends");
    assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
    let stats = lending.until_all_are_back();
    assert_eq!((stats.lent_bytes, stats.copied_bytes), (LEN as u64, 0));
}

#[test]
fn a_stream_goes_to_a_file() {
    let (from, to) = connection();
    let sent = write_all(from, LEN);
    let directory = on_disk();
    let sink = std::fs::File::create_new(directory.path().join("sink")).expect("makes");
    let lending = Lending::new();
    let source = lending.getbuf.source(&to).expect("lends");
    let file = lending.driver.file(sink).expect("attaches");
    lending.run(async {
        let mut offset = 0;
        while let Some(lease) = source.get(100_000).expect("asks").await.expect("lends") {
            let len = lease.len();
            let written = file.write_at(lease, offset).expect("is taken").await.unwrap();
            assert_eq!(written.result.expect("is written"), len);
            offset += len as u64;
        }
    });
    sent.join().expect("ends");
    let sink = std::fs::File::open(directory.path().join("sink")).expect("opens");
    let mut content = vec![0; LEN];
    sink.read_exact_at(&mut content, 0).expect("reads");
    assert!(content == bytes_at(0, LEN), "content differs");
    lending.until_all_are_back();
}

#[test]
fn a_stream_is_received_into_new_pages_that_go_on_to_another() {
    const PIECE: usize = 50_001;
    let (from, to) = connection();
    let (out, far) = connection();
    let sent = write_all(from, LEN);
    let received = read_all(far);
    let lending = Lending::new();
    let source = lending.driver.socket(to).expect("attaches");
    let socket = lending.driver.socket(out).expect("attaches");
    lending.run(async {
        let mut left = LEN;
        while left > 0 {
            let len = left.min(PIECE);
            let pages = lending.getbuf.fresh(len as u32).expect("asks").await.expect("lends");
            let filled = source.receive_exact(pages).expect("begins").await.unwrap();
            assert_eq!(filled.result.expect("receives"), len);
            let finished = socket.send(filled.buffer.freeze(len)).expect("is taken").await.unwrap();
            finished.sent.expect("is sent");
            left -= len;
        }
        // Past the end there is nothing, and the pages come back.
        let pages = lending.getbuf.fresh(100).expect("asks").await.expect("lends");
        let ended = source.receive_exact(pages).expect("begins").await.unwrap();
        let error = ended.result.expect_err("has ended");
        assert!(matches!(error, Error::StreamEnded { received: 0, wanted: 100 }), "{error}");
        assert_eq!(ended.buffer.len(), 100);
    });
    drop(socket);
    sent.join().expect("ends");
    assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
    lending.until_all_are_back();
}
