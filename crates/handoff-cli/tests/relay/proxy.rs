//! The PROXY protocol, to targets and from fronts, and names that change.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use handoff_testbed::running::{Running, TIMEOUT};
use rustix::process::Signal;

use crate::session::{ENGINES, Relay, bytes_at, serve};

const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A target that tells all that each connection brings, to its end, and answers "yes".
fn listening() -> (SocketAddr, Receiver<Vec<u8>>) {
    let (tell, told) = channel();
    let target = serve(move |mut stream| {
        let mut all = Vec::new();
        if stream.read_to_end(&mut all).is_ok() {
            let _ = tell.send(all);
        }
        let _ = stream.write_all(b"yes");
    });
    (target, told)
}

/// Sends these pieces, each when the one before was taken, and hears "yes".
fn say(relay: &Relay, pieces: &[&[u8]]) -> SocketAddr {
    let mut stream = relay.connect();
    stream.set_nodelay(true).expect("set");
    for piece in pieces {
        stream.write_all(piece).expect("sends");
    }
    stream.shutdown(Shutdown::Write).expect("ends");
    let address = stream.local_addr().expect("bound");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("receives");
    assert_eq!(answer, "yes");
    address
}

fn text(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    format!("PROXY TCP4 {} {} {} {}\r\n", from.ip(), to.ip(), from.port(), to.port()).into_bytes()
}

fn binary(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut head = [BINARY, b"\x21\x11\0\x0c"].concat();
    for address in [from, to] {
        let SocketAddr::V4(address) = address else { panic!("of IPv4") };
        head.extend(address.ip().octets());
    }
    [from, to].iter().for_each(|address| head.extend(address.port().to_be_bytes()));
    head
}

#[test]
fn the_target_hears_who_connects() {
    for engine in ENGINES {
        for (version, head) in [("v1", text as fn(_, _) -> _), ("v2", binary)] {
            let (target, told) = listening();
            let options = ["--proxy-protocol", version, "--engine", engine, "--connections", "2"];
            let relay = Relay::start(target, &options);
            let at = relay.connect().peer_addr().expect("connected");
            told.recv_timeout(TIMEOUT).expect("the head alone");
            let payload = bytes_at(1, 0, 300_000);
            let client = say(&relay, &[&payload]);
            let arrived = told.recv_timeout(TIMEOUT).expect("arrives");
            assert!(arrived == [head(client, at), payload].concat(), "{version} by {engine}");
            let report = relay.end().report();
            assert_eq!((&report["bytes_up"], &report["failed"]), (&300_000.into(), &0.into()));
        }
    }
}

#[test]
fn what_a_front_says_is_logged_and_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let log = place.path().join("log");
    let log = log.to_str().expect("text");
    let (from, to) = ("192.0.2.7:4000", "198.51.100.1:443");
    let (from, to) = (from.parse().expect("an address"), to.parse().expect("an address"));
    for heard in [text(from, to), binary(from, to)] {
        let (target, told) = listening();
        let options =
            ["--accept-proxy", "--proxy-protocol", "v2", "--access-log", log, "--connections", "3"];
        let relay = Relay::start(target, &options);
        let expected = [&binary(from, to)[..], b"hello"].concat();
        // At once, byte by byte, and with the payload behind.
        say(&relay, &[&[&heard[..], b"hello"].concat()]);
        let single: Vec<_> = heard.chunks(1).collect();
        say(&relay, &[&single[..], &[b"hel", b"lo"]].concat());
        say(&relay, &[&heard, b"hello"]);
        for _ in 0..3 {
            assert_eq!(told.recv_timeout(TIMEOUT).expect("arrives"), expected);
        }
        assert_eq!(relay.end().report()["bytes_up"], 15);
        let lines = std::fs::read_to_string(log).expect("there");
        assert_eq!(lines.matches("192.0.2.7:4000 - - ").count(), 3, "{lines}");
        std::fs::remove_file(log).expect("there");
    }
}

#[test]
fn a_front_speaks_for_itself_and_others_pass_as_they_are() {
    let (target, told) = listening();
    let options = ["--accept-proxy", "--proxy-protocol", "v1", "--connections", "3"];
    let relay = Relay::start(target, &options);
    // It looks whether somebody listens.
    drop(relay.connect());
    say(&relay, &[BINARY, b"\x20\0\0\0check"]);
    say(&relay, &[b"PROXY UNKNOWN\r\ncheck"]);
    for _ in 0..2 {
        assert_eq!(told.recv_timeout(TIMEOUT).expect("arrives"), b"PROXY UNKNOWN\r\ncheck");
    }
    assert_eq!(relay.end().report()["failed"], 0);
}

#[test]
fn who_sends_no_head_does_not_reach_the_target() {
    let (target, told) = listening();
    let options = ["--accept-proxy", "--connect-timeout", "1", "--connections", "5"];
    let relay = Relay::start(target, &options);
    let wrong = [BINARY, b"\x21\x11\xff\xff"].concat();
    let long = [b"PROXY TCP4 ", &[b'1'; 200][..]].concat();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &wrong, &long, b"PROXY TCP4 192.0"] {
        let mut stream = relay.connect();
        stream.write_all(bytes).expect("sends");
        let end = stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    }
    let mut stream = relay.connect();
    stream.write_all(b"PROXY ").expect("sends");
    stream.shutdown(Shutdown::Write).expect("ends");
    let end = stream.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    let report = relay.end().report();
    let failures = report["failures"].to_string();
    for failure in
        ["no head of the PROXY", "longer than 4096 bytes", "107 bytes", "in time", "within"]
    {
        assert!(failures.contains(failure), "{failure}: {failures}");
    }
    assert_eq!((&report["failed"], &report["bytes_up"]), (&5.into(), &0.into()));
    assert!(told.try_recv().is_err(), "the target heard of it");
}

