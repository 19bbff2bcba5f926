//! Signals, files that shrink, threads.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;

use rustix::process::Signal;

use crate::session::Server;
use crate::session::{ask, command, content, directory};

const LARGE: usize = 32 << 20;

#[test]
fn a_download_under_way_comes_to_its_end() {
    let place = directory(&[("large", LARGE)]);
    let serving = Server::start(place.path(), &[]);
    let mut idle = serving.connect();
    let mut stream = serving.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    let mut first = [0; 1000];
    stream.read_exact(&mut first).expect("it begins");
    serving.signal(Signal::INT);
    // It is ended, or reset if it was not accepted yet.
    assert_eq!(idle.read(&mut [0; 10]).unwrap_or(0), 0);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("receives");
    assert!(rest.ends_with(&content(LARGE)[1000..]), "{} bytes came", rest.len());
    let ended = serving.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.stderr.ends_with("handoff: stopped by SIGINT\n"), "{ended:?}");
    assert_eq!((&ended.json()["requests"], &ended.json()["cut_short"]), (&1.into(), &0.into()));
}

#[test]
fn who_does_not_end_in_time_is_ended() {
    let place = directory(&[("large", LARGE)]);
    let serving = Server::start(place.path(), &["--grace", "0.2"]);
    let mut stream = serving.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    stream.read_exact(&mut [0; 1000]).expect("it begins");
    assert_eq!(serving.stop()["cut_short"], 1);
}

#[test]
fn a_file_that_shrinks_ends_its_answer_and_is_told() {
    let place = directory(&[("large", LARGE), ("other", 10)]);
    let serving = Server::start(place.path(), &[]);
    let mut stream = serving.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    let mut all = vec![0; 1000];
    stream.read_exact(&mut all).expect("it begins");
    let file = OpenOptions::new().write(true).open(place.path().join("large")).expect("opens");
    file.set_len(LARGE as u64 / 2).expect("shrinks");
    stream.read_to_end(&mut all).expect_err("is reset");
    let end = all.windows(4).position(|it| it == b"\r\n\r\n").expect("a head");
    let body = &all[end + 4..];
    assert!(body.len() <= LARGE / 2 && *body == content(LARGE)[..body.len()], "{}", body.len());
    // One that changes in place is the next reader's.
    file.write_at(b"changed", 0).expect("writes");
    assert!(serving.ask("GET /large", "").body.starts_with(b"changed"));
    assert_eq!(serving.ask("GET /other", "").body, content(10));
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert_eq!(ended.json()["cut_short"], 1, "{ended:?}");
    assert!(ended.stderr.contains("a file is shorter than the answer has said"), "{ended:?}");
}

#[test]
fn threads_share_the_connections() {
    let place = directory(&[("file", 100_000)]);
    let serving = Server::start(place.path(), &["--threads", "3"]);
    let all: Vec<_> = (0..60).map(|_| serving.connect()).collect();
    for stream in all {
        assert!(ask(stream, "GET /file", "").body == content(100_000));
    }
    let report = serving.stop();
    assert_eq!((&report["threads"], &report["connections"]), (&3.into(), &60.into()), "{report}");
    assert_eq!(report["statuses"]["200"], 60, "{report}");
}

#[test]
fn a_report_for_people_says_what_was_copied() {
    let place = directory(&[("file", 10)]);
    let serving = Server::start_as(command(place.path(), &["--listen", "127.0.0.1:0"]));
    serving.signal(Signal::TERM);
    let report = String::from_utf8(serving.end().stdout).expect("text");
    assert!(report.starts_with("0 connections, at most 0 at once; 0 requests"), "{report}");
    assert!(report.contains("serve -> socket 0 zero-copy, 0 copied, 0 unknown"), "{report}");
}
