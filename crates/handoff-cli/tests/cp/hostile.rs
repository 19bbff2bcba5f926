//! Peers that break the protocol: a clean error, and no file.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use handoff_cp::checksum::PieceSum;
use handoff_cp::wire::{FRAME_LEN, Frame, HELLO_LEN, Hello};
use handoff_testbed::helpers::eventually;
use handoff_testbed::running::Running;

use crate::session::{cp, names, path, pattern, run};

/// The first byte of the frame that ends a transfer.
const END: u8 = 2;

pub(crate) fn hello(streams: u16, stream: u16) -> Hello {
    Hello {
        sends: true,
        verifies: true,
        streams,
        stream,
        transfer: 7,
        length: Some(1000),
        sparse: false,
        preserves: false,
        hears_work: true,
    }
}

fn listening(directory: &Path) -> (Running, String) {
    let copy = directory.join("copy");
    let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", path(&copy)]));
    let address = receiver.address().strip_prefix("tcp://").unwrap().to_owned();
    (receiver, address)
}

pub(crate) fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Frame::data(offset, bytes.len() as u32).to_vec();
    frame.extend_from_slice(bytes);
    frame
}

/// Greets a receiver, sends `frames`, and ends its direction.
fn send(directory: &Path, frames: &[Vec<u8>]) -> (Running, Vec<u8>) {
    let (receiver, address) = listening(directory);
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&hello(1, 0).encode()).unwrap();
    peer.read_exact(&mut [0; HELLO_LEN]).unwrap();
    // The receiver may have seen enough before all is sent.
    let _ = peer.write_all(&frames.concat());
    let _ = peer.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    (receiver, answer)
}

#[test]
fn senders_that_break_the_protocol() {
    let bytes = vec![3; 1000];
    let mut sum = PieceSum::new(true);
    sum.update(&bytes);
    let sum = Some(sum.finish());
    let end = |bytes, checksum| Frame::End { bytes, checksum }.encode();
    let directory = tempfile::tempdir().unwrap();
    for (frames, words) in [
        (vec![], "midway, after 0 of 1000 bytes"),
        (vec![data(0, &bytes)], "midway, after 1000 of 1000"),
        (vec![data(0, &bytes)[..500].to_vec()], "midway"),
        (vec![data(0, &bytes), end(999, sum)], "speaks of 999 bytes, and 1000 came"),
        (vec![data(0, &bytes[..500]), end(1000, sum)], "speaks of 1000 bytes, and 500 came"),
        (vec![data(0, &bytes), end(1000, Some(5))], "the checksums differ"),
        (vec![data(0, &bytes), end(1000, None)], "sent no checksum"),
        (vec![data(0, &bytes), data(10, &bytes[..1])], "came twice"),
        (vec![data(1, &bytes)], "past the end at 1000"),
        (vec![vec![0xff; FRAME_LEN]], "unknown kind"),
        (vec![Frame::Answer { bytes: 0, outcome: Ok(None) }.encode()], "it answers"),
        (vec![Frame::Abort { reason: "no\nmore".into() }.encode()], "the sender gave up: no more"),
    ] {
        let (receiver, answer) = send(directory.path(), &frames);
        receiver.end().says(1, words);
        assert!(answer.starts_with(&[4, 2]), "the sender is told: {answer:?}");
        assert!(names(directory.path()).is_empty(), "{words}");
    }
    let (receiver, answer) = send(directory.path(), &[data(0, &bytes), end(1000, sum)]);
    assert_eq!(receiver.end().code, Some(0));
    assert!(answer.starts_with(&[4, 1]));
    assert_eq!(names(directory.path()), ["copy"]);
}

/// 64 bytes may make a receiver write zeros for as long as it runs.
#[test]
fn a_hole_is_as_long_as_was_said_and_ends_with_its_sender() {
    const LONG: u64 = 1 << 62;
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    for (length, destination, words) in [
        (None, path(&copy), "a hole in a transfer whose length it did not say"),
        (None, "-", "a hole in a transfer whose length it did not say"),
        (Some(1000), "-", "past the end at 1000"),
        (Some(LONG), "-", "midway, after"),
    ] {
        let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", destination]));
        let address = receiver.address();
        let mut peer = TcpStream::connect(address.strip_prefix("tcp://").unwrap()).unwrap();
        let hello = Hello { length, sparse: true, verifies: false, ..hello(1, 0) };
        peer.write_all(&hello.encode()).unwrap();
        peer.read_exact(&mut [0; HELLO_LEN]).unwrap();
        // What is unread does not hide the end.
        let hole = Frame::Hole { offset: 0, len: LONG }.encode();
        peer.write_all(&[hole, vec![0; 5]].concat()).unwrap();
        drop(peer);
        let ended = receiver.end();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(words), "{length:?}: {}", ended.stderr);
    }
    assert!(names(directory.path()).is_empty());
}

