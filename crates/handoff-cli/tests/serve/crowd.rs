//! Crowds of connections that mean no good, while a client that does is answered.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::session::Server;
use crate::session::{command, content, directory};
use crate::strangers::{CROWD, Crowd, KINDS, Kind, Protocol, Visited, despite_idle};

/// The longest head, and what the server keeps of a connection.
pub(crate) const KIB_OF_A_STRANGER: u64 = 32 + 16;

/// The code that a request is the first to run.
pub(crate) const KIB_OF_THE_CLIENT: u64 = 2 << 10;

/// Of pipes that the server keeps for the next answers, and of what it opens after it has said that it listens.
pub(crate) const KEPT_DESCRIPTORS: usize = 32 + 8;

pub(crate) const LARGE: usize = 1_000_000;

pub(crate) const PROTOCOL: Protocol =
    Protocol { begin: b"GET /large HTTP/1.1\r\nHost: h\r\nA: ", huge, asks };

fn asks(_: usize) -> Vec<u8> {
    b"GET /huge HTTP/1.1\r\nHost: h\r\n\r\n".to_vec()
}

/// A body, a piece of one, a range, or a field, longer than there can be.
fn huge(number: usize) -> Vec<u8> {
    let begin = "GET /large HTTP/1.1\r\nHost: h\r\n";
    let rest = match number % 4 {
        0 => format!("Content-Length: {}\r\n\r\n", u64::MAX),
        1 => format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", u64::MAX),
        2 => format!("Range: bytes=0-{}\r\n\r\n", u64::MAX),
        _ => format!("A: {}", "a".repeat(100_000)),
    };
    [begin, &rest].concat().into_bytes()
}

fn strangers(kind: Kind, serving: &Server) -> Crowd {
    let crowd = Crowd::new(kind, PROTOCOL, |_| serving.connect_from([127, 0, 0, 2]));
    serving.await_all();
    crowd
}

pub(crate) fn assert_answered(serving: &Server) {
    let answer = serving.ask("GET /large", "");
    assert!(answer.status == 200 && answer.body == content(LARGE), "{}", answer.status);
}

#[test]
fn a_client_is_answered_among_strangers() {
    let place = directory(&[("large", LARGE)]);
    for (kind, most) in KINDS.into_iter().flat_map(|kind| [(kind, 20), (kind, CROWD)]) {
        // Whoever waited for a stranger would wait for longer than this test.
        let limits = ["--max-per-client", &most.to_string(), "--idle", "600"];
        let serving = Server::start(place.path(), &limits);
        let visited = Visited::new(serving.pid());
        let mut crowd = strangers(kind, &serving);
        crowd.go_on_beside(|| (0..2).for_each(|_| assert_answered(&serving)));
        visited.assert_kept_memory(kind, KIB_OF_A_STRANGER, KIB_OF_THE_CLIENT);
        drop(crowd);
        visited.gives_back_descriptors(None, KEPT_DESCRIPTORS);
        serving.signal(Signal::TERM);
        let ended = serving.end();
        let count = |key| ended.json()[key].as_u64().expect("a number");
        assert_eq!(count("connections") + count("turned_away"), CROWD as u64 + 2, "{ended:?}");
        // It listens, has no module to lend with, and is stopped.
        visited.assert_said_little(&ended.stderr, 3);
    }
}

#[test]
fn strangers_without_a_request_are_ended() {
    let place = directory(&[("large", LARGE)]);
    for kind in [Kind::Silent, Kind::HalfClosed, Kind::Gone] {
        let serving = Server::start(place.path(), &["--idle", "1"]);
        let visited = Visited::new(serving.pid());
        let mut crowd = strangers(kind, &serving);
        // It was accepted after them, and ends too.
        let _ = serving.connect().read(&mut [0]);
        visited.gives_back_descriptors(Some(&mut crowd), KEPT_DESCRIPTORS);
    }
}

#[test]
fn strangers_who_take_all_descriptors_give_them_back() {
    let place = directory(&[("large", LARGE)]);
    let serving = Server::start(place.path(), &["--idle", "1"]);
    // From then on it has all that it needs itself.
    despite_idle(|| assert_answered(&serving));
    let visited = Visited::new(serving.pid());
    visited.limit_descriptors(64);
    strangers(Kind::Silent, &serving).all_end();
    despite_idle(|| assert_answered(&serving));
    serving.signal(Signal::TERM);
    visited.assert_said_little(&serving.end().stderr, 3);
}

