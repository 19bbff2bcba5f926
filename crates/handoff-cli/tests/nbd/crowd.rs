//! Crowds of hostile clients, while a client that means well is served.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use handoff_testbed::running::TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::raw::{DISCONNECT, READ, Raw, WRITE};
use crate::server::{SIZE, Server, directory, image, write_image};
use crate::strangers::CROWD;

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Says nothing.
    Silent,
    /// Says what it can, and never chooses an export.
    Haggles,
    /// Sends a part of a request.
    Header,
    /// Promises a payload, and sends a part of it.
    Payload,
    /// Asks, and never reads.
    NeverReads,
    /// Sends noise in place of a request.
    Noise,
}

const KINDS: [Kind; 6] =
    [Kind::Silent, Kind::Haggles, Kind::Header, Kind::Payload, Kind::NeverReads, Kind::Noise];

fn join(server: &Server, kind: Kind) -> TcpStream {
    let mut stream = server.connect();
    match kind {
        Kind::Silent => return stream,
        Kind::Haggles => {
            // The flags, and half an option.
            stream.write_all(&[0, 0, 0, 3]).expect("sends");
            stream.write_all(b"IHAVEOPT").expect("sends");
            return stream;
        }
        _ => {}
    }
    let mut raw = Raw::new(stream, "");
    match kind {
        Kind::Header => raw.stream.write_all(&0x2560_9513_u32.to_be_bytes()).expect("sends"),
        Kind::Payload => {
            raw.begin(0, WRITE, 0, 1 << 20);
            raw.stream.write_all(&[1; 10]).expect("sends");
        }
        Kind::NeverReads => {
            for _ in 0..100 {
                raw.begin(0, READ, 1 << 20, 256 << 10);
            }
        }
        // The server may have ended the connection.
        _ => drop(raw.stream.write_all(&[0x5a; 100])),
    }
    raw.stream
}

fn assert_served(server: &Server) {
    let begin = Instant::now();
    let mut raw = Raw::new(server.connect(), "");
    assert!(raw.read(0, SIZE as u32) == image());
    for at in 0..20 {
        assert_eq!(raw.write(0, at * 5000, &image()[at as usize * 5000..][..5000]), 0);
    }
    // More than the small buffers hold.
    assert_eq!(raw.write(0, 1 << 20, &image()[1 << 20..][..300_000]), 0);
    raw.begin(0, DISCONNECT, 0, 0);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn hostile_clients_stop_nobody_and_are_ended() {
    let place = directory();
    let file = place.path().join("image");
    write_image(&file);
    let path = file.to_str().expect("UTF-8");
    for kind in KINDS {
        // Whoever waited for them would wait for longer than this test.
        let server = Server::start(&["--stall", "600", "--memory", "4m", "--grace", "0", path]);
        let crowd: Vec<_> = (0..CROWD).map(|_| join(&server, kind)).collect();
        assert_served(&server);
        drop(crowd);
        assert_served(&server);
        server.stop();
    }
}

#[test]
fn hostile_clients_are_ended_in_time() {
    let place = directory();
    let file = place.path().join("image");
    write_image(&file);
    let path = file.to_str().expect("UTF-8");
    let server = Server::start(&["--stall", "1", path]);
    let mut raw = Raw::new(server.connect(), "");
    let mut all = Vec::new();
    for kind in KINDS {
        all.extend((0..20).map(|_| (kind, join(&server, kind))));
    }
    for (kind, stream) in all {
        // Nobody reads here: who reads what comes is no longer hostile.
        let mut ends = [PollFd::new(&stream, PollFlags::RDHUP)];
        let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        let ended = poll(&mut ends, Some(&timeout)).expect("waits");
        assert_eq!(ended, 1, "{kind:?} stays");
    }
    // It had no request for all that time.
    assert_eq!(raw.read(5000, 100), image()[5000..5100]);
    let report = server.stop();
    let failures = report["failures"].to_string();
    for reason in [
        "negotiation took too long",
        "did not send the rest",
        "payload of a write in time",
        "takes nothing",
        "no request of NBD",
    ] {
        assert!(failures.contains(reason), "{reason}: {failures}");
    }
}

#[test]
fn a_place_that_nobody_negotiates_for_is_given_away() {
    let place = directory();
    let file = place.path().join("image");
    write_image(&file);
    let path = file.to_str().expect("UTF-8");
    let server = Server::start(&["--stall", "600", "--max-connections", "2", path]);
    let silent = [server.connect(), server.connect()];
    assert_served(&server);
    let mut raw = Raw::new(server.connect(), "");
    // One that has an export keeps its place; one that only shuts down its side ends.
    silent[1].shutdown(Shutdown::Write).expect("shuts down");
    assert_served(&server);
    assert_eq!(raw.read(5000, 10), image()[5000..5010]);
    server.stop();
}
