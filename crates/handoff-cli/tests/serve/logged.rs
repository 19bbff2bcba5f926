//! The access log.

use std::fs;
use std::io::{Read as _, Write as _};

use serde_json::{Value, json};

use crate::session::Server;
use crate::session::{command, content, directory};

#[test]
fn each_request_is_a_line_in_the_combined_format() {
    let place = directory(&[("file", 300_000)]);
    let log = place.path().join(".log");
    fs::write(&log, "before\n").expect("writes");
    let serving = Server::start(place.path(), &["--access-log", log.to_str().expect("text")]);
    let fields = "Referer: http://h/\r\nUser-Agent: a \"test\"\r\n";
    assert_eq!(serving.ask("GET /file", fields).body, content(300_000));
    assert_eq!(serving.ask("HEAD /file", "").status, 200);
    assert_eq!(serving.ask("GET /none%0a", "").status, 404);
    let mut stream = serving.connect();
    stream.write_all(b"no request\n\n").expect("sends");
    stream.read_to_end(&mut Vec::new()).expect("is refused");
    serving.stop();
    let log = fs::read_to_string(&log).expect("reads");
    let lines: Vec<_> = log.lines().collect();
    let [before, get, head, none, refused] = lines[..] else { panic!("{log}") };
    assert_eq!(before, "before");
    assert!(get.starts_with("127.0.0.1 - - ["), "{get}");
    let end = "+0000] \"GET /file HTTP/1.1\" 200 300000 \"http://h/\" \"a \\\"test\\\"\"";
    assert!(get.ends_with(end), "{get}");
    assert!(head.ends_with("\"HEAD /file HTTP/1.1\" 200 0 \"-\" \"-\""), "{head}");
    assert!(none.contains("\"GET /none%0a HTTP/1.1\" 404 "), "{none}");
    assert!(refused.contains("] \"-\" 400 "), "{refused}");
}

#[test]
fn requests_and_what_cut_them_off_are_json_on_standard_output() {
    const LARGE: usize = 32 << 20;
    let place = directory(&[("file", 10), ("large", LARGE)]);
    let listen = ["--listen", "127.0.0.1:0", "--grace", "0"];
    let options = ["--access-log", "-", "--access-log-format", "json"];
    let serving = Server::start_as(command(place.path(), &[&listen[..], &options].concat()));
    assert_eq!(serving.ask("GET /file?a", "Range: bytes=2-4\r\n").status, 206);
    // It is under way at the end.
    let mut stream = serving.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    stream.read_exact(&mut [0; 1000]).expect("it begins");
    serving.signal(rustix::process::Signal::TERM);
    let out = String::from_utf8(serving.end().stdout).expect("text");
    let lines: Vec<Value> =
        out.lines().take(2).map(|line| serde_json::from_str(line).expect("is JSON")).collect();
    let part = &lines[0];
    for (key, value) in [
        ("client", json!("127.0.0.1")),
        ("method", json!("GET")),
        ("target", json!("/file?a")),
        ("host", json!("h")),
        ("status", json!(206)),
        ("bytes", json!(3)),
        ("referer", Value::Null),
        ("cut", Value::Null),
    ] {
        assert_eq!(part[key], value, "{key}: {part}");
    }
    let cut = &lines[1];
    assert_eq!((&cut["target"], &cut["status"]), (&json!("/large"), &json!(200)), "{cut}");
    let bytes = cut["bytes"].as_u64().expect("a number");
    assert!(bytes > 0 && bytes < LARGE as u64 && cut["cut"].is_string(), "{cut}");
    // The report follows.
    assert!(out.contains(" connections, at most "), "{out}");
}

#[test]
fn a_log_that_cannot_be_opened_is_told_at_the_start() {
    let place = directory(&[("file", 1)]);
    let output = command(place.path(), &["--access-log", "/nowhere/log"]).output();
    let output = output.expect("starts");
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("opening the access log /nowhere/log"), "{line}");
}