#[test]
fn idle_strangers_leave_their_places() {
    let place = directory(&[("large", LARGE)]);
    let limits = ["--max-connections", "4", "--max-per-client", "4", "--idle", "600"];
    let serving = Server::start(place.path(), &limits);
    let _idle = [(); 4].map(|()| serving.connect_from([127, 0, 0, 2]));
    assert_answered(&serving);
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert!(ended.stderr.contains("the longest idle connection is ended"), "{ended:?}");
    assert_eq!((&ended.json()["displaced"], &ended.json()["most_open"]), (&1.into(), &4.into()));
}

fn with_96_descriptors(place: &Path) -> Server {
    let serve = command(place, &["--json", "--listen", "127.0.0.1:0"]);
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -n 96; exec \"$@\"", "bash"]).arg(serve.get_program());
    limited.args(serve.get_args());
    Server::start_as(limited)
}

#[test]
fn connections_leave_descriptors_for_files() {
    const CONNECTIONS: u8 = 24;
    let place = directory(&[("large", LARGE)]);
    let serving = with_96_descriptors(place.path());
    // All are there before the first file is opened, and no answer is taken before the last has begun.
    let mut all: Vec<_> =
        (0..CONNECTIONS).map(|it| serving.connect_from([127, 0, 1, it])).collect();
    for stream in &mut all {
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    }
    let mut status = [0; 12];
    for stream in &mut all {
        stream.read_exact(&mut status).expect("is answered");
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    for mut stream in all {
        let mut rest = vec![0; LARGE];
        stream.read_exact(&mut rest).expect("receives");
        stream.shutdown(Shutdown::Write).expect("ends");
        stream.read_to_end(&mut rest).expect("receives");
        assert!(rest.ends_with(&content(LARGE)), "{} bytes came", rest.len());
    }
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert_eq!(ended.json()["cut_short"], 0, "{ended:?}");
    assert!(ended.stderr.contains("96 descriptors (ulimit -n"), "{ended:?}");
}

#[test]
fn who_waits_for_a_place_takes_no_descriptors_of_files() {
    const WAITING: usize = 300;
    let place = directory(&[("large", LARGE)]);
    let serving = with_96_descriptors(place.path());
    // All have asked when the server looks, and a ring accepts them at once.
    serving.signal(Signal::STOP);
    let all: Vec<_> = (0..WAITING)
        .map(|it| {
            let mut stream = serving.connect_from([127, 0, 1 + (it / 200) as u8, (it % 200) as u8]);
            let request = b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            stream.write_all(request).expect("sends");
            stream
        })
        .collect();
    serving.signal(Signal::CONT);
    for mut stream in all {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("receives");
        let status = String::from_utf8_lossy(&answer[..answer.len().min(12)]);
        assert_eq!((&*status, answer.ends_with(&content(LARGE))), ("HTTP/1.1 200", true));
    }
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert_eq!(ended.json()["statuses"]["200"], WAITING, "{ended:?}");
}

#[test]
fn threads_say_no_more_than_one() {
    let place = directory(&[("large", LARGE)]);
    let serving = Server::start(place.path(), &["--threads", "4", "--from", "127.0.0.1"]);
    let visited = Visited::new(serving.pid());
    let _crowd = strangers(Kind::Silent, &serving);
    assert_answered(&serving);
    visited.gives_back_descriptors(None, 4 * KEPT_DESCRIPTORS);
    serving.signal(Signal::TERM);
    visited.assert_said_little(&serving.end().stderr, 4);
}

#[test]
fn files_that_cannot_be_opened_are_told_of_once_a_second() {
    let place = directory(&[("large", LARGE)]);
    let serving = Server::start(place.path(), &[]);
    let visited = Visited::new(serving.pid());
    let mut stream = serving.connect();
    let mut ask = || {
        let request = "HEAD /large HTTP/1.1\r\nHost: h\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sends");
        let mut answer = BufReader::new(&stream).lines().map(|line| line.expect("reads"));
        let status = answer.next().expect("a status");
        answer.find(|line| line.is_empty()).expect("the end of a head");
        status
    };
    assert!(ask().contains("200"));
    visited.limit_descriptors(0);
    for _ in 0..CROWD {
        assert!(ask().contains("503"));
    }
    serving.signal(Signal::TERM);
    visited.assert_said_little(&serving.end().stderr, 4);
}
