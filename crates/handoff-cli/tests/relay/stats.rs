//! What a relay has done so far, for who asks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use handoff_testbed::helpers::eventually;

use crate::session::{Relay, bytes_at, echo};

/// Asks by HTTP, and returns head and body.
fn ask(at: &Path, request: &str) -> (String, String) {
    let mut stream = UnixStream::connect(at).expect("connects");
    write!(stream, "{request} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n")
        .expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("receives");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[test]
fn counts_are_told_while_connections_are_open() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("stats");
    let stats = format!("unix:{}", at.display());
    let options = ["--stats", &stats, "--threads", "2", "--engine", "splice", "--connections", "2"];
    let relay = Relay::start(echo(), &options);
    let json = || -> serde_json::Value {
        let (head, body) = ask(&at, "GET /");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
        serde_json::from_str(&body).expect("JSON")
    };
    assert_eq!(json()["open"], 0);
    let mut client = relay.connect();
    let bytes = bytes_at(1, 0, 100_000);
    client.write_all(&bytes).expect("sends");
    let mut back = vec![0; bytes.len()];
    client.read_exact(&mut back).expect("receives");
    assert!(back == bytes);
    let now = eventually("its bytes are told", || {
        let now = json();
        (now["bytes_up"] == 100_000 && now["bytes_down"] == 100_000).then_some(now)
    });
    assert_eq!((&now["open"], &now["connections"]), (&1.into(), &1.into()), "{now}");
    assert_eq!(now["threads"].as_array().map(Vec::len), Some(2), "{now}");
    drop(client);
    eventually("it ends", || (json()["open"] == 0).then_some(()));
    let (head, metrics) = ask(&at, "GET /metrics");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    for line in [
        "# TYPE handoff_relay_connections counter",
        "handoff_relay_connections_total 1",
        "handoff_relay_open 0",
        "handoff_relay_bytes_total{direction=\"up\"} 100000",
        "handoff_relay_bytes_total{direction=\"down\"} 100000",
        "handoff_relay_directions_total{engine=\"splice\"} 2",
        "handoff_relay_refused_total 0",
    ] {
        assert!(metrics.lines().any(|told| told == line), "{line}: {metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(ask(&at, "POST /").0.starts_with("HTTP/1.1 405 "));
    assert!(ask(&at, "GET /else").0.starts_with("HTTP/1.1 404 "));
    assert_eq!(ask(&at, "HEAD /").1, "");
    drop(relay.connect());
    relay.end();
    assert!(!at.exists(), "the command removes its file");
}

#[test]
fn only_this_machine_asks_over_tcp_unless_others_are_named() {
    let ask = |options: &[&str]| {
        let options = [&["--stats", "tcp-listen://127.0.0.1:0"], options].concat();
        let relay = Relay::start(echo(), &options);
        let line = relay.line("counts: listening on http://");
        let at = line.rsplit_once("http://").expect("an address").1.to_owned();
        let mut stream = TcpStream::connect(at).expect("connects");
        let request = "GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert!(ask(&["--from", "192.0.2.0/24"]).contains("handoff_relay_open 0\n"));
    assert_eq!(ask(&["--stats-from", "192.0.2.0/24"]), "");
}

#[test]
fn who_is_not_let_in_is_counted() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("stats");
    let stats = format!("unix:{}", at.display());
    let relay = Relay::start(echo(), &["--stats", &stats, "--from", "192.0.2.0/24"]);
    let mut client = relay.connect();
    assert_eq!(client.read(&mut [0]).unwrap_or_default(), 0);
    eventually("it is counted", || ask(&at, "GET /").1.contains("\"refused\":1").then_some(()));
    relay.signal(rustix::process::Signal::TERM);
    assert_eq!(relay.end().json()["refused"], 1);
}
