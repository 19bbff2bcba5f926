//! How connections and the relay end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, SockRef, Socket, Type};

use crate::session::Relay;
use crate::session::{ENGINES, bytes_at, echo, serve, there_and_back};
use crate::strangers::despite_idle;
use crate::terminal::{Terminal, shown};

#[test]
fn the_end_of_one_direction_leaves_the_other_open() {
    for engine in ENGINES {
        // Answers when it has seen the end.
        let target = serve(|mut stream| {
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).expect("hears");
            stream.write_all(&bytes_at(1, 0, 2 * heard.len())).expect("answers");
        });
        let relay = Relay::start(target, &["--engine", engine, "--connections", "1"]);
        let mut stream = relay.connect();
        stream.write_all(&bytes_at(0, 0, 5_000)).expect("sends");
        stream.shutdown(Shutdown::Write).expect("ends");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("receives");
        assert!(answer == bytes_at(1, 0, 10_000), "the answer differs");
        assert_eq!(relay.end().report()["failed"], 0);
    }
}

/// What is cut off is reset.
#[track_caller]
fn assert_reset(mut stream: TcpStream, what: &str) {
    let end = stream.read_to_end(&mut Vec::new());
    let error = end.expect_err(&format!("{what}: it looks whole"));
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}");
}

#[test]
fn a_reset_resets_the_other_side() {
    let by = |engine| DIRECTIONS.map(|(_, upwards)| (engine, upwards));
    for (engine, upwards) in ENGINES.into_iter().chain(["auto"]).flat_map(by) {
        for len in [5, 100_000] {
            let what = format!("{engine}, {upwards}, {len} bytes");
            let (relay, mut source, mut sink) = through_a_relay(upwards, &["--engine", engine]);
            source.write_all(&bytes_at(0, 0, len)).expect("sends");
            sink.read_exact(&mut vec![0; len]).expect("receives");
            SockRef::from(&source).set_linger(Some(Duration::ZERO)).expect("sets");
            drop(source);
            assert_reset(sink, &what);
            let report = relay.end().report();
            let counts = (&report["connections"], &report["failed"]);
            assert_eq!(counts, (&1.into(), &1.into()), "{what}: {report}");
        }
    }
}

#[test]
fn each_connection_is_a_line_of_the_access_log() {
    let place = tempfile::tempdir().expect("a directory");
    for form in ["text", "json"] {
        let log = place.path().join(form);
        let log = log.to_str().expect("a path");
        let target = echo();
        let options = ["--connections", "2", "--access-log", log, "--access-log-format", form];
        let relay = Relay::start(target, &options);
        there_and_back(relay.connect(), 0, 1_000);
        let mut cut = relay.connect();
        let client = cut.local_addr().expect("is bound").to_string();
        cut.write_all(b"hello").expect("sends");
        cut.read_exact(&mut [0; 5]).expect("receives");
        SockRef::from(&cut).set_linger(Some(Duration::ZERO)).expect("sets");
        drop(cut);
        relay.end().report();
        let log = std::fs::read_to_string(log).expect("reads");
        let lines: Vec<_> = log.lines().collect();
        let [well, cut] = lines[..] else { panic!("{log}") };
        if form == "text" {
            let words = format!("] {target} 1000 up 1000 down ");
            assert!(well.contains(&words) && well.ends_with(" s: well"), "{well}");
            assert!(
                cut.starts_with(&format!("{client} - - [")) && !cut.ends_with(": well"),
                "{cut}"
            );
        } else {
            let [well, cut]: [Value; 2] =
                [well, cut].map(|line| serde_json::from_str(line).expect("is JSON"));
            assert_eq!(
                (&well["end"], &well["target"]),
                (&"well".into(), &target.to_string().into())
            );
            assert_eq!((&cut["client"], &cut["bytes_up"]), (&client.into(), &5.into()), "{cut}");
            assert_ne!(cut["end"], "well");
        }
    }
}

#[test]
fn a_relay_that_is_killed_resets_what_it_cuts() {
    let (relay, mut source, mut sink) = through_a_relay(false, &[]);
    source.write_all(&bytes_at(0, 0, 5_000)).expect("sends");
    sink.read_exact(&mut [0; 5_000]).expect("receives");
    relay.signal(Signal::KILL);
    assert_reset(sink, "killed");
    assert_reset(source, "killed");
}

/// A port that nobody listens on. It is nobody else's as long as the socket lives.
fn nobody() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("binds");
    let address = socket.local_addr().expect("bound").as_socket().expect("IPv4");
    (socket, address)
}

#[test]
fn a_target_that_is_not_there_ends_the_connection() {
    let (_held, nobody) = nobody();
    let relay = Relay::start(nobody, &["--connections", "1"]);
    let stream = relay.connect();
    assert_reset(stream, "nobody answers");
    let report = relay.end().report();
    assert_eq!(report["failed"], 1, "{report}");
    assert!(report["failures"].to_string().contains("can't be reached"), "{report}");
}