/// Bytes of disk that the file takes which a receiver writes in this directory, under whatever name.
fn disk(receiver: &Running, directory: &Path) -> Option<u64> {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", receiver.pid())).unwrap();
    let mut files = descriptors.map(|it| it.unwrap().path());
    let file = files.find(|it| fs::read_link(it).is_ok_and(|it| it.starts_with(directory)))?;
    Some(fs::metadata(file).ok()?.blocks() * 512)
}

#[test]
fn what_is_announced_takes_no_disk() {
    const COME: usize = 100_000;
    let directory = tempfile::tempdir().unwrap();
    for (sparse, length) in [(false, 64 << 20), (true, i64::MAX as u64)] {
        let (receiver, address) = listening(directory.path());
        let mut peer = TcpStream::connect(address).unwrap();
        let hello = Hello { length: Some(length), sparse, ..hello(1, 0) };
        peer.write_all(&hello.encode()).unwrap();
        peer.read_exact(&mut [0; HELLO_LEN]).unwrap();
        peer.write_all(&data(0, &pattern(COME))).unwrap();
        let taken = eventually("what came is in the file", || {
            disk(&receiver, directory.path()).filter(|taken| *taken >= COME as u64)
        });
        // File systems set some more aside for what may follow.
        assert!(taken < 1 << 20, "{taken} bytes of disk for {COME} of {length}");
        drop(peer);
        receiver.end().says(1, &format!("midway, after {COME} of {length} bytes"));
    }
}

