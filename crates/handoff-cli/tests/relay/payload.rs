//! What goes in comes out, on every engine, for many at once.

use std::io::{Read, Write};
use std::process::Command;

use crate::session::Relay;
use crate::session::{ENGINES, bytes_at, echo, serve, there_and_back};

#[test]
fn bytes_arrive_in_both_directions() {
    const LEN: usize = (1 << 20) + 777;
    for engine in ENGINES {
        let relay = Relay::start(echo(), &["--engine", engine, "--connections", "1"]);
        there_and_back(relay.connect(), 0, LEN);
        let report = relay.end().report();
        assert_eq!(
            (&report["bytes_up"], &report["bytes_down"]),
            (&LEN.into(), &LEN.into()),
            "{report}"
        );
        assert_eq!((&report["connections"], &report["failed"]), (&1.into(), &0.into()), "{report}");
        assert_eq!(report["engines"][engine], 2, "{report}");
        let all = |way: &str| {
            let sums = ["zero_copy", "copied", "unknown"].map(|key| report[way][key].as_u64());
            sums.into_iter().map(|sum| sum.expect("a number")).sum::<u64>()
        };
        assert_eq!((all("taken"), all("given")), (2 * LEN as u64, 2 * LEN as u64), "{report}");
        match engine {
            "splice" => assert_eq!(report["taken"]["unknown"], 2 * LEN, "{report}"),
            _ => assert_eq!(report["taken"]["copied"], 2 * LEN, "{report}"),
        }
    }
}

#[test]
fn many_connections_are_kept_apart() {
    const CONNECTIONS: usize = 64;
    for engine in ENGINES {
        let relay = Relay::start(echo(), &["--engine", engine, "--connections", "64"]);
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let stream = relay.connect();
                std::thread::spawn(move || there_and_back(stream, number, 10_000 + number * 37))
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("ends"));
        let report = relay.end().report();
        assert_eq!(
            (&report["connections"], &report["failed"]),
            (&64.into(), &0.into()),
            "{report}"
        );
    }
}

#[test]
fn a_page_comes_through_to_curl() {
    const LEN: usize = 300_000;
    let target = serve(|mut stream| {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            asked.push(byte[0]);
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("answers");
        stream.write_all(&bytes_at(0, 0, LEN)).expect("answers");
    });
    let relay = Relay::start(target, &["--connections", "1"]);
    let url = format!("http://{}/", relay.address);
    let curl = Command::new("curl").args(["--silent", "--fail", "--noproxy", "*", &url]).output();
    let Ok(curl) = curl else { handoff_testbed::skip!("curl is not on this machine") };
    assert!(curl.status.success() && curl.stdout == bytes_at(0, 0, LEN), "{}", curl.status);
    assert_eq!(relay.end().report()["failed"], 0);
}