#[test]
fn clients_behind_a_front_are_counted_by_what_it_says() {
    let (reached, reaches) = channel();
    let target = serve(move |mut stream| {
        reached.send(()).expect("somebody waits");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let options = ["--accept-proxy", "--max-per-client", "1", "--connections", "3"];
    let relay = Relay::start(target, &options);
    let connect = |client: &str| {
        let mut stream = relay.connect();
        let head = format!("PROXY TCP4 {client} 198.51.100.1 4000 443\r\n");
        stream.write_all(head.as_bytes()).expect("sends");
        stream
    };
    let first = connect("192.0.2.1");
    reaches.recv_timeout(TIMEOUT).expect("it reaches the target");
    let other = connect("192.0.2.2");
    reaches.recv_timeout(TIMEOUT).expect("so does another client");
    let mut second = connect("192.0.2.1");
    let end = second.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    drop((first, other));
    let report = relay.end().report();
    assert_eq!((&report["turned_away"], &report["failed"]), (&1.into(), &1.into()), "{report}");
}

/// A front on a client's own machine.
#[test]
fn a_client_at_its_fronts_address_is_counted_once() {
    let (target, told) = listening();
    let options = ["--accept-proxy", "--max-per-client", "1", "--connections", "1"];
    let relay = Relay::start(target, &options);
    say(&relay, &[b"PROXY TCP4 127.0.0.1 127.0.0.1 4000 443\r\nhello"]);
    assert_eq!(told.recv_timeout(TIMEOUT).expect("arrives"), b"hello");
    assert_eq!(relay.end().report()["failed"], 0);
}

/// curl as a front.
#[test]
fn a_program_of_others_is_the_front() {
    let target = serve(|mut stream| {
        let mut request = [0; 4096];
        let mut len = 0;
        while !request[..len].ends_with(b"\r\n\r\n") {
            len += stream.read(&mut request[len..]).expect("receives");
        }
        let begins = request.starts_with(b"PROXY TCP4 127.0.0.1 127.0.0.1 ");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{begins:<4.4}");
        stream.write_all(answer.as_bytes()).expect("sends");
    });
    let relay =
        Relay::start(target, &["--accept-proxy", "--proxy-protocol", "v1", "--connections", "1"]);
    let at = relay.address;
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--haproxy-protocol", &format!("http://{at}/")]);
    let answer = match curl.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("SKIPPED: no curl");
            return;
        }
        answer => answer.expect("runs"),
    };
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "true", "{answer:?}");
    relay.end();
}

/// The file of names is one of the command's own, by a mount that only it sees.
#[test]
fn needs_root_a_name_is_asked_for_by_each_connection() {
    if !rustix::process::geteuid().is_root() {
        handoff_testbed::skip!("mounting needs root");
    }
    let place = tempfile::tempdir().expect("a directory");
    let hosts = place.path().join("hosts");
    let [one, other] =
        ["127.0.0.2:0", "127.0.0.3:0"].map(|at| TcpListener::bind(at).expect("binds"));
    let port = one.local_addr().expect("bound").port();
    drop(other);
    let other = TcpListener::bind(("127.0.0.3", port)).expect("binds");
    for (listener, word) in [(one, "one"), (other, "other")] {
        thread::spawn(move || {
            for stream in listener.incoming() {
                stream.expect("accepts").write_all(word.as_bytes()).expect("sends");
            }
        });
    }
    let name = |address: &str| std::fs::write(&hosts, format!("{address} target.test\n"));
    name("127.0.0.2").expect("written");
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&hosts);
    command.args([env!("CARGO_BIN_EXE_handoff"), "relay", "--json", "tcp-listen://127.0.0.1:0"]);
    command.arg(format!("tcp://target.test:{port}")).stdin(Stdio::null());
    let relay = Running::start(&mut command);
    let line = relay.line("listening on tcp://");
    let at = line.rsplit_once("tcp://").expect("an address").1.to_owned();
    let heard = || {
        let mut all = String::new();
        TcpStream::connect(&at).expect("connects").read_to_string(&mut all).map(|_| all)
    };
    assert_eq!(heard().expect("receives"), "one");
    name("127.0.0.3").expect("written");
    assert_eq!(heard().expect("receives"), "other");
    // Nobody listens at the first.
    std::fs::write(&hosts, "127.0.0.9 target.test\n127.0.0.2 target.test\n").expect("written");
    assert_eq!(heard().expect("receives"), "one");
    // A name that is gone: the last addresses are tried.
    std::fs::write(&hosts, "").expect("written");
    assert_eq!(heard().expect("receives"), "one");
    relay.signal(Signal::TERM);
    assert_eq!(relay.end().json()["failed"], 0);
}