#[test]
fn strangers_are_turned_away_and_the_transfer_comes_after() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, address) = listening(directory.path());
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: nobody\r\nAccept: */*\r\n\r\n").unwrap();
    // Before the sender comes: an end, or a reset.
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
    drop(TcpStream::connect(&address).unwrap());
    let sender = run(&["/proc/version", &format!("tcp://{address}")]);
    assert_eq!(sender.code, Some(0), "{sender:?}");
    let ended = receiver.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("turned a connection from 127.0.0.1:"), "{}", ended.stderr);
    assert!(ended.stderr.contains("--raw"), "{}", ended.stderr);
}

#[test]
fn a_stranger_does_not_join_a_transfer() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, address) = listening(directory.path());
    let mut greeted = Vec::new();
    for (transfer, stream) in [(7, 0), (8, 1), (7, 1)] {
        let mut peer = TcpStream::connect(&address).unwrap();
        peer.write_all(&Hello { transfer, ..hello(2, stream) }.encode()).unwrap();
        match (transfer, stream) {
            // From then on it is this transfer that is received.
            (7, 0) => peer.read_exact(&mut [0; HELLO_LEN]).unwrap(),
            // It is turned away before the others are complete.
            (8, _) => assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0),
            _ => {}
        }
        greeted.push(peer);
    }
    let bytes = [9; 1000];
    let mut sum = PieceSum::new(true);
    sum.update(&bytes);
    let end = Frame::End { bytes: 1000, checksum: Some(sum.finish()) }.encode();
    greeted[0].write_all(&[data(500, &bytes[500..]), end.clone()].concat()).unwrap();
    greeted[2].write_all(&[data(0, &bytes[..500]), end].concat()).unwrap();
    let ended = receiver.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("another transfer"), "{}", ended.stderr);
    assert_eq!(std::fs::read(directory.path().join("copy")).unwrap(), bytes);
}

#[test]
fn an_older_sender_is_answered_in_its_version() {
    let directory = tempfile::tempdir().unwrap();
    for hears_work in [false, true] {
        let (receiver, address) = listening(directory.path());
        let mut peer = TcpStream::connect(address).unwrap();
        let ours = Hello { hears_work, ..hello(1, 0) }.encode();
        peer.write_all(&ours).unwrap();
        let mut theirs = [0; HELLO_LEN];
        peer.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs[..9], ours[..9]);
        assert_eq!(Hello::decode(&theirs).unwrap().hears_work, hears_work);
        drop(peer);
        receiver.end().says(1, "midway");
    }
}

/// The time-out of the streams that are missing is its default.
#[test]
fn streams_that_do_not_come_are_waited_for_no_longer_and_the_next_sender_is() {
    let directory = tempfile::tempdir().unwrap();
    let (receiver, address) = listening(directory.path());
    let mut peer = TcpStream::connect(&address).unwrap();
    peer.write_all(&hello(256, 0).encode()).unwrap();
    peer.read_exact(&mut [0; HELLO_LEN]).unwrap();
    receiver.line("only 1 of the 256 streams of its transfer connected in time");
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
    assert_eq!(run(&["/proc/version", &format!("tcp://{address}")]).code, Some(0));
    assert_eq!(receiver.end().code, Some(0));
}

/// Answers a sender's hello as a receiver does.
pub(crate) fn greet(peer: &mut TcpStream) {
    let mut hello = [0; HELLO_LEN];
    peer.read_exact(&mut hello).unwrap();
    let hello = Hello::decode(&hello).unwrap();
    let ours = Hello { sends: false, length: None, ..hello };
    peer.write_all(&ours.encode()).unwrap();
}

/// Closing a connection with an answer unread would reset it, and whoever passes it on counts that as a
/// failure.
#[test]
fn a_sender_hears_the_answer_on_every_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    std::fs::write(&source, [9; 1000]).unwrap();
    let sender = Running::start(&mut cp(&["--streams", "2", path(&source), &address]));
    let mut peers: Vec<TcpStream> = (0..2).map(|_| listener.accept().unwrap().0).collect();
    peers.iter_mut().for_each(greet);
    let answer = Frame::Answer { bytes: 1000, outcome: Ok(None) }.encode();
    let mut heard = 0;
    for peer in &mut peers {
        // To the end frame, which is the last.
        let mut frame = [0; FRAME_LEN];
        loop {
            peer.read_exact(&mut frame).unwrap();
            if frame[0] == END {
                break;
            }
            heard += peer.take(1000).read_to_end(&mut Vec::new()).unwrap();
        }
    }
    assert_eq!(heard, 1000);
    peers[0].write_all(&answer).unwrap();
    peers[1].set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let left = peers[1].read(&mut [0; 1]);
    assert!(left.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it left");
    peers[1].write_all(&answer).unwrap();
    for peer in &mut peers {
        peer.set_read_timeout(None).unwrap();
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "an end, and no reset");
    }
    assert_eq!(sender.end().code, Some(0));
}

/// A sync may take longer than --idle; an older receiver does not say so.
#[test]
fn a_receiver_that_says_that_it_is_at_work_is_waited_for() {
    const IDLE: Duration = Duration::from_millis(800);
    for hears_work in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let idle = IDLE.as_secs_f32().to_string();
        let sender = Running::start(&mut cp(&["--idle", &idle, "/proc/version", &address]));
        let mut peer = listener.accept().unwrap().0;
        let mut hello = [0; HELLO_LEN];
        peer.read_exact(&mut hello).unwrap();
        let hello = Hello::decode(&hello).unwrap();
        let ours = Hello { sends: false, length: None, hears_work, ..hello };
        peer.write_all(&ours.encode()).unwrap();
        let mut end = vec![0; FRAME_LEN + fs::read("/proc/version").unwrap().len() + FRAME_LEN];
        peer.read_exact(&mut end).unwrap();
        if hears_work {
            let begin = Instant::now();
            while begin.elapsed() < 2 * IDLE {
                peer.write_all(&Frame::AtWork.encode()).unwrap();
                // It is the time itself that is tried here.
                std::thread::sleep(IDLE / 8);
            }
        }
        let bytes = end.len() as u64 - 2 * FRAME_LEN as u64;
        peer.write_all(&Frame::Answer { bytes, outcome: Ok(None) }.encode()).unwrap();
        let ended = sender.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn a_receiver_that_reads_nothing_is_given_up_on() {
    let senders =
        [(&["--raw"][..], 1), (&[], 1), (&["--streams", "2"], 2)].map(|(more, streams)| {
            let begin = Instant::now();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("tcp://{}", listener.local_addr().unwrap());
            let args = [&["--idle", "0.3", "/dev/zero", &address], more].concat();
            let sender = Running::start(&mut cp(&args));
            let mut peers: Vec<TcpStream> =
                (0..streams).map(|_| listener.accept().unwrap().0).collect();
            if !more.contains(&"--raw") {
                peers.iter_mut().for_each(greet);
            }
            (begin, sender, peers)
        });
    for (begin, sender, _peers) in senders {
        sender.end().says(1, "nothing moved for too long (--idle)");
        // It waits no longer where nobody reads why it ends.
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
}