#[test]
fn what_stands_still_is_closed() {
    let relay = Relay::start(echo(), &["--idle", "1"]);
    despite_idle(|| there_and_back(relay.connect(), 0, 1_000));
    assert_reset(relay.connect(), "idle");
    relay.signal(Signal::TERM);
    let report = relay.end().json();
    let idle = &report["failures"]["nothing moved for too long (--idle)"];
    assert!(idle.as_u64() >= Some(1) && *idle == report["failed"], "{report}");
    assert!(report["bytes_up"].as_u64() >= Some(1_000), "{report}");
}

#[test]
fn a_signal_lets_connections_end_and_prints_the_report() {
    let relay = Relay::start(echo(), &[]);
    let mut stream = relay.connect();
    stream.write_all(b"before").expect("sends");
    let mut back = [0; 6];
    stream.read_exact(&mut back).expect("receives");
    relay.signal(Signal::TERM);
    // It is served on, and nobody else is let in.
    // Until the listener is closed.
    while let Ok(late) = std::net::TcpStream::connect(relay.address) {
        drop(late);
    }
    stream.write_all(b"after").expect("sends");
    stream.shutdown(Shutdown::Write).expect("ends");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("receives");
    assert_eq!(rest, b"after");
    let ended = relay.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert_eq!(ended.json()["bytes_down"], 11, "{ended:?}");
}

#[test]
fn what_does_not_end_in_time_is_ended() {
    let relay = Relay::start(echo(), &["--grace", "0.2"]);
    let mut stream = relay.connect();
    stream.write_all(b"before").expect("sends");
    stream.read_exact(&mut [0; 6]).expect("receives");
    relay.signal(Signal::INT);
    assert_reset(stream, "--grace was over");
    let ended = relay.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert_eq!(
        (&ended.json()["failed"], &ended.json()["bytes_up"]),
        (&1.into(), &6.into()),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("--grace"), "{ended:?}");
}

/// A relay, and a connection through it: who sends, and who receives.
fn through_a_relay(upwards: bool, options: &[&str]) -> (Relay, TcpStream, TcpStream) {
    let target = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = target.local_addr().expect("bound");
    let relay = Relay::start(address, &[&["--connections", "1"], options].concat());
    let client = relay.connect();
    let (server, _) = target.accept().expect("accepts");
    if upwards { (relay, client, server) } else { (relay, server, client) }
}

/// Bytes that were taken or given, copied or not.
fn sum(report: &Value, way: &str) -> u64 {
    let sums = ["zero_copy", "copied", "unknown"].map(|key| report[way][key].as_u64());
    sums.into_iter().map(|sum| sum.expect("a number")).sum()
}

const DIRECTIONS: [(&str, bool); 2] = [("bytes_up", true), ("bytes_down", false)];

/// Each byte is in the tally, in both directions, when one side cuts the connection off.
pub(crate) fn assert_tally_when_cut_off(engine: &str) {
    const FIRST: usize = 300;
    const LEN: usize = 5 << 20;
    let by = |cut| DIRECTIONS.map(|(bytes, upwards)| (bytes, upwards, cut));
    for (bytes, upwards, cut) in ["by the source", "by the sink"].into_iter().flat_map(by) {
        let (relay, mut source, mut sink) = through_a_relay(upwards, &["--engine", engine]);
        // Where the relay may choose, it copies this and takes a better engine for the rest.
        source.write_all(&bytes_at(0, 0, FIRST)).expect("sends");
        sink.read_exact(&mut [0; FIRST]).expect("receives");
        thread::scope(|scope| {
            scope.spawn(|| source.write_all(&bytes_at(0, FIRST, LEN - FIRST)).expect("sends"));
            sink.read_exact(&mut vec![0; LEN - FIRST]).expect("receives");
        });
        let (cutting, _other) = match cut {
            "by the sink" => (sink, source),
            _ => (source, sink),
        };
        SockRef::from(&cutting).set_linger(Some(Duration::ZERO)).expect("sets");
        drop(cutting);
        let report = relay.end().report();
        let what = format!("{engine}, {bytes}, {cut}: {report}");
        assert_eq!((&report["failed"], &report[bytes]), (&1.into(), &LEN.into()), "{what}");
        for way in ["taken", "given"] {
            assert_eq!(sum(&report, way), LEN as u64, "{way}, {what}");
        }
        let copied = report["taken"]["copied"].as_u64().expect("a number");
        let both = copied >= FIRST as u64 && copied < LEN as u64;
        assert!(engine != "auto" || both, "{what}");
    }
}

#[test]
fn bytes_are_in_the_tally_when_the_connection_is_cut_off() {
    ENGINES.into_iter().chain(["auto"]).for_each(assert_tally_when_cut_off);
}

