//! Limits, and what is wrong with a command line.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use handoff_testbed::running::{Running, TIMEOUT};
use rustix::process::Signal;

use crate::session::Relay;
use crate::session::{ENGINES, bytes_at, command, echo, serve, there_and_back};

#[test]
fn no_more_are_served_at_once_than_allowed() {
    let (tell, begun) = mpsc::channel();
    let target = serve(move |mut stream| {
        tell.send(()).expect("somebody waits");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let relay = Relay::start(target, &["--max-connections", "2", "--connections", "4"]);
    let [first, second] = [(); 2].map(|()| {
        let client = relay.connect();
        begun.recv_timeout(TIMEOUT).expect("two are served");
        client
    });
    let others = [(); 2].map(|()| relay.connect());
    drop(first);
    begun.recv_timeout(TIMEOUT).expect("a third, since one has ended");
    drop((second, others));
    let report = relay.end().report();
    assert_eq!((&report["connections"], &report["most_open"]), (&4.into(), &2.into()), "{report}");
}

#[test]
fn that_anyone_may_use_it_is_said() {
    let target = "127.0.0.1:9".parse().expect("an address");
    let relay = Running::start(&mut command("0.0.0.0:0", target, &[]));
    relay.line("anyone who reaches 0.0.0.0:");
}

#[test]
fn a_reader_that_stands_still_holds_back_the_sender() {
    for engine in ENGINES {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let target = listener.local_addr().expect("bound");
        let relay = Relay::start(target, &["--engine", engine, "--connections", "1"]);
        let mut stream = relay.connect();
        let (mut still, _) = listener.accept().expect("accepts");
        stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).expect("sets");
        let mut sent = 0;
        // Until nothing is taken for half a second.
        while let Ok(bytes) = stream.write(&[7; 1 << 16]) {
            sent += bytes;
            assert!(sent < 64 << 20, "{engine}: {sent} bytes were taken, and nobody reads");
        }
        stream.shutdown(std::net::Shutdown::Write).expect("ends");
        let mut arrived = Vec::new();
        still.read_to_end(&mut arrived).expect("receives");
        assert_eq!(arrived.len(), sent);
        drop((still, stream));
        assert_eq!(relay.end().report()["bytes_up"], sent);
    }
}

#[test]
fn a_side_that_takes_nothing_is_reset() {
    for engine in ENGINES {
        // Sends as much as it can.
        let target = serve(|mut stream| while stream.write_all(&[7; 1 << 16]).is_ok() {});
        let limits = ["--engine", engine, "--idle", "1", "--connections", "20"];
        let relay = Relay::start(target, &limits);
        let clients: Vec<_> = (0..20).map(|_| relay.connect()).collect();
        let report = relay.end().report();
        assert_eq!(report["failed"], 20, "{report}");
        for mut client in clients {
            let end = client.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            assert_eq!(end, Err(ErrorKind::ConnectionReset), "{engine}");
        }
    }
}

#[test]
fn who_sends_too_little_is_closed() {
    let begin = std::time::Instant::now();
    let failures = || {
        let limits = ["--idle", "1", "--least-rate", "1k", "--connections", "1"];
        let relay = Relay::start(echo(), &limits);
        let mut slow = relay.connect();
        slow.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("sets");
        // A byte every now and then, until the relay ends it.
        loop {
            assert!(begin.elapsed() < TIMEOUT, "it goes on");
            if slow.write_all(b"x").is_err() {
                break;
            }
            match slow.read(&mut [0; 64]) {
                Ok(0) => break,
                Ok(_) => std::thread::sleep(std::time::Duration::from_millis(30)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        relay.end().report()["failures"].to_string()
    };
    let mut told = failures();
    // On a busy machine it may happen that no byte moves.
    while !told.contains("--least-rate") {
        assert!(told.contains("--idle"), "{told}");
        told = failures();
    }
}

#[test]
fn only_those_who_are_named_may_connect() {
    let relay = Relay::start(echo(), &["--from", "127.0.0.1/32", "--connections", "1"]);
    assert_eq!(relay.connect_from([127, 0, 0, 2]).read(&mut [0; 10]).unwrap_or(0), 0);
    there_and_back(relay.connect(), 0, 1_000);
    let ended = relay.end();
    assert!(ended.stderr.contains("turned a connection from 127.0.0.2"), "{ended:?}");
    assert_eq!(ended.report()["connections"], 1);
}

#[test]
fn a_lack_of_descriptors_cuts_nothing() {
    const LEN: usize = 200_000;
    const CLIENTS: usize = 300;
    // Begins, and has the rest to give when it hears something.
    let target = serve(|mut stream| {
        stream.write_all(&bytes_at(0, 0, LEN)).expect("begins");
        stream.read_exact(&mut [0]).expect("hears");
        stream.write_all(&bytes_at(0, LEN, LEN)).expect("ends");
    });
    let mut limited = Command::new("bash");
    let relay = command("127.0.0.1:0", target, &["--idle", "0"]);
    limited.args(["-c", "ulimit -n 400; exec \"$@\"", "bash"]).arg(relay.get_program());
    limited.args(relay.get_args());
    let relay = Relay::start_as(limited);
    let begin = |mut stream: TcpStream| {
        let mut got = vec![0; LEN];
        stream.read_exact(&mut got).expect("begins");
        (stream, got)
    };
    let end = |(mut stream, mut got): (TcpStream, Vec<u8>)| {
        stream.write_all(b"x").expect("goes on");
        stream.read_to_end(&mut got).expect("ends well");
        assert!(got == bytes_at(0, 0, 2 * LEN), "{} bytes came", got.len());
    };
    // All that there is room for wait when the relay looks.
    relay.signal(Signal::STOP);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| relay.begin_to_connect()).collect();
    relay.signal(Signal::CONT);
    thread::scope(|scope| {
        // They end when all of them have begun; the others, some of whom wait for room, end at once.
        let together = clients.split_off(CLIENTS - 100);
        let together: Vec<_> = together.into_iter().map(|it| scope.spawn(|| begin(it))).collect();
        clients.into_iter().for_each(|it| drop(scope.spawn(|| end(begin(it)))));
        let begun: Vec<_> = together.into_iter().map(|it| it.join().expect("begins")).collect();
        begun.into_iter().for_each(|it| drop(scope.spawn(|| end(it))));
    });
    relay.signal(Signal::TERM);
    let ended = relay.end();
    let report = ended.json();
    assert_eq!(
        (&report["failed"], &report["connections"]),
        (&0.into(), &CLIENTS.into()),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("400 descriptors (ulimit -n"), "{ended:?}");
}

#[test]
fn what_makes_no_sense_is_said() {
    let relay = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_handoff")).arg("relay").args(arguments).output();
        let output = output.expect("starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, words) in [
        (&["file", "tcp://127.0.0.1:1"][..], "tcp-listen://"),
        (&["tcp-listen://:0", "-"], "tcp://host:port"),
        (&["tcp-listen://:0", "tcp://127.0.0.1:1", "--idle=-1"], "below 0"),
        (&["tcp-listen://:0", "tcp://127.0.0.1:1", "--nic=lo", "--accept-proxy"], "leave out one"),
        (&["tcp-listen://:0", "tcp://127.0.0.1:1", "--stats-from=::1"], "--stats <LISTEN>"),
    ] {
        let (code, errors) = relay(arguments);
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
    let busy = TcpListener::bind("127.0.0.1:0").expect("binds");
    let listen = format!("tcp-listen://{}", busy.local_addr().expect("bound"));
    let (code, errors) = relay(&[&listen, "tcp://127.0.0.1:1"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("in use"), "{errors}");
}

#[test]
fn the_engine_is_told() {
    let relay = Relay::start(echo(), &["--connections", "1"]);
    there_and_back(relay.connect(), 0, 100_000);
    let ended = relay.end();
    let report = ended.json();
    // Whichever serves: where it is not the best, the reason is told.
    let best = report["engines"]["get-buf"] == 2;
    assert!(best || ended.stderr.contains("get-buf can't serve"), "{report} {}", ended.stderr);
}

#[test]
fn a_short_connection_is_copied() {
    let relay = Relay::start(echo(), &["--connections", "1"]);
    there_and_back(relay.connect(), 0, 300);
    let report = relay.end().json();
    assert_eq!(report["engines"]["copy"], 2, "{report}");
    assert_eq!(
        (&report["taken"]["copied"], &report["given"]["copied"]),
        (&600.into(), &600.into())
    );
}