#[test]
fn bytes_are_in_the_tally_when_the_connection_stands_still() {
    const LEN: usize = 1 << 20;
    let check = |engine: &str, (bytes, upwards)| {
        let options = ["--engine", engine, "--idle", "1"];
        let (relay, mut source, mut sink) = through_a_relay(upwards, &options);
        let mut arrived = Vec::new();
        thread::scope(|scope| {
            // It fails where a busy machine stands still meanwhile.
            scope.spawn(|| source.write_all(&bytes_at(0, 0, LEN)));
            sink.read_to_end(&mut arrived).expect_err("is reset");
        });
        let (report, arrived) = (relay.end().report(), arrived.len() as u64);
        let what = format!("{engine}, {arrived} bytes: {report}");
        assert_eq!(report["failures"]["nothing moved for too long (--idle)"], 1, "{what}");
        assert_eq!((&report[bytes], sum(&report, "given")), (&arrived.into(), arrived), "{what}");
        assert!(sum(&report, "taken") == arrived || arrived < LEN as u64, "{what}");
    };
    thread::scope(|scope| {
        for engine in ENGINES.into_iter().chain(["auto"]) {
            for direction in DIRECTIONS {
                scope.spawn(move || check(engine, direction));
            }
        }
    });
}

#[test]
fn several_streams_of_cp_end_well_through_a_relay() {
    let handoff = || Command::new(env!("CARGO_BIN_EXE_handoff"));
    let directory = tempfile::tempdir().expect("a directory");
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    std::fs::write(&source, bytes_at(0, 0, 3 << 20)).expect("writes");
    let mut receiver = handoff();
    receiver.args(["cp", "tcp-listen://127.0.0.1:0"]).arg(&copy);
    let receiver = Relay::start_as(receiver);
    let relay = Relay::start(receiver.address, &["--connections", "4"]);
    let sent = handoff()
        .args(["cp", "--streams", "4"])
        .arg(&source)
        .arg(format!("tcp://{}", relay.address))
        .status()
        .expect("starts");
    assert!(sent.success(), "{sent}");
    let report = relay.end().report();
    assert_eq!((&report["connections"], &report["failed"]), (&4.into(), &0.into()), "{report}");
    assert_eq!(receiver.end().code, Some(0));
}

#[test]
fn a_target_that_is_down_is_told_of_once() {
    let (_held, nobody) = nobody();
    let relay = Relay::start(nobody, &["--connections", "3"]);
    for _ in 0..3 {
        assert_eq!(relay.connect().read(&mut [0; 10]).unwrap_or(0), 0);
    }
    let errors = relay.end().stderr;
    let told: Vec<_> = errors.lines().filter(|line| line.contains("can't be reached")).collect();
    assert_eq!(told.len(), 1, "{errors}");
}

#[test]
fn a_target_that_is_down_again_at_once_is_told_of_again() {
    let listen = |address| TcpListener::bind(address).expect("binds");
    // Not where other tests bind: none takes the port while nobody listens on it.
    let target = listen("127.0.5.1:0".parse().expect("an address"));
    let address = target.local_addr().expect("bound");
    drop(target);
    let relay = Relay::start(address, &[]);
    let fails = || assert_eq!(relay.connect().read(&mut [0; 10]).unwrap_or(0), 0);
    fails();
    relay.line("can't be reached");
    let target = listen(address);
    let mut client = relay.connect();
    drop(target.accept().expect("accepts"));
    // Its end is the target's, so the relay knows that it has reached it.
    assert_eq!(client.read(&mut [0; 10]).unwrap_or(0), 0);
    drop((client, target));
    // Too early for a second line, unless the machine is busy; a second after the first it is not.
    fails();
    thread::sleep(Duration::from_secs(1));
    fails();
    relay.line("can't be reached");
    relay.signal(Signal::TERM);
    let errors = relay.end().stderr;
    let told: Vec<_> = errors.lines().filter(|line| line.contains("can't be reached")).collect();
    assert_eq!(told.len(), 2, "{errors}");
}

#[test]
fn the_progress_line_goes_at_a_signal() {
    let mut terminal = Terminal::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["relay", "tcp-listen://127.0.0.1:0", &format!("tcp://{}", echo())]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(terminal.output());
    let mut relay = command.env("TERM", "xterm").spawn().expect("starts");
    // It has the terminal open, too.
    drop(command);
    let mut written = terminal.progress_below("handoff: listening on tcp://");
    kill_process(Pid::from_child(&relay), Signal::INT).expect("it runs");
    assert_eq!(relay.wait().expect("ends").code(), Some(130));
    written.push_str(&terminal.rest());
    let lines = shown(&written);
    assert!(lines.iter().all(|line| !line.contains("B/s")), "{lines:?}");
}
